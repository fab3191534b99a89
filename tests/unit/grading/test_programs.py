"""What surrounds the sandbox: programs in responses, values between processes, tests on disk, and the refusal."""

import json
import math
import os
import pickle
import platform
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.core.errors import UserError
from evals.core.files import read_json, read_jsonl, write_jsonl
from evals.grading import Case, GradingPool
from evals.grading.code import sandbox
from evals.grading.code import tests as files_of_tests
from evals.grading.code.run import extract_program, same_output
from evals.grading.code.sandbox import require_sandbox
from evals.grading.code.sandboxed import values
from evals.grading.verdict import Reason
from evals.problems.problem_set import write_benchmark
from rlvr.study.source_files import REPOSITORY
from tests.artifacts import write_rows
from tests.commands import ended

FENCE = "```"


def block(code: str, language: str = "python") -> str:
    return f"{FENCE}{language}\n{code}\n{FENCE}\n"


@pytest.mark.parametrize(
    ("text", "entry_point", "expected"),
    [
        (block("def f(): pass"), "f", "def f(): pass\n"),
        (block("def f(): pass") + "Use it:\n" + block("print(f())"), "f", "def f(): pass\n"),
        (block("def f(): 1") + "Better:\n" + block("def f(): 2"), "f", "def f(): 2\n"),
        (block("class Solution:\n    pass") + block("Solution().f()", ""), "Solution.f", "class Solution:\n    pass\n"),
        (block("f = lambda: 1"), "f", "f = lambda: 1\n"),
        (block("x = 1") + block("y = 2"), None, "y = 2\n"),
        (block("x = 1") + block("echo", "bash"), None, "x = 1\n"),
        ("<think>" + block("x = 1") + "</think>" + block("x = 2"), None, "x = 2\n"),
        ("<think>" + block("x = 1"), None, Reason.NO_ANSWER),
        ("def f(): pass", "f", Reason.NO_ANSWER),
        (f"{FENCE}python\ndef f(): pass", "f", Reason.NO_ANSWER),
        (f"~~~py\nx = '{FENCE}'\n~~~", None, f"x = '{FENCE}'\n"),
        ("1. Write\n\n    " + block("def f():\n    return 1").replace("\n", "\n    "), "f", "def f():\n    return 1\n"),
        (
            "<|channel|>analysis<|message|>" + block("x = 1") + "<|channel|>final<|message|>" + block("x = 2"),
            None,
            "x = 2\n",
        ),
        (block("   "), None, Reason.NO_ANSWER),
        (f"        {FENCE}python\n        x = 1\n        {FENCE}\n", None, "x = 1\n"),
        (block("        x = 1\n        y = 2"), None, "x = 1\ny = 2\n"),
        (f"1. {FENCE}python\n   x = 1\n   {FENCE}\n", None, "x = 1\n"),
        ("", None, Reason.NO_ANSWER),
    ],
)
def test_the_last_block_that_defines_it_counts(text: str, entry_point: str | None, expected: str | Reason) -> None:
    assert extract_program(text, entry_point, truncated=False) == expected


def test_a_block_that_was_cut_off_is_no_program() -> None:
    assert extract_program(f"{FENCE}python\nx = 1", None, truncated=True) is Reason.TRUNCATED
    assert extract_program(f"{FENCE}python\nx = 1", None, truncated=False) is Reason.NO_ANSWER
    assert extract_program(block("x = 1") + "and", None, truncated=True) == "x = 1\n"


_DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(_DATA)
def test_values_keep_type_and_content(value: Any) -> None:
    line = values.dump(value)
    assert "\n" not in line and line.isascii()
    assert repr(values.load(line)) == repr(value)


