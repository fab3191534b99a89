"""What a log of verl says went wrong: a worker's own last words, among those of everything that died after it."""

from __future__ import annotations

import re
import signal

_LONGEST = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS = re.compile(r"^\([\w.:<>-]+ pid=\d+(?:, ip=[\w.:]+)?\)\s?")
"""What Ray and vLLM put before a line of another process: ``(TaskRunnerV1 pid=123, ip=10.0.0.1) ``."""
_RANK = re.compile(r"^\[rank\d+\]: ?")
"""What torch puts before a line of a traceback."""
_LEVEL = re.compile(r"^(?:ERROR|CRITICAL) [\d-]+ [\d:.,]+ (?:\[[^\]]*\] )?")
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Exit))(?:: (.*)|:?)$")
_CONSEQUENCES = (
    "ActorDiedError",
    "ActorUnavailableError",
    "RayActorError",
    "RayTaskError",
    "WorkerCrashedError",
    "SystemExit",
    "KeyboardInterrupt",
    "CancelledError",
    "ChildFailedError",
    "EngineDeadError",
    "InstantiationException",
)
"""Exceptions of processes that found another one dead, and what Hydra wraps others in."""
_POINTS_ELSEWHERE = re.compile(r"[Ss]ee (?:root cause|stack trace)")
"""How vLLM's own exceptions say that the cause is another one."""
RAY_TIMED_OUT = "The current node timed out during startup"
"""What Ray says when its helpers took longer to start than it waits, as they do on a machine that is busy."""
_ADVICE = (
    ((RAY_TIMED_OUT,), "the machine is busy with other work, or `ray stop` is wanted first"),
    (("EADDRINUSE", "ddress already in use"), "a port was taken by another process; start it again"),
    (
        ("out of memory", "OutOfMemoryError", "No available memory for the cache blocks"),
        "try `preflight`, then less in cluster: tokens_per_device, gpu_memory_utilization, hidden_state_budget",
    ),
    (("Total available GPUs", "available GPUs"), "Ray sees fewer GPUs than cluster asks for"),
    (("No space left on device", "Errno 28"), "a disk is full: the study's, or that of Ray's directory /tmp/ray"),
)


def last_words(text: str) -> str | None:
    """One line: the last exception that is not another one's consequence, and advice if the cause is known.

    With the place where it was raised if it says nothing itself; None if there is no exception.
    """
    lines = [_plain(line) for line in text.splitlines()]
    lines = [line for line in lines if line.strip()]
    causes: list[str] = []
    consequences: list[str] = []
    for number, line in enumerate(lines):
        found = _EXCEPTION.match(line)
        if found is None:
            continue
        name = found[1].rsplit(".", 1)[-1]
        said = line if found[2] else f"{line.rstrip(':')} at: {lines[number - 1].strip()}" if number else line
        follows = name in _CONSEQUENCES or _POINTS_ELSEWHERE.search(line)
        (consequences if follows else causes).append(said)
    if not causes and not consequences:
        return None
    chosen = (causes or consequences)[-1].strip()[:_LONGEST]
    advice = [advice for signs, advice in _ADVICE if any(sign in chosen for sign in signs)]
    return f"{chosen} ({advice[0]})" if advice else chosen


def ended(status: int) -> str:
    """An exit status in words."""
    return (
        f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}, and no error in the log"
    )


def _plain(line: str) -> str:
    """A line without colour, and without the names of process, rank and logger, however often they are repeated."""
    line = _COLOUR.sub("", line)
    before = None
    while before != line:
        before = line
        line = _LEVEL.sub("", _RANK.sub("", _PROCESS.sub("", line)))
    return line.rstrip()
