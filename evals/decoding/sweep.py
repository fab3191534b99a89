"""Many ways of decoding on one problem set: each sampled and graded, and how well each does in one file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_jsonl, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files
from evals.decoding.checkpoints import CheckpointPair
from evals.decoding.criteria import Criterion
from evals.decoding.evaluate import PairSampler
from evals.decoding.settings import Decoding, Driver, Mode
from evals.decoding.thresholds import criterion_values, threshold
from evals.generation.plan import EvaluationSettings
from evals.grading.grade_file import grade_file
from evals.grading.pool import GradingPool
from evals.grading.verdict import Kind
from evals.scores.grades import read_graded_run


@dataclass(frozen=True)
class Grid:
    """What is swept.

    Attributes:
        criteria: of replacement with the base driving.
        fractions: of the base's tokens that the thresholds of replacement are set at.
        extrapolation_fractions: of the driver's tokens that the log-prob difference is set at in extrapolation.
        gammas: of extrapolation.
    """

    criteria: tuple[Criterion, ...]
    fractions: tuple[float, ...]
    extrapolation_fractions: tuple[float, ...]
    gammas: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, values in (
            ("--fractions", self.fractions),
            ("--extrapolation-fractions", self.extrapolation_fractions),
        ):
            wrong = [value for value in values if not 0 < value <= 1]
            if wrong:
                raise UserError(f"{name}: has {wrong[0]}; accepted: above 0, at most 1")


@dataclass(frozen=True)
class Point:
    """One way of decoding in a sweep.

    Attributes:
        name: of its directory.
        decoding: the way.
        fraction: of the driver's tokens that its threshold was set at; None for a model alone.
    """

    name: str
    decoding: Decoding
    fraction: float | None


def sweep(
    checkpoints: CheckpointPair,
    problems: Path,
    settings: EvaluationSettings,
    grid: Grid,
    kind: Kind,
    pool: GradingPool,
    out: Path,
) -> None:
    """Sample and grade every point, in ``out/points/{name}``, and write ``out/sweep.json`` with a manifest.

    What is finished is kept: a sweep that was killed goes on where it was.

    Raises:
        UserError: an input is missing or damaged, or cannot be decoded with.
    """
    sampler = PairSampler(checkpoints, problems, settings)
    points = list(_points(sampler, grid, settings.samples_per_problem))
    rows = []
    for number, point in enumerate(points, start=1):
        directory = out / "points" / point.name
        sampler.sample(point.decoding, directory, point.name)
        grade_file(directory / "samples.jsonl", problems / "problems.jsonl", directory / "grades", pool, kind)
        row = _row(point, directory)
        rows.append(row)
        print(
            f"{number}/{len(points)} {point.name}: {100 * row['average']:.1f} % correct, "
            f"{100 * row['replaced']:.1f} % replaced",
            flush=True,
        )
        write_json(out / "progress.json", {"step": number, "steps": len(points)})
    content = {
        "base": str(checkpoints.base.directory),
        "trained": str(checkpoints.trained.directory),
        "problem_ids": list(sampler.plan.ids),
        "samples_per_problem": settings.samples_per_problem,
        "points": rows,
    }
    path = out / "sweep.json"
    write_json(path, content)
    inputs = {name: sha256_file(Path(name)) for name in sampler.plan.inputs}
    parameters = {**sampler.plan.parameters, "points": [[row["name"], row["decoding"]] for row in rows]}
    Manifest(
        kind="decoding_sweep",
        inputs=inputs,
        outputs=hash_files(out, path),
        parameters=parameters,
        fingerprint=fingerprint({"parameters": parameters, "inputs": sorted(inputs.values())}),
    ).write(out / "manifest.json")


def _points(sampler: PairSampler, grid: Grid, samples: int) -> Iterator[Point]:
    """Both models alone, then replacement by every criterion, then extrapolation with either driving."""
    for driver in Driver:
        yield Point(driver.value, Decoding(Mode.REPLACEMENT, driver, Criterion.RANDOM, 0.0), None)
    values = criterion_values(sampler, grid.criteria, Driver.BASE, samples)
    for criterion in grid.criteria:
        for fraction in grid.fractions:
            tau = threshold(criterion, fraction, values)
            yield Point(
                f"replacement-{criterion.value}-{fraction:g}",
                Decoding(Mode.REPLACEMENT, Driver.BASE, criterion, tau),
                fraction,
            )
    if not grid.gammas:
        return
    difference = Criterion.LOG_PROB_DIFFERENCE
    for driver in Driver:
        values = criterion_values(sampler, [difference], driver, samples)
        for fraction in grid.extrapolation_fractions:
            tau = threshold(difference, fraction, values)
            for gamma in grid.gammas:
                decoding = Decoding(Mode.EXTRAPOLATION, driver, difference, tau, gamma)
                yield Point(f"extrapolation-{driver.value}-{fraction:g}-{gamma:g}", decoding, fraction)


def _row(point: Point, directory: Path) -> dict[str, Any]:
    """How well a point does."""
    graded = read_graded_run(directory / "grades")
    samples = read_jsonl(directory / "samples.jsonl", ("tokens", "replaced"))
    tokens = sum(row["tokens"] for row in samples)
    counts = [sum(grade.correct for grade in grades) for grades in graded.grades.values()]
    return {
        "name": point.name,
        "decoding": point.decoding.as_json(),
        "fraction": point.fraction,
        "replaced": sum(row["replaced"] for row in samples) / tokens if tokens else 0.0,
        "average": sum(counts) / (len(counts) * graded.samples),
        "correct_counts": counts,
        "mean_tokens": tokens / len(samples),
    }