def test_values_at_the_edges() -> None:
    assert values.load(values.dump({1, 2})) == {1, 2} and isinstance(
        values.load(values.dump(frozenset([1]))), frozenset
    )
    assert math.isnan(values.load(values.dump(math.nan)))
    assert values.load(values.dump(10**6000)) == 10**6000
    assert values.load(values.dump({(1, 2): None, 3: "é"})) == {(1, 2): None, 3: "é"}
    for unsendable in (object(), [iter(())], {1: print}, range):
        with pytest.raises(values.Unsendable):
            values.dump(unsendable)
    for line in ("", "{", "1", '{"int": 5}', '{"set": [{"list": []}]}', '{"x": 1}', "[1]", '{"int": "1", "str": []}'):
        with pytest.raises(ValueError):
            values.load(line)


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("1  2 \n3", "1 2\n3\n\n", True),
        ("0.50", "0.5", True),
        ("1e3", "1000", True),
        ("0.5000001", "0.5", False),
        ("1\n2", "1 2", False),
        ("yes", "YES", False),
        ("", "0", False),
        ("nan", "nan", True),
        ("1" * 200, "2", False),
        ("1e" + "9" * 19, "5", False),
        ("-1e-" + "9" * 19, "0", False),
        ("0_4", "4", False),
        ("\uff14", "4", False),
        ("Infinity", "inf", False),
        ("1\v2", "1\n2", False),
        ("\n1\r\n2", "1\n2", True),
        ("1\n2\n3", "1\n2", False),
        ("1\n\n2", "1\n2", False),
    ],
)
def test_output_is_compared_by_lines_and_numbers(found: str, expected: str, same: bool) -> None:
    assert same_output(found, expected) is same


