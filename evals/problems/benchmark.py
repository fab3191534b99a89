r"""The problems of a benchmark from the rows of its source: columns, repairs, order of options, exclusions, count.

A benchmark's file names the repairs that its reference answers need. They change the form of an answer, never its
value; each applied one is recorded in the manifest of the problem set. Problems with wrong answers are excluded, with
the reason.

Two upstream formats of programs are known: EvalPlus (HumanEval+, MBPP+), whose test is a Python program, and
LiveCodeBench, whose tests are pairs of input and output. Tests are data here, and go into a file of their own; what is
run, and where, is the grader's (evals.grading.code).
"""

import base64
import binascii
import hashlib
import json
import pickletools
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.core.config.problem_sets import BenchmarkProblems, Columns
from evals.core.errors import InvalidInput
from evals.core.files import sha256_bytes
from evals.grading.boxes import last_boxes
from evals.grading.code.tests import check_tests, tests_hash
from evals.grading.multiple_choice import LETTERS
from evals.problems.releases import RELEASES
from evals.problems.source import Source

Row = dict[str, Any]

_HASHED_ID_LENGTH = 12
_DOLLAR = re.compile(r"(?<!\\)\$")
_INTEGER = re.compile(r"([+-]?)0*(\d+)(?:\.0+)?")
_E_NOTATION = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))[eE]([+-]?\d+)")
_POINT_QUOTIENT = re.compile(r"([+-]?)(\d+)\.?/(\d+)\.?")
_NUMPY = re.compile(r"\b(?:np|numpy|math)\.(?=(?:arc)?(?:sin|cos|tan|log|sqrt|exp)\b)")
_BRACED_EXPONENTIAL = re.compile(r"\\exp\s*\{([^{}]*)\}")


@dataclass(frozen=True)
class ReadProblems:
    """The content of a source."""

    rows: list[Row]  # {"id", "problem", "answer", "family"}, with the order of the "options" where there are any
    repairs: list[Row]  # {"id", "repairs", "was", "is"} of every repaired reference answer
    excluded: list[Row]  # {"id", "reason"} of every problem left out
    tests: Mapping[str, Mapping[str, Any]]  # of a benchmark of programs, by id


def read_benchmark(settings: BenchmarkProblems) -> ReadProblems:
    """Read a benchmark's problems, in the source's order."""
    source = Source(settings, settings.gated)
    columns, where = _columns(settings, source), source.where
    if isinstance(settings.columns, str):
        released = source.read_release(settings.columns)
        if columns.id is None:  # repeated rows count once
            released = list({(row["problem"], row["answer"]): row for row in released}.values())
    else:
        released = source.read(_names(columns))
    if len(released) != (settings.count or len(released) or 1):
        raise InvalidInput(where, "", f"has {len(released)} problems; expected {settings.count or 'one or more'}")
    reader = _Reader(settings, columns)
    make = {"math": reader.answer, "choice": reader.choice, "code": reader.program}[settings.grader]
    rows = [
        make(row, place := f"{where}: row {number}")
        | ({} if columns.topic is None else {"topic": _text(row[columns.topic], columns.topic, place)})
        for number, row in enumerate(released, start=1)
    ]
    golds = {row["id"]: row["answer"] for row in rows}
    if len(golds) != len(rows):
        raise InvalidInput(where, f"column {columns.id or columns.problem}", "two problems have the same value")
    excluded = {f"{settings.name}-{exclusion.id}": exclusion for exclusion in settings.exclude or ()}
    for identifier, exclusion in excluded.items():
        if golds.get(identifier) != exclusion.answer:
            complaint = f"the gold of {identifier} is {golds.get(identifier)!r}, not {exclusion.answer!r}"
            raise InvalidInput(where, "exclude", f"{complaint}; the reason to exclude it may be gone")
    return ReadProblems(
        [row for row in rows if row["id"] not in excluded],
        [row for row in reader.repairs if row["id"] not in excluded],
        [{"id": identifier, "reason": exclusion.reason} for identifier, exclusion in excluded.items()],
        reader.tests,
    )


def _names(columns: Columns) -> list[str]:
    values = columns.model_dump().values()
    names = [name for value in values for name in (value if isinstance(value, tuple) else [value])]
    return [name for name in dict.fromkeys(names) if name is not None]


def _columns(settings: BenchmarkProblems, source: Source) -> Columns:
    """The columns of the source; a release's rows have the project's own names, and a local copy may have them."""
    declared = settings.columns
    if isinstance(declared, str):
        return Columns(id="id" if RELEASES[declared].has_ids else None, problem="problem", answer="answer")
    if declared is not None and (not source.is_file or settings.repository is None or source.has(_names(declared))):
        return declared
    columns: dict[str, str | None] = {"id": "id", "problem": "problem", "answer": "answer"}
    if settings.grader == "code":
        columns |= {"answer": None, "tests": "tests"}
    if settings.grader == "choice":
        columns["options"] = "options"
    if declared is not None and declared.id is None:
        columns["id"] = None
    if declared is not None and declared.topic is not None:
        columns["topic"] = "topic"
    return Columns.parse(columns, source.where)


