"""Programs against their problems' tests. Nothing of either is ever run in this process."""

import json
import os
import re
import signal
import textwrap
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from decimal import Decimal, ExtendedContext, localcontext
from functools import partial
from itertools import starmap, zip_longest
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.records import Sample
from evals.grading.code import VERSION
from evals.grading.code.sandbox import MAX_OUTPUT, Limits, in_memory, start
from evals.grading.code.tests import read_tests
from evals.grading.verdict import CODE, Outcome, Reason, Verdict
from evals.grading.visible import visible_part

CANDIDATE = Limits()
EXAMINER = Limits(cpu=20, memory=2 * 1024**3)
CASE = Limits(cpu=6)

PARAMETERS: Mapping[str, Any] = {
    "grader_version": VERSION,
    "kind": CODE,
    "limits": {"candidate": asdict(CANDIDATE), "examiner": asdict(EXAMINER), "case": asdict(CASE)},
}
"""Everything that decides a verdict besides program and tests."""

_GRACE = 10.0  # seconds of wall-clock time in which a process that has closed its output ends
_OUT_OF_TIME = {128 + signal.SIGXCPU, -signal.SIGXCPU}
_FENCE = re.compile(  # also behind the mark of a list
    r"^([ \t]{0,24}(?:(?:[*+-]|\d{1,3}[.)])[ \t]{1,4})?)(```+|~~~+)[ \t]*([\w+.-]*)[^\n]*$", re.MULTILINE
)
_FUTURE = re.compile(r"^from __future__ import (?:\([^()]*\)|[^\n;]*);?", re.MULTILINE)
_PYTHON = ("", "python", "python3", "py")
_WORD = re.compile(r"\n|[^\s]+")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.ASCII | re.IGNORECASE)


def grade_programs(samples: Sequence[Sample], tests_file: Path, workers: int) -> list[Verdict]:
    """One verdict per sample, in order; one problem's tests are held at a time, equal programs are run once."""
    places: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        places.setdefault(str(sample.problem_id), []).append(index)
    verdicts: dict[int, Verdict] = {}
    with ThreadPoolExecutor(workers) as pool:
        for identifier, tests in read_tests(tests_file):
            extracted: dict[int, str | Reason] = {}
            for index in places.get(identifier, []):
                truncated, thinking = samples[index].finish_reason == "length", samples[index].in_thinking or False
                extracted[index] = extract_program(samples[index].text, tests.get("entry_point"), truncated, thinking)
            programs = list(dict.fromkeys(program for program in extracted.values() if not isinstance(program, Reason)))
            outcomes = dict(zip(programs, pool.map(partial(_outcome, tests), programs), strict=True))
            for index, program in extracted.items():
                if isinstance(program, Reason):
                    verdicts[index] = Verdict.of(None, program, 0.0)
                else:
                    verdicts[index] = Verdict.of(program, *outcomes[program])
                    # the time is charged to the first sample that has this program
                    outcomes[program] = outcomes[program]._replace(seconds=0.0)
    for index, sample in enumerate(samples):
        if index not in verdicts:
            raise UserError(f"{tests_file}: has no tests of problem {sample.problem_id!r}")
    return [verdicts[index] for index in range(len(samples))]


def _outcome(tests: Mapping[str, Any], program: str) -> Outcome:
    """Run a program against its tests, whatever its output makes the grader raise."""
    begin = time.perf_counter()
    try:
        return Outcome(run_tests(program, tests), time.perf_counter() - begin)
    except UserError:  # of the machine, and not of the program
        raise
    except Exception as error:
        return Outcome.of_exception(error, time.perf_counter() - begin)


def extract_program(text: str, entry_point: str | None, truncated: bool, in_thinking: bool = False) -> str | Reason:
    """The program that a response commits to, its last closed Markdown block of Python, or why there is none.

    Where blocks define the entry point, a function or ``Class.method``, it is the last of those; a script has none.
    """
    text = visible_part(text, in_thinking)
    blocks = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[2].startswith(opened[2]) and not fence[3] and len(fence[1]) < len(opened[1]) + 4:
            content = text[opened.end() + 1 : fence.start()]
            if opened[1]:
                content = re.sub(rf"^[ \t]{{1,{len(opened[1])}}}", "", content, flags=re.MULTILINE)
            content = textwrap.dedent(content)
            if opened[3].lower() in _PYTHON and content.strip():
                blocks.append(content)
            opened = None
    if not blocks:
        return Reason.TRUNCATED if truncated else Reason.NO_ANSWER
    if entry_point is None:
        return blocks[-1]
    name = re.escape(entry_point.partition(".")[0])
    defines = re.compile(rf"^(?:async\s+)?(?:def|class)\s+{name}\b|^{name}\s*=", re.MULTILINE)
    return next((block for block in reversed(blocks) if defines.search(block)), blocks[-1])


