"""Reading one run's grades on one benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import UserError
from evals.core.manifest import verify_outputs
from evals.core.record import read_rows
from evals.core.records import Grade


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
    by_problem, expected = grades_by_problem(path, read_rows(path, Grade))
    return GradedRun(
        directory,
        by_problem,
        expected,
        {(directory / name).as_posix(): digest for name, digest in manifest.outputs.items()},
    )


def grades_by_problem(path: Path, grades: Sequence[Grade]) -> tuple[dict[str, list[Grade]], int]:
    """Group grades by problem, in file order; with the number of samples of each problem.

    Args:
        path: their file, for messages.
        grades: one a sample.

    Raises:
        UserError: there are none, a sample is missing or occurs twice, or problems differ in their number of samples.
    """
    by_problem: dict[str, dict[int, Grade]] = {}
    for number, grade in enumerate(grades, start=1):
        samples = by_problem.setdefault(str(grade.problem_id), {})
        if grade.sample in samples:
            raise UserError(f"{path}: grade {number}: sample {grade.sample} of {grade.problem_id} occurs twice")
        samples[grade.sample] = grade
    if not by_problem:
        raise UserError(f"{path}: holds no grades")
    expected = max(len(samples) for samples in by_problem.values())
    for problem, samples in by_problem.items():
        missing = sorted(set(range(expected)) - set(samples))
        if missing:
            raise UserError(f"{path}: problem {problem} lacks sample {missing[0]} of 0..{expected - 1}")
    return {problem: list(samples.values()) for problem, samples in by_problem.items()}, expected