class _Reader:
    """Makes problems of the rows of one source; keeps what was repaired, and the tests of programs by id."""

    def __init__(self, settings: BenchmarkProblems, columns: Columns) -> None:
        self._settings, self._columns = settings, columns
        self.repairs: list[Row] = []
        self.tests: dict[str, Mapping[str, Any]] = {}

    def answer(self, row: Row, where: str) -> Row:
        """A problem whose reference answer is a text."""
        problem = _text(row[self._columns.problem], self._columns.problem, where)
        was = _text(row[str(self._columns.answer)], str(self._columns.answer), where)
        if self._settings.boxed_answer:
            was = ", ".join(last_boxes(was) or [was])
        gold, applied = repair(was, self._settings.repairs or ())
        identifier = self._identifier(row, problem)
        if applied:
            self.repairs.append({"id": identifier, "repairs": applied, "was": was, "is": gold})
        return {"id": identifier, "problem": problem, "answer": gold, "family": self._settings.name}

    def choice(self, row: Row, where: str) -> Row:
        """A problem with options, in an order of its own."""
        question = _text(row[self._columns.problem], self._columns.problem, where)
        column = self._columns.options
        values = [row[name] for name in column] if isinstance(column, tuple) else row[column or "options"]
        if not isinstance(values, list) or not 2 <= len(values) <= len(LETTERS):
            raise InvalidInput(where, str(column), f"is no list of 2 to {len(LETTERS)} options")
        options = [_text(value, str(column), where) for value in values]
        identifier = self._identifier(row, question)
        order = permutation(identifier, len(options), self._settings.option_seed or 0)
        letter = "A"  # of the right option in the source's order: the first, unless a column says which
        if self._columns.answer is not None:
            letter = str(row[self._columns.answer]).strip()
            if len(letter) != 1 or letter not in LETTERS[: len(options)]:
                raise InvalidInput(where, self._columns.answer, f"is no letter of its {len(options)} options")
        return {
            "id": identifier,
            "problem": with_options(question, [options[index] for index in order]),
            "answer": LETTERS[order.index(LETTERS.index(letter))],
            "family": self._settings.name,
            "options": order,
        }

    def program(self, row: Row, where: str) -> Row:
        """A problem whose answer is a program, with the hash of the tests that it has to pass."""
        tests_format = "own" if self._columns.tests == "tests" else str(self._settings.tests_format)
        problem, tests = program_problem(row, self._columns, tests_format, where)
        identifier = self._identifier(row, problem)
        self.tests[identifier] = tests
        gold = {"answer": tests.get("entry_point", "standard output"), "tests_sha256": tests_hash(tests)}
        return {"id": identifier, "problem": problem.strip(), "family": self._settings.name, **gold}

    def _identifier(self, row: Row, text: str) -> str:
        """The upstream id after the benchmark's name; a hash of the text where upstream has none."""
        if self._columns.id is None:
            return f"{self._settings.name}-{sha256_bytes(text.encode('utf-8'))[:_HASHED_ID_LENGTH]}"
        return f"{self._settings.name}-{row[self._columns.id]}"


def _text(value: Any, column: str, where: str) -> str:
    """A cell as text: numbers as written, a list of one item as that item."""
    if isinstance(value, list):
        value = ", ".join(str(item) for item in value)
    if value is None or not str(value).strip():
        raise InvalidInput(where, column, "is empty")
    return str(value).strip()


def permutation(identifier: str, count: int, seed: int) -> list[int]:
    """The order in which a problem's options are shown: ``[2, 0, 1]`` shows the third one first.

    A function of the problem and the seed alone, so that neither the order of calls nor the other problems matter.
    Each option is placed by a hash of its own, so that all orders are equally likely.
    """
    return sorted(range(count), key=lambda option: hashlib.sha256(f"{seed}/{identifier}/{option}".encode()).digest())


def with_options(question: str, options: Sequence[str]) -> str:
    """The question and its lettered options, a line each."""
    lines = [f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)]
    return "\n".join([f"{question}\n", *lines])


def dollars(gold: str) -> str:
    """Wrapped in dollar signs, all of it or part by part, or with one too many."""
    if not _DOLLAR.search(gold):
        return gold
    return re.sub(r"\s{2,}", " ", _DOLLAR.sub("", gold)).strip().removesuffix(".")


def integer(gold: str) -> str:
    """``033`` or ``33.0`` for 33."""
    match = _INTEGER.fullmatch(gold)
    return match.expand(r"\1\2") if match else gold


def e_notation(gold: str) -> str:
    """``8.7e8``, in which a reader of LaTeX sees Euler's number."""
    if not (match := _E_NOTATION.fullmatch(gold)):
        return gold
    power = f"10^{{{int(match[2])}}}"
    return power if match[1] == "1" else rf"{match[1]} \times {power}"


