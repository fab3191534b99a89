"""Judges responses by a user's function: ``python verify.py LIMITS READY CPU SECONDS``.

Questions and answers are lines of JSON. The file is loaded once; each response is judged by a copy of the process that
loaded it, with CPU seconds of processor time and SECONDS of wall-clock time: no verdict depends on another response.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
import traceback
import types
from typing import Any

import limits  # type: ignore[import-not-found]
import reading  # type: ignore[import-not-found]

VERIFIER = "/verifier.py"
MAX_ANSWER = 4096
_LONGEST_COMPLAINT = 300


def main() -> None:
    """Print whether the file could be loaded, then a verdict for each line of standard input."""
    limits.apply()
    cpu, seconds = int(sys.argv[1]), float(sys.argv[2])
    questions, answers = limits.conversation()
    module = types.ModuleType("verifier")
    sys.modules["verifier"] = module
    loaded: dict[str, Any] = {}
    try:
        with open(VERIFIER, encoding="utf-8") as file:
            exec(compile(file.read(), VERIFIER, "exec"), module.__dict__)
        module.verify  # noqa: B018  (it may have been deleted again)
    except BaseException as error:
        loaded = _complaint(error)
    answers.write(json.dumps(loaded) + "\n")
    for line in questions:
        answers.write(_judged(module, line, cpu, seconds) + "\n")


def _judged(module: Any, line: str, cpu: int, seconds: float) -> str:
    """The answer to one question, from a process that has ended, as has everything that it started."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.closerange(3, writer)  # the conversation of this process's parent
            os.closerange(writer + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))  # a signal that says so, then the end
            os.write(writer, (json.dumps(_verdict(module.verify, line)) + "\n").encode("ascii"))
        finally:
            os._exit(0)
    os.close(writer)
    answer: bytes | None = reading.read(reader, seconds, MAX_ANSWER, b"\n")
    os.close(reader)
    status = _end_all(child)
    if answer is not None and answer.endswith(b"\n"):
        return answer.partition(b"\n")[0].decode("ascii", "replace")
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if answer is None or ended_by in (signal.SIGXCPU, signal.SIGKILL):
        return json.dumps({"ended": "timeout"})
    return json.dumps({"failed": f"its process ended by signal {ended_by}" if ended_by else "its process ended"})


def _end_all(child: int) -> int:
    """End all in this sandbox but this process and bubblewrap's own, and wait for that; ``child``'s exit status."""
    os.kill(-1, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(-1, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)  # of this process itself, as what the verifier's file started at its load
            time.sleep(0.001)
    return status


def _verdict(verify: Any, line: str) -> dict[str, Any]:
    try:
        question = json.loads(line)
        reward = verify(question["problem"], question["response"])
        if hasattr(reward, "item") and getattr(reward, "ndim", None) == 0:  # a number of numpy's
            reward = reward.item()
        if isinstance(reward, bool | int | float) and 0 <= reward <= 1:
            return {"reward": float(reward)}
        found = repr(reward)[:_LONGEST_COMPLAINT]
        return {"failed": f"verify returned {found}; accepted: True, False or a number from 0 to 1"}
    except MemoryError:
        return {"ended": "memory"}
    except BaseException as error:  # SystemExit too
        return _complaint(error)


def _complaint(error: BaseException) -> dict[str, Any]:
    """The line of the user's file, the exception and what it says."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == VERIFIER]
    if isinstance(error, SyntaxError) and error.filename == VERIFIER and error.lineno:
        lines.append(error.lineno)
    try:
        said = " ".join(str(error).split())[:_LONGEST_COMPLAINT]
    except BaseException:
        said = ""
    place = f"line {lines[-1]}: " if lines else ""
    return {"failed": f"{place}{type(error).__name__}" + (f": {said}" if said else "")}


if __name__ == "__main__":
    main()
