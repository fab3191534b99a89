"""The grades of one run on one benchmark, read from a directory of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evals.core.errors import UserError
from evals.core.manifest import verify_outputs
from evals.core.record import read_rows
from evals.core.records import Grade


@dataclass(frozen=True)
class GradedRun:
    """The grades of one run on one benchmark.

    Attributes:
        path: the file that they were read from.
        run: the run's name.
        benchmark: the benchmark's name.
        grades: problem id -> the problem's grades, one a sample; both in file order.
        samples: samples per problem, the same for all.
        hashes: path -> SHA-256 of every file that a manifest vouches for; empty without a manifest.
    """

    path: Path
    run: str
    benchmark: str
    grades: Mapping[str, Sequence[Grade]]
    samples: int
    hashes: Mapping[str, str] = field(default_factory=dict)

    def rows(self, problem_ids: Sequence[str] | None = None) -> list[Sequence[Grade]]:
        """The grades of each problem, in the order of ``problem_ids`` or else ordered by problem id."""
        return [self.grades[problem] for problem in (sorted(self.grades) if problem_ids is None else problem_ids)]

    @property
    def counts(self) -> tuple[int, ...]:
        """Correct samples of each problem, ordered by problem id."""
        return tuple(sum(grade.correct for grade in row) for row in self.rows())


def read_graded_run(directory: Path) -> GradedRun:
    """Read ``results/grades/{run}/{benchmark}`` after checking it against its manifest.

    Raises:
        UserError: a file is missing, changed or malformed; a sample is missing or occurs twice; problems differ in
            their number of samples.
    """
    path = directory / "grades.jsonl"
    manifest = verify_outputs(directory / "manifest.json", "grades")
    if "grades.jsonl" not in manifest.outputs:
        raise UserError(f"{directory / 'manifest.json'}: outputs: does not list grades.jsonl")
    hashes = {(directory / name).as_posix(): digest for name, digest in manifest.outputs.items()}
    place = directory.absolute()
    grades, samples = grades_by_problem(path, read_rows(path, Grade))
    return GradedRun(path, place.parent.name, place.name, grades, samples, hashes)


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
