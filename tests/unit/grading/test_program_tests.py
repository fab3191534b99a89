"""The verifier of programs by the tests in their problem's answer (config/verifiers/program_tests.py)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.grading import Case, GradingPool
from evals.grading.code.sandbox import require_sandbox

VERIFIER = Path(__file__).parents[3] / "config/verifiers/program_tests.py"
ADD: dict[str, Any] = {"inputs": ["1 2\n", "4 5\n", ["10", "20"]], "outputs": ["3\n", "9\n", ["30"]]}
FLIPS = {"fn_name": "flips", "inputs": [["0101"], ["1111"]], "outputs": [[0], 2]}
READ = "a, b = map(int, input().split())\n"
LOOK_AROUND = """import re, sys
frame, seen = sys._getframe(), ""
while frame:
    seen, frame = seen + repr(frame.f_locals), frame.f_back
print(*re.findall("s[e]cret", seen)[:1])
"""
ATTACH = """import ctypes, os
own, attach = (os.getpid(), os.getppid()), ctypes.CDLL(None).ptrace
print(sum(attach(16, pid, None, None) == 0 for pid in range(1, 200) if pid not in own))
"""
"""Counts the processes whose memory it may read, such as the verifier's, which has the outputs."""
COUNT = "min(sum(c != str((i + k) % 2) for i, c in enumerate(s)) for k in (0, 1))"


@pytest.fixture(scope="module")
def pool() -> Iterator[GradingPool]:
    require_sandbox()
    with GradingPool(1, 2.0, verifier=VERIFIER) as pool:
        yield pool


@pytest.fixture(scope="module")
def patient_pool() -> Iterator[GradingPool]:
    """The limit for programs that end: a slow machine must not fail them."""
    require_sandbox()
    with GradingPool(1, 600.0, verifier=VERIFIER) as pool:
        yield pool


@pytest.mark.parametrize(
    ("program", "tests", "reward"),
    [
        ("import sys\na, b = map(int, sys.stdin.buffer.read().split())\nprint(float(a + b))", ADD, 1),
        ("a, b = map(int, open(0).read().split())\nprint(a + b)\nexit()", ADD, 1),
        (READ + "print(3 if a == 1 else 0)", ADD, 0),
        (READ + "print(a + b)\nraise ValueError", ADD, 0),
        ("print(", ADD, 0),
        (READ + "while a == 4: pass\nprint(a + b)", ADD, 0),
        ("while True: print(1)", ADD, 0),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", ADD, 0),
        (f"def flips(s: str) -> int:\n    print('noise', end='')\n    return {COUNT}", FLIPS, 1),
        (f"class Solution:\n    def flips(self, s):\n        return {COUNT}", FLIPS, 1),
        ("def flips(s):\n    return 0", FLIPS, 0),
        ("import sys\nprint(len(sys.stdin.read()))", {"inputs": ["a" * 200_000], "outputs": ["200000"]}, 1),
        ("print('[[[')\nraise SystemExit", FLIPS, 0),
        (ATTACH, {"inputs": ["1"], "outputs": ["0"]}, 1),
        (LOOK_AROUND, {"inputs": ["1"], "outputs": ["secret"]}, 0),
    ],
)
def test_a_program_has_to_pass_all_tests(
    pool: GradingPool, patient_pool: GradingPool, program: str, tests: Any, reward: int
) -> None:
    response = f"Let me see.\n```python\nprint(0)\n```\nBetter:\n```python\n{program}\n```\n"
    grading = patient_pool if reward else pool
    (verdict,) = grading.grade([Case(response, "", problem={"answer": json.dumps(tests)})])
    assert (verdict.error, verdict.reward) == (None, reward)


def test_no_program_is_no_reward_and_tests_that_cannot_be_read_are_an_error(pool: GradingPool) -> None:
    text = f"```python\n{READ}print(a + b)\n"  # a block that was never closed
    cut, untested = pool.grade(Case(text, "", problem={"answer": json.dumps(each)}) for each in (ADD, {"inputs": []}))
    assert (cut.reward, cut.error) == (0, None)
    assert "KeyError: 'outputs'" in str(untested.error)
