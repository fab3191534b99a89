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
        grades: problem id -> the problem's grades, one a sample, as many for each problem; both in file order.
        hashes: path -> SHA-256 of every file that a manifest vouches for; empty without a manifest.
    """

    path: Path
    run: str
    benchmark: str
    grades: Mapping[str, Sequence[Grade]]
    hashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples per problem, the same for all."""
        return len(next(iter(self.grades.values())))

    def rows(self, problem_ids: Sequence[str] | None = None) -> list[Sequence[Grade]]:
        """The grades of each problem, in the order of ``problem_ids`` or else ordered by problem id."""
        return [self.grades[problem] for problem in (sorted(self.grades) if problem_ids is None else problem_ids)]

    @property
    def counts(self) -> tuple[int, ...]:
        """Correct samples of each problem, ordered by problem id."""
        return tuple(sum(grade.correct for grade in row) for row in self.rows())


def read_graded_run(directory: Path) -> GradedRun:
    """Read ``results/grades/{run}/{benchmark}`` after checking it against its manifest."""
    path = directory / "grades.jsonl"
    manifest = verify_outputs(directory / "manifest.json", "grades")
    if path.name not in manifest.outputs:
        raise UserError(f"{directory / 'manifest.json'}: outputs: does not list grades.jsonl")
    hashes = {(directory / name).as_posix(): digest for name, digest in manifest.outputs.items()}
    place = directory.absolute()
    return GradedRun(path, place.parent.name, place.name, grades_by_problem(path, read_rows(path, Grade)), hashes)


def grades_by_problem(path: Path, grades: Sequence[Grade]) -> dict[str, list[Grade]]:
    """Group the grades of a file by problem, in file order; every problem has to have the same samples, each once."""
    by_problem: dict[str, dict[int, Grade]] = {}
    for number, grade in enumerate(grades, start=1):
        samples = by_problem.setdefault(str(grade.problem_id), {})
        if grade.sample in samples:
            raise UserError(f"{path}: grade {number}: sample {grade.sample} of {grade.problem_id} occurs twice")
        samples[grade.sample] = grade
    if not by_problem:
        raise UserError(f"{path}: holds no grades")
    expected = max(map(len, by_problem.values()))
    for problem, samples in by_problem.items():
        missing = sorted(set(range(expected)) - set(samples))
        if missing:
            raise UserError(f"{path}: problem {problem} lacks sample {missing[0]} of 0..{expected - 1}")
    return {problem: list(samples.values()) for problem, samples in by_problem.items()}