def decision(number: int, argument: int = 0, architecture: int | None = None, forks: bool = True) -> int:
    """What the filter answers to a system call: a slow reading of its instructions, one after the other."""
    machine = platform.machine()
    data = struct.pack("=IIQQ", number, architecture or sandbox.SYSTEM_CALLS[machine]["architecture"], 0, argument)
    program = list(struct.iter_unpack("=HBBI", sandbox.seccomp_filter(forks)))
    place = accumulator = 0
    while True:
        code, if_true, if_false, operand = program[place]
        place += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, operand)[0]
        else:
            true = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: accumulator & operand}[code]
            place += if_true if true else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_it_names_and_allows_the_rest(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    calls = sandbox.SYSTEM_CALLS[machine]
    refused, on_others = (set(calls[kind].values()) for kind in ("refused", "refused on others"))
    clone, clone3, opened = (calls[name] for name in ("clone", "clone3", "socket"))
    for number in range(600):
        if number in refused or number == clone3:
            assert decision(number) >> 16 == 0x5
        elif number in on_others:
            assert decision(number) == 0x7FFF0000 and decision(number, 2) >> 16 == 0x5
        elif number not in (clone, opened):
            assert decision(number, 2) == 0x7FFF0000
        alone = decision(number, 17, forks=False)
        assert alone == (0x50001 if number in {clone, *calls["forks"].values()} else decision(number, 17))
    thread = 0x3D0F00
    assert decision(clone, thread) == decision(clone, thread, forks=False) == decision(clone, 17) == 0x7FFF0000
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decision(clone, flag | 17) >> 16 == 0x5
    assert decision(opened, 1) == 0x7FFF0000
    for family in (2, 10, 16, 38, 40):
        assert decision(opened, family) >> 16 == 0x5
    assert decision(59 | 0x40000000) >> 16 == 0x5
    assert decision(59, architecture=3) == 0x80000000


def test_an_unknown_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(UserError, match="riscv64 processors; accepted: x86_64, aarch64"):
        sandbox.seccomp_filter(False)


def code_benchmark(root: Path) -> Path:
    """A benchmark of programs in the project's own format, as the rule `read_problems` makes it."""
    tests = {"kind": "program", "entry_point": "f", "test": "def check(candidate):\n    assert candidate(2) == 4"}
    write_jsonl(root / "own.jsonl", [{"id": name, "problem": f"Square it, {name}.", "tests": tests} for name in "ab"])
    settings = {"name": "squares", "grader": "code", "tests_format": "own", "count": 2, "path": str(root / "own.jsonl")}
    settings |= {"sha256": None, "gated": False}
    problems = root / "problems/squares"
    write_benchmark(settings, problems)
    return problems


def code_samples(root: Path, problems: Path) -> Path:
    texts = [block("def f(n): return n * n"), block("def f(n): return 5"), "no program", f"{FENCE}python\ndef f(n)"]
    texts += [block("def f(n): return n ** 2") + "\ud800"]
    rows = [
        {"problem_id": f"squares-{name}", "sample": number, "text": text, "tokens": 1, "finish_reason": "stop"}
        for name in "ab"
        for number, text in enumerate(texts)
    ]
    rows[3]["finish_reason"] = "length"
    samples = root / "results/samples/r/squares/samples.jsonl.bz2"
    return write_rows(samples, "samples", rows, problems / "problems.jsonl")


def grade_command(root: Path, problems: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Grade the samples below ``root`` as the rule `grade` does, to root/results/grades/r/squares."""
    assert problems == root / "problems/squares"
    return ended(
        [sys.executable, "-c", GRADE, str(root)],
        cwd=root,
        env={**os.environ, "PATH": path or os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)},
    )


GRADE = """
import sys
from pathlib import Path
from evals.audit.grade import grade_policy
from evals.core.errors import UserError
try:
    grade_policy("r", {"squares": "code"}, {}, 2, 1.0, Path("results/grades"), Path(sys.argv[1], "problems"))
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
"""


def test_without_a_sandbox_nothing_is_run(tmp_path: Path) -> None:
    problems = code_benchmark(tmp_path)
    (tmp_path / "empty").mkdir()
    code_samples(tmp_path, problems)
    answer = grade_command(tmp_path, problems, str(tmp_path / "empty"))
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: programs and verifiers run in a sandbox or not at all")
    assert "bwrap is not installed" in answer.stderr and answer.stderr.count("\n") == 1
    assert not (tmp_path / "results/grades/r/squares/grades.jsonl.bz2").exists()


def test_a_sandbox_that_does_not_work_is_refused(tmp_path: Path) -> None:
    problems = code_benchmark(tmp_path)
    fake = tmp_path / "bin/bwrap"
    fake.parent.mkdir()
    for script, reason in (("echo no namespaces >&2; exit 1", "no namespaces"), ("exit 0", "exit status 0")):
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        code_samples(tmp_path, problems)
        answer = grade_command(tmp_path, problems, str(fake.parent))
        assert answer.returncode == 2 and reason in answer.stderr and answer.stderr.count("\n") == 1
        assert not (tmp_path / "results/grades/r/squares/grades.jsonl.bz2").exists()


def test_samples_of_programs_are_graded(tmp_path: Path) -> None:
    sandbox.require_sandbox()
    problems = code_benchmark(tmp_path)
    out = tmp_path / "results/grades/r/squares"
    code_samples(tmp_path, problems)
    answer = grade_command(tmp_path, problems)
    assert answer.returncode == 0, answer.stderr
    rows = read_jsonl(out / "grades.jsonl.bz2")
    assert [row["problem_id"] for row in rows] == ["squares-a"] * 5 + ["squares-b"] * 5
    expected = ["match", "mismatch", "no_answer", "no_answer", "match"]
    assert [row["reason"] for row in rows] == [*expected[:3], "truncated", *expected[4:], *expected]
    assert [row["correct"] for row in rows[:5]] == [True, False, False, False, True]
    parameters = read_json(out / "manifest.json")["parameters"]
    assert parameters["kind"] == "code" and parameters["limits"]["candidate"]["memory"] == 1024**3
    (problems / "tests.jsonl").write_text((problems / "tests.jsonl").read_text() + "\n")
    again = grade_command(tmp_path, problems)
    assert again.returncode == 2 and "tests.jsonl: its bytes differ" in again.stderr


def test_tests_survive_the_disk(tmp_path: Path) -> None:
    tests = {"kind": "stdin", "preamble": "", "cases": [{"input": "\ud800é\n", "output": "1"}]}
    write_jsonl(tmp_path / "tests.jsonl", [{"id": "x", "tests": files_of_tests.pack(tests)}])
    assert list(files_of_tests.read_tests(tmp_path / "tests.jsonl")) == [("x", tests)]
    assert files_of_tests.tests_hash(tests) == files_of_tests.tests_hash(dict(reversed(tests.items())))
    (tmp_path / "tests.jsonl").write_text('{"id": "x", "tests": "!"}\n')
    with pytest.raises(UserError, match=r"tests.jsonl: id 'x': tests: cannot be unpacked"):
        list(files_of_tests.read_tests(tmp_path / "tests.jsonl"))


def test_pickles_are_read_without_being_loaded(tmp_path: Path) -> None:
    from evals.problems.benchmark import unpickled_text

    mark = tmp_path / "mark"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(mark), "w")

    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert unpickled_text(pickle.dumps("[1, é]" * 500, protocol)) == "[1, é]" * 500
        for other in (Payload(), ["a"], ("a", "b"), 5, [Payload(), "a"]):
            with pytest.raises(ValueError, match="a pickle of"):
                unpickled_text(pickle.dumps(other, protocol))
    assert not mark.exists()


# The verifier of programs by the tests in their problem's answer (config/verifiers/program_tests.py).

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
        ("print('1e' + '9' * 60)", ADD, 0),
        ("def flips(s):\n    x = []\n    for _ in range(900): x = [x]\n    return x", FLIPS, 0),
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
