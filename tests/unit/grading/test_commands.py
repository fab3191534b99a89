"""The two commands: lines in, lines out; samples in, grades out."""

import bz2
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evals.core.files import read_json, read_jsonl, sha256_file, write_jsonl
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.grading import CHOICE_VERSION, VERSION
from rlvr.study.study import Study
from tests import stages
from tests.commands import run_command

PROBLEMS = [
    {"id": "p1", "problem": "?", "answer": "7", "family": "f"},
    {"id": "p2", "problem": "?", "answer": "1/2", "family": "f"},
]
SAMPLES = [
    {"problem_id": "p1", "sample": 0, "text": r"\boxed{7}", "tokens": 5, "finish_reason": "stop"},
    {"problem_id": "p1", "sample": 1, "text": r"\boxed{8}", "tokens": 6, "finish_reason": "stop"},
    {"problem_id": "p2", "sample": 0, "text": r"\boxed{0.5}", "tokens": 7, "finish_reason": "length"},
    {"problem_id": "p2", "sample": 1, "text": "Answer: 0.5", "tokens": 8, "finish_reason": "length"},
    {"problem_id": "p2", "sample": 2, "text": "\ud800 nothing", "tokens": 9, "finish_reason": "stop"},
]


def run(lines: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlvr", "grade", *options]
    return subprocess.run(command, input=lines, capture_output=True, text=True, check=False)


def test_lines_in_lines_out() -> None:
    cases: list[dict[str, Any]] = [
        {"id": "a", "pred": r"\boxed{1}", "gold": "1", "expected": "ignored"},
        {"id": 2, "pred": "2", "gold": "2", "kind": "answer"},
        {"id": None, "pred": "Answer: B", "gold": "C", "kind": "mcq"},
        {"id": "stated", "pred": "so it is 18", "gold": "18", "kind": "last_statement"},
        {"id": "cut", "pred": "Answer: 1", "gold": "1", "truncated": True},
        {"id": ["half a pair"], "pred": "2 \ud800", "gold": "2", "kind": "choice"},
    ]
    result = run("\n".join(map(json.dumps, cases)) + "\n\n", "--workers", "1")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 0
    assert [row["id"] for row in rows] == ["a", 2, None, "stated", "cut", ["half a pair"]]
    assert [row["correct"] for row in rows] == [True, True, False, True, False, False]
    assert [row["reason"] for row in rows] == ["match", "match", "mismatch", "match", "truncated", "no_answer"]
    assert set(rows[0]) == {"id", "correct", "answer", "reason", "seconds"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not valid JSON"),
        pytest.param("[" * 200_000, "line 2: is JSON that is nested too deeply", id="nested"),
        ("[]", "line 2: is []; accepted: a mapping"),
        ('{"id": 1, "pred": "x"}', "line 2: lacks gold"),
        ('{"id": 1, "pred": 3, "gold": "3"}', "line 2: pred: is 3; accepted: text"),
        (
            '{"id": 1, "pred": "3", "gold": "3", "kind": "essay"}',
            "line 2: kind: is 'essay'; accepted: completion, last_statement, answer, choice",
        ),
        ('{"id": 1, "pred": "3", "gold": "3", "truncated": 1}', "line 2: truncated: is 1; accepted: true or false"),
    ],
)
def test_a_malformed_line_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    lines = io.BytesIO(f'{{"id": 0, "pred": "1", "gold": "1"}}\n{line}\n'.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(lines))
    assert run_command("grade") == 2
    said, error = capsys.readouterr()
    assert said == "" and error.count("\n") == 1, "nothing is graded"
    assert error.startswith("error: standard input: ") and message in error


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Problems and samples with their manifest, as the earlier stages leave them."""
    write(tmp_path, PROBLEMS, SAMPLES)
    return tmp_path


def write(root: Path, problems: list[dict[str, Any]], samples: list[dict[str, Any]]) -> None:
    write_jsonl(root / "problems/problems.jsonl", problems)
    path = root / "samples/samples.jsonl.bz2"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bz2.compress("".join(json.dumps(row) + "\n" for row in samples).encode()))
    inputs = {"problems/problems.jsonl": sha256_file(root / "problems/problems.jsonl")}
    Manifest("samples", inputs, hash_files(path.parent, path), {}, "f").write(path.with_name("manifest.json"))


def grade(root: Path, **more: Any) -> int:
    paths = (root / path for path in ("samples/samples.jsonl.bz2", "problems/problems.jsonl", "grades"))
    return stages.status(stages.grade, *paths, **more)


def test_grades_follow_the_contract(study: Path) -> None:
    assert grade(study) == 0
    rows = read_jsonl(study / "grades/grades.jsonl.bz2")
    assert [(row["problem_id"], row["sample"]) for row in rows] == [
        (row["problem_id"], row["sample"]) for row in SAMPLES
    ]
    assert [row["reason"] for row in rows] == ["match", "mismatch", "match", "truncated", "no_answer"]
    assert list(rows[0]) == ["problem_id", "sample", "correct", "answer", "reason", "tokens", "finish_reason"]
    manifest = verify_outputs(study / "grades/manifest.json", "grades")
    assert sorted(manifest.inputs.values()) == sorted(
        sha256_file(study / name) for name in ("samples/samples.jsonl.bz2", "problems/problems.jsonl")
    )
    assert manifest.details["rows"] == 5
    assert manifest.details["reasons"]["match"] == manifest.details["correct"] == 2


@pytest.mark.parametrize(
    ("kind", "version"), [("completion", VERSION), ("last_statement", VERSION), ("choice", CHOICE_VERSION)]
)
def test_multiple_choice_has_a_version_of_its_own(study: Path, kind: str, version: int) -> None:
    assert grade(study, kind=kind) == 0
    assert verify_outputs(study / "grades/manifest.json", "grades").parameters["grader_version"] == version
    benchmark = SimpleNamespace(grader="choice" if kind == "choice" else "math")
    stated = ("some",) if kind == "last_statement" else ()
    known: Any = SimpleNamespace(verifiers={}, benchmarks={"some": benchmark}, by_last_statement=stated)
    assert Study.grading(known, "some") == (kind, version)


def test_files_of_a_users_own_may_have_numbers_as_ids_and_further_keys(tmp_path: Path) -> None:
    problems = [{"id": 3, "answer": "7", "level": 5, "options": None}]
    write(tmp_path, problems, [{**SAMPLES[0], "problem_id": 3, "model": {"name": "m"}, "log_prob": float("nan")}])
    assert grade(tmp_path) == 0
    (row,) = read_jsonl(tmp_path / "grades/grades.jsonl.bz2")
    assert (row["problem_id"], row["correct"], row["tokens"]) == (3, True, 5)


@pytest.mark.parametrize(
    ("problems", "samples", "message"),
    [
        (PROBLEMS, [{**SAMPLES[0], "problem_id": "p9"}], "is not a problem of"),
        (PROBLEMS, [SAMPLES[0], SAMPLES[0]], "sample 0: appears twice"),
        (PROBLEMS, [{key: SAMPLES[0][key] for key in ("problem_id", "tokens")}], "lacks sample, text"),
        (PROBLEMS, [{**SAMPLES[0], "finish_reason": "eos"}], "accepted: stop, length"),
        (PROBLEMS, [{**SAMPLES[0], "tokens": 2.5}], "tokens: is 2.5; accepted: a whole number"),
        (PROBLEMS, [{**SAMPLES[0], "text": None}], "text: is None; accepted: text"),
        ([PROBLEMS[0], PROBLEMS[0]], SAMPLES[:1], "'p1' appears twice"),
        ([{**PROBLEMS[0], "answer": " "}], SAMPLES[:1], "accepted: text that is not empty"),
    ],
)
def test_bad_files_are_one_line_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], problems: Any, samples: Any, message: str
) -> None:
    write(tmp_path, problems, samples)
    assert grade(tmp_path) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "grades" / "grades.jsonl.bz2").exists()


def test_changed_samples_and_foreign_problems_are_refused(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = read_json(study / "samples/manifest.json")
    (study / "problems/problems.jsonl").write_text(json.dumps({**PROBLEMS[0], "answer": "8"}) + "\n")
    assert grade(study) == 2
    assert "is not the file that" in capsys.readouterr().err
    with (study / "samples/samples.jsonl.bz2").open("a") as handle:
        handle.write(json.dumps(SAMPLES[0]) + "\n")
    assert grade(study) == 2
    assert "its bytes differ" in capsys.readouterr().err
    manifest["kind"] = "grades"
    (study / "samples/manifest.json").write_text(json.dumps(manifest))
    assert grade(study) == 2
    assert "expected 'samples'" in capsys.readouterr().err
