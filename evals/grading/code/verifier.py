"""A verifier: a user's own function that grades responses, run in the sandbox alone (docs/your_verifier.md)."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evals.core.errors import UserError, first_line
from evals.core.files import parse_json, reading
from evals.grading.code.sandbox import Limits, Sandbox, require_sandbox, start
from evals.grading.verdict import WALL_CLOCK, Case, Reason, Verdict

ALLOWED_FAILURES, ALLOWED_SHARE = 10, 0.1
"""The number of responses, and the share of all so far, that may end in no verdict; more than both stop the work."""

_SIGNATURE = "def verify(problem, response)"
_LIMITS = Limits(cpu=24 * 3600, file_size=0, disk=0, forks=True)
"""The limits of the process that loads the file and hands responses on; those that judge one have the pool's."""
_SECONDS_TO_LOAD = 120.0
_GRACE = 10.0
_MAX_ANSWER = 4096
_ENDED = {"timeout": (Reason.TIMEOUT, "it ran out of time"), "memory": (Reason.MEMORY, "it ran out of memory")}


def read_verifier(path: Path) -> str:
    """Read a verifier, and check what can be seen without running it: that it is Python and has the function."""
    with reading(path):
        text = path.read_bytes().decode("utf-8")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UserError(f"{path}: line {error.lineno}: {error.msg}; accepted: Python") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{path}: is no Python ({first_line(error)})") from None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "verify"]
    if not functions:
        raise UserError(f"{path}: has no function verify; accepted: {_SIGNATURE}")
    arguments = functions[-1].args
    if len(arguments.posonlyargs) + len(arguments.args) != 2 or arguments.kwonlyargs:
        raise UserError(f"{path}: line {functions[-1].lineno}: verify has other parameters; accepted: {_SIGNATURE}")
    return text


class Verifier:
    """Grades responses by a user's function, in ``workers`` sandboxes that are kept from call to call.

    The limits are :class:`evals.grading.pool.GradingPool`'s, for one response.
    """

    def __init__(self, path: Path, workers: int, time_limit: float, memory_limit: int) -> None:
        self._path, self._source = path, read_verifier(path)
        require_sandbox()
        self._cpu = math.ceil(time_limit)
        self._limits = replace(_LIMITS, memory=memory_limit)
        self._workers = workers
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[_Conversation] = []
        self._lock = threading.Lock()
        self._judged = self._failed = 0

    def close(self) -> None:
        """End the sandboxes."""
        while self._idle:
            self._idle.pop().sandbox.kill()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def grade(self, cases: Iterable[Case]) -> list[Verdict]:
        """Grade cases that have their ``problem``: one verdict per case, in the same order.

        UserError where too many of the responses so far ended in no verdict: then it is the function that is wrong.
        """
        # A sandbox dies with the thread that started it: the threads are kept as long as the sandboxes.
        self._threads = self._threads or ThreadPoolExecutor(self._workers)
        numbered, verdicts, stop = enumerate(cases), dict[int, Verdict](), threading.Event()
        running = [self._threads.submit(self._work, numbered, verdicts, stop) for _ in range(self._workers)]
        try:
            for future in running:
                future.result()
        finally:
            stop.set()
        return [verdicts[index] for index in range(len(verdicts))]

    def _work(self, numbered: Iterator[tuple[int, Case]], verdicts: dict[int, Verdict], stop: threading.Event) -> None:
        """Judge one case after the other until there is none left; a sandbox that has ended is replaced."""
        while not stop.is_set():
            with self._lock:
                index, case = next(numbered, (-1, None))
            if case is None:
                break
            conversation = self._idle.pop() if self._idle else self._begin()
            begin = time.perf_counter()
            answer = conversation.ask(case)
            if answer is None:
                conversation.sandbox.kill()
            else:
                self._idle.append(conversation)
            verdict = verdicts[index] = _verdict(case, answer, time.perf_counter() - begin)
            self._count(verdict)

    def _begin(self) -> _Conversation:
        """Start a sandbox, and load the function in it."""
        arguments = [str(self._cpu), str(WALL_CLOCK * self._cpu)]
        files = {"/verifier.py": self._source}
        sandbox = start("verify.py", arguments, self._limits, files, stdin=subprocess.PIPE)
        conversation = _Conversation(sandbox, WALL_CLOCK * self._cpu + _GRACE)
        loaded = conversation.read(_SECONDS_TO_LOAD)
        if loaded != {}:
            sandbox.kill()
            complaint = (loaded or {}).get("failed") or f"it ended, or was not loaded within {_SECONDS_TO_LOAD:.0f} s"
            raise UserError(f"{self._path}: cannot be loaded in the sandbox: {complaint}")
        return conversation

    def _count(self, verdict: Verdict) -> None:
        with self._lock:
            self._judged += 1
            self._failed += verdict.error is not None
            judged, failed = self._judged, self._failed
        if verdict.error is not None and failed > ALLOWED_FAILURES and failed > ALLOWED_SHARE * judged:
            raise UserError(
                f"{self._path}: gave no verdict on {failed} of {judged} responses, at last: {verdict.error}; accepted: "
                f"no verdict on {ALLOWED_FAILURES} responses, or on {ALLOWED_SHARE:.0%} of them"
            )


@dataclass
class _Conversation:
    """Questions to a function in a sandbox and its answers, a line each."""

    sandbox: Sandbox
    seconds: float  # of wall-clock time for an answer

    def ask(self, case: Case) -> Mapping[str, Any] | None:
        """The answer on one case; None where the sandbox has ended."""
        if case.problem is None:
            raise ValueError("a verifier needs the row of the problem")
        question = json.dumps({"problem": dict(case.problem), "response": case.prediction}) + "\n"
        assert self.sandbox.process.stdin is not None
        try:
            self.sandbox.process.stdin.write(question.encode("ascii"))
            self.sandbox.process.stdin.flush()
        except OSError:
            return None
        return self.read(self.seconds)

    def read(self, seconds: float) -> Mapping[str, Any] | None:
        """The next line's object; None where there is none in time."""
        line = self.sandbox.read(seconds, _MAX_ANSWER, b"\n")
        if line is None or not line.endswith(b"\n"):
            return None
        try:
            answer = parse_json(line, "")
        except UserError:  # of a response that the function has run
            answer = None
        return answer if isinstance(answer, dict) else {"failed": "its process wrote no verdict"}


def _verdict(case: Case, answer: Mapping[str, Any] | None, seconds: float) -> Verdict:
    if answer is None:
        return Verdict.of(None, Reason.MISMATCH, seconds, "its sandbox ended", 0.0)  # by what the response does
    reward = answer.get("reward")
    if isinstance(reward, float) and 0 <= reward <= 1:
        return Verdict.of(case.prediction, Reason.MATCH if reward == 1 else Reason.MISMATCH, seconds, verified=reward)
    failed = Reason.VERIFIER_FAILED, str(answer.get("failed"))
    reason, error = _ENDED.get(str(answer.get("ended")), failed)
    return Verdict.of(None, reason, seconds, error, 0.0)
