"""Reading one run's grades on one benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.manifest import verify_outputs

GRADE_KEYS = ("problem_id", "sample", "correct", "answer", "reason", "tokens", "finish_reason")


@dataclass(frozen=True)
class Grade:
    """One graded sample, as docs/architecture.md section 3 describes it."""

    correct: bool
    answer: str | None
    reason: str
    tokens: int
    finish_reason: str


@dataclass(frozen=True)
class GradedRun:
    """One run's grades on one benchmark.

    Attributes:
        directory: where they were read.
        grades: problem id -> the problem's grades, one a sample; both in file order.
        samples: samples per problem, the same for all.
        hashes: path -> SHA-256 of every file that was read.
    """

    directory: Path
    grades: Mapping[str, Sequence[Grade]]
    samples: int
    hashes: Mapping[str, str]

    @property
    def run(self) -> str:
        """The run's name, from ``results/grades/{run}/{benchmark}``."""
        return self.directory.absolute().parent.name

    @property
    def benchmark(self) -> str:
        """The benchmark's name, from the same path."""
        return self.directory.absolute().name


def read_graded_run(directory: Path) -> GradedRun:
    """Read ``grades.jsonl`` after checking it against its manifest.

    Raises:
        UserError: a file is missing, changed or malformed; a sample is missing or doubled; problems differ in their
            number of samples.
    """
    path = directory / "grades.jsonl"
    manifest = verify_outputs(directory / "manifest.json", "grades")
    if "grades.jsonl" not in manifest.outputs:
        raise UserError(f"{directory / 'manifest.json'}: outputs: does not list grades.jsonl")
    by_problem, expected = grades_by_problem(path, read_jsonl(path, GRADE_KEYS))
    return GradedRun(
        directory,
        by_problem,
        expected,
        {(directory / name).as_posix(): digest for name, digest in manifest.outputs.items()},
    )


def grades_by_problem(path: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[Grade]], int]:
    """The grades of every problem, in file order, and how many each has.

    Args:
        path: where the rows stood, for messages.
        rows: with :data:`GRADE_KEYS`.

    Raises:
        UserError: a value has the wrong type, a sample is missing or doubled, or problems differ in their number of
            samples.
    """
    by_problem: dict[str, dict[int, Grade]] = {}
    for number, row in enumerate(rows, start=1):
        samples = by_problem.setdefault(str(row["problem_id"]), {})
        if row["sample"] in samples:
            raise UserError(f"{path}: grade {number}: sample {row['sample']} of {row['problem_id']} occurs twice")
        samples[row["sample"]] = _grade(path, number, row)
    if not by_problem:
        raise UserError(f"{path}: holds no grades")
    expected = max(len(samples) for samples in by_problem.values())
    for problem, samples in by_problem.items():
        missing = sorted(set(range(expected)) - set(samples))
        if missing:
            raise UserError(f"{path}: problem {problem} lacks sample {missing[0]} of 0..{expected - 1}")
    return {problem: list(samples.values()) for problem, samples in by_problem.items()}, expected


def _grade(path: Path, number: int, row: Mapping[str, Any]) -> Grade:
    """One row, with the types checked that the scores rest on."""
    expected: tuple[tuple[str, type | tuple[type, ...]], ...] = (
        ("sample", int),
        ("correct", bool),
        ("answer", (str, type(None))),
        ("reason", str),
        ("tokens", int),
        ("finish_reason", str),
    )
    for key, kinds in expected:
        if not isinstance(row[key], kinds):
            raise UserError(f"{path}: grade {number}: {key}: {row[key]!r} has the wrong type")
    return Grade(row["correct"], row["answer"], row["reason"], row["tokens"], row["finish_reason"])
