"""Many ways of decoding on one problem set: each is sampled and graded, and one file says how well each does.

Thresholds make criteria comparable. The paper tunes those of entropy and KL until they replace as many tokens as the
log-prob difference, and does not print them. Here every criterion's threshold is the quantile that a given fraction of
the driver's tokens lies beyond. The fraction that is replaced in the end differs a little, for the text changes as
tokens are replaced; it is measured.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evals.core.files import fingerprint, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files
from evals.core.record import read_rows
from evals.core.records import Sample
from evals.generation.checkpoint import Checkpoint
from evals.generation.settings import EvaluationSettings
from evals.grading.grade_file import grade_file
from evals.grading.pool import GradingPool
from evals.grading.verdict import Kind
from evals.scores.score import read_graded_run
from rlvr_claims.decoding.draw import criterion_values
from rlvr_claims.decoding.pair import PairSampler
from rlvr_claims.decoding.settings import DRIVERS, Decoding, Driver, Grid, Sweep, SweepPoint
from rlvr_claims.settings import Criterion

FloatArray = npt.NDArray[np.float64]


def sample_grid(
    pair: tuple[Checkpoint, Checkpoint],
    problems: Path,
    settings: EvaluationSettings,
    grid: Grid,
    kind: Kind,
    pool: GradingPool,
    out: Path,
) -> None:
    """Sample and grade every point, in ``out/points/{name}``, and write ``out/sweep.json`` with a manifest.

    Finished points are kept: a sweep that was killed resumes after the last one. ``problems`` is a directory. UserError
    if an input is missing or damaged, or cannot be decoded with.
    """
    sampler = PairSampler(pair, problems, settings)
    points = list(_points(sampler, grid))
    swept: list[SweepPoint] = []
    for number, (name, decoding, fraction) in enumerate(points, start=1):
        directory = out / "points" / name
        sampler.sample(decoding, directory)
        grade_file(directory / "samples.jsonl", problems / "problems.jsonl", directory / "grades", pool, kind)
        measured = _measured(name, decoding, fraction, directory)
        swept.append(measured)
        shares = f"{100 * measured.average:.1f} % correct, {100 * measured.replaced:.1f} % replaced"
        print(f"{number}/{len(points)} {name}: {shares}", flush=True)
        write_json(out / "progress.json", {"step": number, "steps": len(points)})
    base, trained = (str(checkpoint.directory) for checkpoint in pair)
    ids, samples = tuple(sampler.plan.ids), settings.samples_per_problem
    content = Sweep(base=base, trained=trained, problem_ids=ids, samples_per_problem=samples, points=tuple(swept))
    write_json(out / "sweep.json", content.to_json())
    inputs = {name: sha256_file(Path(name)) for name in sampler.plan.inputs}
    parameters = {**sampler.plan.parameters, "points": [[point.name, point.decoding.to_json()] for point in swept]}
    identity = fingerprint({"parameters": parameters, "inputs": sorted(inputs.values())})
    outputs = hash_files(out, out / "sweep.json")
    Manifest("decoding_sweep", inputs, outputs, parameters, identity).write(out / "manifest.json")


def _points(sampler: PairSampler, grid: Grid) -> Iterator[tuple[str, Decoding, float | None]]:
    """Both models alone, then replacement by every criterion, then extrapolation with either driving.

    Name, way of decoding and fraction of each: see :class:`~rlvr_claims.decoding.settings.SweepPoint`.
    """
    for driver in DRIVERS:
        yield driver, Decoding.alone(driver), None
    values = values_of_driver(sampler, grid.criteria, "base")
    for criterion, fraction in product(grid.criteria, grid.fractions):
        tau = threshold(criterion, fraction, values)
        decoding = Decoding(mode="replacement", driver="base", criterion=criterion, tau=tau)
        yield f"replacement-{criterion}-{fraction:g}", decoding, fraction
    difference: Criterion = "log_prob_difference"
    for driver in DRIVERS if grid.gammas else ():
        values = values_of_driver(sampler, [difference], driver)
        for fraction, gamma in product(grid.extrapolation_fractions, grid.gammas):
            tau = threshold(difference, fraction, values)
            decoding = Decoding(mode="extrapolation", driver=driver, criterion=difference, tau=tau, gamma=gamma)
            yield f"extrapolation-{driver}-{fraction:g}-{gamma:g}", decoding, fraction


def _measured(name: str, decoding: Decoding, fraction: float | None, directory: Path) -> SweepPoint:
    graded = read_graded_run(directory / "grades")
    samples = read_rows(directory / "samples.jsonl", Sample)
    tokens = sum(sample.tokens or 0 for sample in samples)
    counts = [sum(grade.correct for grade in grades) for grades in graded.grades.values()]
    return SweepPoint(
        name=name,
        decoding=decoding,
        fraction=fraction,
        replaced=sum(sample.replaced or 0 for sample in samples) / tokens if tokens else 0.0,
        average=sum(counts) / (len(counts) * graded.samples),
        correct_counts=tuple(counts),
        mean_tokens=tokens / len(samples),
    )


def values_of_driver(
    sampler: PairSampler, criteria: Sequence[Criterion], driver: Driver
) -> dict[Criterion, FloatArray]:
    """Every criterion but random at every token of the driver's own responses, [tokens] each."""
    collected: dict[Criterion, list[Tensor]] = {name: [] for name in criteria if name != "random"}

    def observe(base: Tensor, trained: Tensor, row_of: Tensor, tokens: Tensor) -> None:
        logits = base if driver == "base" else trained
        for criterion, values in collected.items():
            values.append(criterion_values(criterion, base, trained, logits, row_of, tokens).cpu())

    for batch in sampler.plan.batches():
        sampler.generate(list(sampler.plan.requests(batch)), Decoding.alone(driver), observe)
    return {criterion: torch.cat(values).double().numpy() for criterion, values in collected.items()}


def threshold(criterion: Criterion, fraction: float, values: Mapping[Criterion, FloatArray]) -> float:
    """The tau beyond which a fraction of the values lies; with a fraction of 1 everything fires, whatever its value."""
    if criterion == "random":
        return fraction
    below = criterion == "log_prob_difference"
    if fraction == 1:
        return math.inf if below else -math.inf
    quantile = float(np.quantile(values[criterion], fraction if below else 1 - fraction))
    return float(f"{quantile:.4g}")  # what a table shows, and seldom a value itself, which rounding could tip over
