"""Benchmarks of programs: their problems, and the tests that go into a file of their own.

Two upstream formats are known: EvalPlus (HumanEval+, MBPP+), whose test is a Python program, and LiveCodeBench, whose
tests are pairs of input and output. Tests are data here; what is run, and where, is the grader's (evals.grading.code).
"""

import base64
import binascii
import json
import pickletools
import re
import zlib
from collections.abc import Mapping
from typing import Any

from evals.core.config.problem_sets import Columns
from evals.core.errors import InvalidInput
from evals.grading.code.tests import check_tests

Row = Mapping[str, Any]

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
