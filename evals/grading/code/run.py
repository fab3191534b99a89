"""One program against one problem's tests. Nothing of either is ever run in this process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from evals.core.errors import UserError
from evals.grading.code.sandbox import MAX_OUTPUT, Limits, Sandbox, start
from evals.grading.verdict import Reason

CANDIDATE = Limits()
EXAMINER = Limits(seconds=20.0, cpu=20, memory=2 * 1024**3)
CASE = Limits(seconds=6.0, cpu=6)
ALL_CASES_SECONDS = 60.0
"""Seconds that all cases of one problem may take together."""
_GRACE = 0.5
_OUT_OF_TIME = {128 + signal.SIGXCPU, -signal.SIGXCPU}


def run_tests(program: str, tests: Mapping[str, Any]) -> Reason:
    """Run ``program`` against ``tests`` (docs/grading.md says what they look like).

    Returns:
        ``match`` if it passes all of them; ``mismatch``, ``timeout`` or ``memory`` if it does not; ``invalid_gold`` if
        the tests do not test it.

    Raises:
        UserError: the tests are of no known kind.
    """
    source = f"{tests.get('preamble', '')}\n{program}"
    if tests["kind"] == "stdin":
        return _cases(source, tests["cases"])
    if tests["kind"] in ("calls", "program"):
        return _examined(source, tests)
    raise UserError(f"tests: kind is {tests['kind']!r}; accepted: program, calls, stdin")


def _examined(source: str, tests: Mapping[str, Any]) -> Reason:
    """A candidate that answers calls, and an examiner that makes them; each in a sandbox, two pipes between them."""
    call_reader, call_writer = os.pipe()
    answer_reader, answer_writer = os.pipe()
    with ExitStack() as ends:
        calls, answers = (ends.enter_context(os.fdopen(end, "rb", 0)) for end in (call_reader, answer_reader))
        outgoing, incoming = (ends.enter_context(os.fdopen(end, "wb", 0)) for end in (call_writer, answer_writer))
        served = ["serve", CANDIDATE.inside(), str(tests["entry_point"])]
        candidate = start("candidate.py", served, CANDIDATE, {"/program.py": source}, stdin=calls, stdout=incoming)
        ends.callback(candidate.kill)
        pipes = (outgoing.fileno(), answers.fileno())
        files = {"/test.json": json.dumps(dict(tests))}
        examiner = start("examiner.py", [EXAMINER.inside(), *map(str, pipes)], EXAMINER, files, descriptors=pipes)
        ends.callback(examiner.kill)
        for end in (calls, answers, outgoing, incoming):  # ours: each side has to see the other one end
            end.close()
        line = _read(examiner, EXAMINER.seconds, 4096)
        return Reason.TIMEOUT if line is None else _verdict(line, candidate)


def _verdict(line: bytes, candidate: Sandbox) -> Reason:
    """Read the examiner's line, which no candidate can write; add the cause if the candidate ended early."""
    try:
        verdict = json.loads(line)
    except ValueError:  # the examiner was killed: by its own limits, on what the candidate returned
        return Reason.MISMATCH
    reason = Reason(verdict["reason"])
    if reason is not Reason.MISMATCH:
        return reason
    if verdict["raised"] == "MemoryError":
        return Reason.MEMORY
    if verdict["raised"] == "ended" and _ended(candidate) in _OUT_OF_TIME:
        return Reason.TIMEOUT
    return reason


def _ended(sandbox: Sandbox) -> int | None:
    """The exit status of a process that has closed its output, or None if it goes on."""
    try:
        return sandbox.process.wait(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        return None


def _read(sandbox: Sandbox, seconds: float, limit: int) -> bytes | None:
    """Read the sandbox's output until it is closed or too long; None when time runs out."""
    assert sandbox.process.stdout is not None
    descriptor = sandbox.process.stdout.fileno()
    deadline = time.monotonic() + seconds
    found = bytearray()
    while len(found) <= limit:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([descriptor], [], [], remaining)[0]:
            return None
        part = os.read(descriptor, 1 << 16)
        if not part:
            break
        found += part
    return bytes(found)


def _cases(source: str, cases: list[Mapping[str, str]]) -> Reason:
    """A script that reads standard input and writes standard output, once per case; the first failure decides."""
    deadline = time.monotonic() + ALL_CASES_SECONDS
    for case in cases:
        limits = replace(CASE, seconds=min(CASE.seconds, deadline - time.monotonic()))
        reason = _case(source, case, limits) if limits.seconds > 0 else Reason.TIMEOUT
        if reason is not Reason.MATCH:
            return reason
    return Reason.MATCH if cases else Reason.INVALID_GOLD


def _case(source: str, case: Mapping[str, str], limits: Limits) -> Reason:
    with tempfile.TemporaryFile() as given:
        given.write(case["input"].encode("utf-8", "replace"))
        given.seek(0)
        arguments = ["script", limits.inside()]
        sandbox = start("candidate.py", arguments, limits, {"/program.py": source}, stdin=given)
    try:
        output = _read(sandbox, limits.seconds, MAX_OUTPUT)
        if output is None:
            return Reason.TIMEOUT
        status = _ended(sandbox)
    finally:
        sandbox.kill()
    if status in _OUT_OF_TIME:
        return Reason.TIMEOUT
    same = status == 0 and len(output) <= MAX_OUTPUT and same_output(output.decode("utf-8", "replace"), case["output"])
    return Reason.MATCH if same else Reason.MISMATCH


def same_output(found: str, expected: str) -> bool:
    """Equal line by line, but for white space; in a line that differs, words that are equal numbers are equal."""
    lines, reference = _lines(found), _lines(expected)
    return len(lines) == len(reference) and all(map(_same_line, lines, reference))


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def _same_line(found: list[str], expected: list[str]) -> bool:
    return len(found) == len(expected) and all(map(_same_word, found, expected))


def _same_word(found: str, expected: str) -> bool:
    if found == expected:
        return True
    try:
        return len(found) < 100 and Decimal(found) == Decimal(expected)
    except InvalidOperation:
        return False