def run_tests(program: str, tests: Mapping[str, Any]) -> Reason:
    """Run ``program`` against ``tests`` (:mod:`evals.grading.code.tests`); ``invalid_gold`` if they do not test it."""
    future = "\n".join(_FUTURE.findall(program))  # which Python allows at the beginning of a program alone
    source = f"{future}\n{tests.get('preamble', '')}\n{_FUTURE.sub('', program)}"
    if tests["kind"] != "stdin":
        return _examined(source, tests)
    for case in tests["cases"]:
        if (reason := _case(source, case)) is not Reason.MATCH:
            return reason
    return Reason.MATCH if tests["cases"] else Reason.INVALID_GOLD


def _examined(source: str, tests: Mapping[str, Any]) -> Reason:
    """A candidate that answers calls, and an examiner that makes them; each in a sandbox, two pipes between them."""
    call_reader, call_writer = os.pipe()
    answer_reader, answer_writer = os.pipe()
    with ExitStack() as ends:
        calls, answers = (ends.enter_context(os.fdopen(end, "rb", 0)) for end in (call_reader, answer_reader))
        outgoing, incoming = (ends.enter_context(os.fdopen(end, "wb", 0)) for end in (call_writer, answer_writer))
        served = ["serve", str(tests["entry_point"])]
        candidate = start("candidate.py", served, CANDIDATE, {"/program.py": source}, stdin=calls, stdout=incoming)
        ends.callback(candidate.kill)
        pipes = (outgoing.fileno(), answers.fileno())
        files = {"/test.json": json.dumps(dict(tests))}
        examiner = start("examiner.py", list(map(str, pipes)), EXAMINER, files, descriptors=pipes)
        ends.callback(examiner.kill)
        for end in (calls, answers, outgoing, incoming):  # ours: each side has to see the other one end
            end.close()
        line = examiner.read(EXAMINER.seconds, 4096)
        # The examiner's, to which no candidate can write; nothing if it was killed, by its own limits, on what the
        # candidate returned.
        verdict = json.loads(line or b'{"reason": "mismatch", "raised": null}')
        reason = Reason.TIMEOUT if line is None else Reason(verdict["reason"])
        if reason is Reason.MISMATCH and verdict["raised"] == "MemoryError":
            reason = Reason.MEMORY
        if reason is Reason.MISMATCH and verdict["raised"] == "ended" and candidate.wait(_GRACE) in _OUT_OF_TIME:
            reason = Reason.TIMEOUT
    examiner.require_begun()
    if reason is not Reason.INVALID_GOLD:  # of tests that call nothing: they may be done before it has begun
        candidate.require_begun()
    return reason


def _case(source: str, case: Mapping[str, str]) -> Reason:
    """Judge a script that reads standard input and writes standard output."""
    with in_memory(case["input"].encode("utf-8", "replace")) as given:
        sandbox = start("candidate.py", ["script"], CASE, {"/program.py": source}, stdin=given)
    try:
        output = sandbox.read(CASE.seconds, MAX_OUTPUT)
        status = None if output is None else sandbox.wait(_GRACE)
    finally:
        sandbox.kill()
    sandbox.require_begun()
    if output is None or status in _OUT_OF_TIME:
        return Reason.TIMEOUT
    same = status == 0 and len(output) <= MAX_OUTPUT and same_output(output.decode("utf-8", "replace"), case["output"])
    return Reason.MATCH if same else Reason.MISMATCH


def same_output(printed: str, expected: str) -> bool:
    """Return whether all lines are equal, but for white space; words that are equal numbers are equal."""
    words, wanted = ((match[0] for match in _WORD.finditer(text.strip())) for text in (printed, expected))
    return all(starmap(_same_word, zip_longest(words, wanted, fillvalue="")))


def _same_word(printed: str, expected: str) -> bool:
    if printed == expected or len(printed) >= 100 or not (_NUMBER.fullmatch(printed) and _NUMBER.fullmatch(expected)):
        return printed == expected
    with localcontext(ExtendedContext):  # in which 1e99..9 of nineteen nines is no number, and raises nothing
        return Decimal(printed) == Decimal(expected)