def python(gold: str) -> str:
    r"""Python in place of LaTeX: ``np.arcsin(10/13)``, ``-1./3``; also ``\exp{a*t}``, which takes no braces."""
    if match := _POINT_QUOTIENT.fullmatch(gold):
        return match.expand(r"\1\\frac{\2}{\3}") if "." in gold else gold
    gold = _NUMPY.sub(r"\\", gold)
    return _BRACED_EXPONENTIAL.sub(lambda match: f"e^{{{match[1].replace('*', '')}}}", gold)


REPAIRS: dict[str, Callable[[str], str]] = {
    repair.__name__: repair for repair in (dollars, integer, e_notation, python)
}
"""Name in an entry -> repair."""


def repair(gold: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """The gold after the named repairs, in their order, and which of them changed it."""
    applied = []
    gold = gold.strip()
    for name in names:
        repaired = REPAIRS[name](gold)
        if repaired != gold:
            applied.append(name)
        gold = repaired.strip()
    return gold, applied


_CALLED = re.compile(r"^\s*assertion\(\s*(\w+)\(\*inp\)", re.MULTILINE)
_TEXT_OPCODES = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_OTHER_OPCODES = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP")

LIVECODEBENCH_PREAMBLE = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
sys.setrecursionlimit(50000)
"""
"""Imports that solutions of programming contests expect."""


def program_problem(row: Row, columns: Columns, tests_format: str, where: str) -> tuple[str, Mapping[str, Any]]:
    """Read a row's text as it is asked, and its tests; ``where`` names the row in messages."""
    problem = row[columns.problem]
    if not isinstance(problem, str) or not problem.strip():
        raise InvalidInput(where, columns.problem, "is empty")
    try:
        if tests_format == "own":
            text, tests = problem, row[str(columns.tests)]
        else:
            read = {"evalplus": _evalplus, "livecodebench": _livecodebench}[tests_format]
            text, tests = read(row, columns, problem)
    except (KeyError, TypeError, IndexError, ValueError, zlib.error) as error:
        raise InvalidInput(where, "tests", f"are not those of {tests_format} ({error})") from None
    return text, check_tests(tests, where)


def _evalplus(row: Row, columns: Columns, problem: str) -> tuple[str, Any]:
    """A test that defines ``check``, or that calls the function by name; the prompt may hold imports and helpers."""
    test = row[str(columns.tests)]
    name = row[columns.entry_point] if columns.entry_point is not None else _CALLED.findall(test)[-1]
    before = re.split(rf"^def\s+{re.escape(name)}\b", problem, maxsplit=1, flags=re.MULTILINE)
    preamble = before[0] if len(before) > 1 else ""
    text = problem
    if columns.examples is not None:
        text = f"{problem.strip()}\n\nYour code should pass this test:\n\n{row[columns.examples][0].strip()}"
    return text, {"kind": "program", "entry_point": name, "preamble": preamble, "test": test}


def _livecodebench(row: Row, columns: Columns, problem: str) -> tuple[str, Any]:
    cases = [case for column in columns.tests or () for case in _livecodebench_cases(row[column])]
    starter = (row[columns.starter or ""] or "").strip()
    if cases[0]["testtype"] == "stdin":
        text = f"{problem.strip()}\n\nRead the input from standard input and write the answer to standard output."
        pairs = [{"input": case["input"], "output": case["output"]} for case in cases]
        return text, {"kind": "stdin", "preamble": LIVECODEBENCH_PREAMBLE, "cases": pairs}
    name = json.loads(row[columns.metadata or ""])["func_name"]
    text = f"{problem.strip()}\n\nUse this starting code:\n\n```python\n{starter}\n```"
    entry_point = f"Solution.{name}" if re.search(r"^class Solution\b", starter, re.MULTILINE) else name
    calls = [
        {
            "arguments": [json.loads(line) for line in case["input"].split("\n") if line.strip()],
            "expected": json.loads(case["output"]),
        }
        for case in cases
    ]
    return text, {"kind": "calls", "entry_point": entry_point, "preamble": LIVECODEBENCH_PREAMBLE, "cases": calls}


def _livecodebench_cases(text: str) -> list[dict[str, Any]]:
    """Cases as JSON, or as JSON within a pickled string within zlib within base64."""
    try:
        cases = json.loads(text)
    except ValueError:
        try:
            cases = json.loads(unpickled_text(zlib.decompress(base64.b64decode(text, validate=True))))
        except binascii.Error as error:
            raise ValueError(str(error)) from None
    return list(cases)


def unpickled_text(pickled: bytes) -> str:
    """The string of a pickle that holds one string and nothing else. It is disassembled, never loaded."""
    texts = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in _TEXT_OPCODES:
            texts.append(argument)
        elif opcode.name not in _OTHER_OPCODES:
            raise ValueError(f"a pickle of more than text: {opcode.name}")
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise ValueError(f"a pickle of {len(texts)} texts")
    return texts[0]
