"""A user's own function as the grader: what it may return, what is said of mistakes, and what depends on its bytes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import UserError
from evals.core.files import read_jsonl, sha256_file, write_jsonl
from evals.core.manifest import verify_outputs
from evals.grading import Case, GradingPool, Reason, Verdict
from evals.grading.code import verifier as verifiers
from evals.grading.code.sandbox import start
from evals.grading.code.verifier import read_verifier
from evals.grading.grade_file import try_verifier
from tests.unit.grading.test_commands import PROBLEMS, SAMPLES, grade, write

PROBLEM = {"id": "p", "problem": "1 + 1", "answer": "2", "level": 3}


def file_of(directory: Path, body: str, before: str = "") -> Path:
    path = directory / "mine.py"
    path.write_text(f"{before}\ndef verify(problem, response):\n    {body}\n")
    return path


def judged(path: Path, *responses: str, workers: int = 1) -> list[Verdict]:
    with GradingPool(workers, 60.0, verifier=path) as pool:
        return pool.grade(Case(response, "2", problem=PROBLEM) for response in responses)


def test_what_is_returned_is_the_reward(tmp_path: Path) -> None:
    returned = {
        "True": 1.0,
        "False": 0.0,
        "1": 1.0,
        "0.25": 0.25,
        "numpy.bool_(True)": 1.0,
        "numpy.float32(0.5)": 0.5,
        "problem['level'] / 4": 0.75,
        "float(response == problem['answer'])": 0.0,
        "print('1') or 0": 0.0,
    }
    path = file_of(tmp_path, "return eval(response)", "import numpy")
    verdicts = judged(path, *returned, workers=2)
    assert [verdict.reward for verdict in verdicts] == list(returned.values())
    assert [verdict.correct for verdict in verdicts] == [reward == 1 for reward in returned.values()]
    assert {verdict.reason for verdict in verdicts} == {Reason.MATCH, Reason.MISMATCH}
    assert [verdict.answer for verdict in verdicts] == list(returned)


def test_a_failure_on_one_response_is_wrong_and_says_why(tmp_path: Path) -> None:
    expected = {
        "None": "verify returned None; accepted: True, False or a number from 0 to 1",
        "1.5": "verify returned 1.5; accepted: True, False or a number from 0 to 1",
        "float('nan')": "verify returned nan; accepted: True, False or a number from 0 to 1",
        "'1'": "verify returned '1'; accepted: True, False or a number from 0 to 1",
        "problem['no']": "line 3: KeyError: 'no'",
        "exit(1)": "line 3: SystemExit: 1",
        "1 +": "line 3: SyntaxError: invalid syntax (<string>, line 1)",
        "bytearray(1 << 40)": "it ran out of memory",
        "__import__('os')._exit(0)": "its process ended",
        "__import__('os').abort()": "its process ended by signal 6",
    }
    *verdicts, last = judged(file_of(tmp_path, "return eval(response)"), *expected, "1")
    assert [verdict.error for verdict in verdicts] == list(expected.values())
    assert all(verdict.reward == 0 and not verdict.correct for verdict in verdicts)
    assert {verdict.reason for verdict in verdicts} == {Reason.VERIFIER_FAILED, Reason.MEMORY}
    assert last.correct


def test_a_function_that_fails_too_often_stops_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path, "return 1 / len(response)")
    allowed = verifiers.ALLOWED_FAILURES
    assert sum(verdict.error is not None for verdict in judged(path, *[""] * allowed, "x")) == allowed
    with pytest.raises(UserError, match=rf"mine.py: gave no verdict on {allowed + 1} of {allowed + 2} responses, at "):
        judged(path, "x", *[""] * (allowed + 1))
    monkeypatch.setattr(verifiers, "ALLOWED_FAILURES", 0)
    assert not judged(path, *["x"] * 10, "")[-1].correct  # one of eleven, less than a tenth


@pytest.mark.parametrize("workers", [1, 2])
def test_no_response_sees_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    started = []
    monkeypatch.setattr(verifiers, "start", lambda *given, **named: started.append(0) or start(*given, **named))
    path = file_of(tmp_path, "seen.append(response)\n    return len(seen) == 1", "seen = []")
    with GradingPool(workers, 60.0, verifier=path) as pool:
        for _ in range(2):
            verdicts = pool.grade(Case(str(number), "2", problem=PROBLEM) for number in range(20))
            assert [verdict.answer for verdict in verdicts if verdict.correct] == [str(each) for each in range(20)]
    assert 1 <= len(started) <= workers


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "mine.py: no such file"),
        ("def verify(problem, response)\n    return 1\n", "mine.py: line 1: expected ':'; accepted: Python"),
        ("def check(problem, response): return 1\n", "mine.py: has no function verify; accepted: def verify(problem,"),
        ("def verify(response): return 1\n", "mine.py: line 1: verify has other parameters; accepted: def verify("),
    ],
)
def test_what_can_be_seen_is_said_without_running_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, complaint: str
) -> None:
    monkeypatch.setattr(verifiers, "start", None)
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as raised:
        read_verifier(path)
    assert complaint in str(raised.value) and "\n" not in str(raised.value)


def test_the_first_problem_is_tried_before_anything_depends_on_it(tmp_path: Path) -> None:
    problems, path = tmp_path / "problems.jsonl", file_of(tmp_path, "return response == problem['answer']")
    write_jsonl(problems, [PROBLEM])
    try_verifier(path, problems, tmp_path / "out")
    manifest = verify_outputs(tmp_path / "out/manifest.json", "verifier")
    assert manifest.details["tried"] == {"its gold answer": 1.0, "an empty response": 0.0}
    assert manifest.parameters["sha256"] == sha256_file(path) == sha256_file(tmp_path / "out/verifier.py")
    for body, before, complaint in (
        ("return int(response) == 2", "", "mine.py: tried on problem p with an empty response: line 3: ValueError: "),
        ("return problem['gold']", "", "mine.py: tried on problem p with its gold answer: line 3: KeyError: 'gold'"),
        ("return 1", "import torch", "mine.py: cannot be loaded in the sandbox: line 1: ModuleNotFoundError"),
    ):
        with pytest.raises(UserError) as raised:
            try_verifier(file_of(tmp_path, body, before), problems, tmp_path / "other")
        assert str(raised.value).removeprefix(f"{tmp_path}/").startswith(complaint)
    assert not (tmp_path / "other").exists()


def test_samples_of_a_benchmark_are_graded_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, PROBLEMS, SAMPLES)
    path = file_of(tmp_path, "return 0.5 if '0.5' in response else int(problem['answer']) == int(response[7:-1])")
    assert grade(tmp_path, kind="verifier", verifier=path) == 0
    rows: list[dict[str, Any]] = read_jsonl(tmp_path / "grades/grades.jsonl.bz2")
    assert [row["reward"] for row in rows] == [1.0, 0.0, 0.5, 0.5, 0.0]
    assert [row["correct"] for row in rows] == [True, False, False, False, False]
    assert rows[-1]["reason"] == "verifier_failed" and rows[-1]["error"].startswith("line 3: ValueError: ")
    manifest = verify_outputs(tmp_path / "grades/manifest.json", "grades")
    assert manifest.inputs[str(path)] == sha256_file(path) and manifest.parameters["kind"] == "verifier"
    path.write_text(path.read_text() + "\n")
    assert grade(tmp_path, kind="verifier", verifier=path) == 0
    assert verify_outputs(tmp_path / "grades/manifest.json", "grades").fingerprint != manifest.fingerprint
    capsys.readouterr()
    assert grade(tmp_path, kind="verifier") == 2
    assert capsys.readouterr().err == "error: --kind: is verifier, --verifier: none; accepted: both or none\n"


def test_a_line_is_the_problem(tmp_path: Path) -> None:
    path = file_of(tmp_path, "return (problem['answer'] in response) / problem['parts']")
    lines = [{"id": "a", "gold": "2", "pred": "so 2", "parts": 4}, {"id": "b", "gold": "3", "pred": "3", "parts": 1}]
    command = [sys.executable, "-m", "rlvr", "grade", "--workers", "1", "--verifier", str(path)]
    text = "\n".join(map(json.dumps, lines))
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["id"], row["reward"], row["correct"]) for row in rows] == [("a", 0.25, False), ("b", 1.0, True)]
