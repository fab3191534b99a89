"""Rows of the benchmarks of programs, as their sources write them, become problems and tests."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.core.config.problem_sets import Columns
from evals.core.errors import UserError
from evals.problems.programs import program_problem

ENTRIES = Path(__file__).resolve().parents[3] / "config/benchmarks"


def read(name: str, row: dict[str, Any]) -> tuple[str, Any]:
    """A row as the entry of config/benchmarks reads it."""
    entry = yaml.safe_load((ENTRIES / f"{name}.yaml").read_text())
    return program_problem(row, Columns.parse(entry["columns"], name), entry["tests_format"], "row 1")


def test_humaneval_keeps_imports_and_helpers_of_the_prompt() -> None:
    prompt = "import math\n\ndef helper(x):\n    return x\n\ndef solve(x: int) -> int:\n    '''Twice.'''\n"
    row = {"task_id": "HumanEval/0", "prompt": prompt, "test": "def check(candidate): ...", "entry_point": "solve"}
    text, tests = read("humaneval_plus", row)
    assert text == prompt
    assert tests["preamble"] == "import math\n\ndef helper(x):\n    return x\n\n"
    assert (tests["kind"], tests["entry_point"]) == ("program", "solve")


def test_mbpp_takes_the_name_from_the_test_and_shows_one() -> None:
    test = "def assertion(out, exp, atol): ...\ninputs = []\nfor inp in inputs:\n    assertion(shared(*inp), 1, 0)\n"
    row = {"task_id": 2, "prompt": "Find shared elements.", "test": test, "test_list": ["assert shared(1) == 1", "x"]}
    text, tests = read("mbpp_plus", row)
    assert text == "Find shared elements.\n\nYour code should pass this test:\n\nassert shared(1) == 1"
    assert (tests["entry_point"], tests["preamble"]) == ("shared", "")


def packed(cases: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def contest_row(kind: str, public: list[tuple[str, str]], private: list[tuple[str, str]]) -> dict[str, Any]:
    def cases(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
        return [{"input": given, "output": output, "testtype": kind} for given, output in pairs]

    return {
        "question_id": "abc_1",
        "question_content": "Add.",
        "public_test_cases": json.dumps(cases(public)),
        "private_test_cases": packed(cases(private)),
        "starter_code": "" if kind == "stdin" else "class Solution:\n    def add(self, a, b):\n        ",
        "metadata": json.dumps({} if kind == "stdin" else {"func_name": "add"}),
    }


def test_livecodebench_scripts_and_functions() -> None:
    text, tests = read("livecodebench", contest_row("stdin", [("1 2\n", "3\n")], [("4 5\n", "9\n")]))
    assert "standard input" in text
    assert tests["cases"] == [{"input": "1 2\n", "output": "3\n"}, {"input": "4 5\n", "output": "9\n"}]
    text, tests = read("livecodebench", contest_row("functional", [("1\n[2]", "3")], [("4\n[5]", '"x"')]))
    assert "class Solution" in text
    assert tests["entry_point"] == "Solution.add"
    assert tests["cases"] == [{"arguments": [1, [2]], "expected": 3}, {"arguments": [4, [5]], "expected": "x"}]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("livecodebench", {"private_test_cases": "%%%"}),
        ("livecodebench", {"private_test_cases": base64.b64encode(b"x").decode()}),
        ("livecodebench", {"public_test_cases": "5"}),
        ("humaneval_plus", {"entry_point": None}),
        ("mbpp_plus", {"test": "nothing is called"}),
    ],
)
def test_rows_of_another_format_are_one_line(name: str, change: dict[str, Any]) -> None:
    row = contest_row("stdin", [("1", "1")], [("1", "1")])
    row |= {"task_id": "x", "prompt": "p", "test": "t", "entry_point": "f", "test_list": ["t"]}
    with pytest.raises(UserError, match=r"^row 1: ") as error:
        read(name, row | change)
    assert "\n" not in str(error.value)
