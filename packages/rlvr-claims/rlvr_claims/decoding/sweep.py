"""Many ways of decoding on one problem set: each is sampled and graded, and one file says how well each does.

Thresholds make criteria comparable. The paper tunes those of entropy and KL until they replace as many tokens as the
log-prob difference, and does not print them. Here every criterion's threshold is the quantile that a given fraction of
the driver's tokens lies beyond. The fraction that is replaced in the end differs a little, for the text changes as
tokens are replaced; it is measured.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evals.core.errors import InvalidInput
from evals.core.files import fingerprint, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files
from evals.core.record import read_rows
from evals.core.records import Sample, rows_in
from evals.generation.backend import Backend
from evals.generation.checkpoint import Checkpoint
from evals.generation.evaluate import sample_plan
from evals.generation.plan import SamplePlan, make_plan
from evals.generation.settings import EvaluationSettings
from evals.grading.grade_file import grade_file
from evals.grading.pool import GradingPool
from evals.grading.verdict import Kind
from evals.scores.score import read_graded_run
from rlvr_claims.decoding import VERSION
from rlvr_claims.decoding.draw import PairDraw, criterion_values
from rlvr_claims.decoding.settings import DRIVERS, Decoding, Driver, Grid, Sweep, SweepPoint
from rlvr_claims.settings import Criterion

FloatArray = npt.NDArray[np.float64]
Pair = tuple[Checkpoint, Checkpoint]
"""The base and the trained model. Prompts, and a chat template, are the trained one's."""


def read_pair(base: Path, trained: Path, dtype: str) -> Pair:
    """Read two checkpoints, each a directory in Hugging Face format or of a base model or run of a study.

    Raises:
        UserError: one is missing or damaged, their vocabularies differ, or ``dtype`` is auto and means two things.
    """
    pair = Checkpoint.of(base), Checkpoint.of(trained)
    first, second = (set(checkpoint.tokenizer.get_vocab().items()) for checkpoint in pair)
    if differing := sorted({token for token, _ in first ^ second}):
        where = ", ".join(str(checkpoint.directory) for checkpoint in pair)
        message = f"their tokenizers differ in {len(differing)} tokens, such as {differing[0]!r}"
        raise InvalidInput(where, "", message, "two models of one vocabulary")
    widths = [checkpoint.config.get("vocab_size") for checkpoint in pair]
    if widths[0] != widths[1]:  # a table of embeddings may be wider than the vocabulary, by the size of the model
        raise InvalidInput(str(trained), "vocab_size", f"is {widths[1]}, and that of {base} {widths[0]}", "the same")
    dtypes = [checkpoint.dtype(dtype) for checkpoint in pair]
    if dtypes[0] != dtypes[1]:
        raise InvalidInput("", "dtype", f"auto is {dtypes[0]} for {base} and {dtypes[1]} for {trained}", "one of them")
    return pair


def identities(pair: Pair) -> dict[str, Any]:
    """The parameters of samples that say which models decode them."""
    base, trained = pair
    return {"decoding_version": VERSION, "base": base.identity, "trained": trained.identity}


def sample_grid(
    pair: Pair, problems: Path, settings: EvaluationSettings, grid: Grid, kind: Kind, pool: GradingPool, out: Path
) -> None:
    """Sample and grade every point, in ``out/points/{name}``, and write ``out/sweep.json`` with a manifest.

    Finished points are kept: a sweep that was killed resumes after the last one. ``problems`` is a directory. UserError
    if an input is missing or damaged, or cannot be decoded with.
    """
    plan = make_plan(pair, problems, settings).with_parameters(**identities(pair))
    load = cache(plan.load_backend)
    points = list(_points(plan, load, grid))
    swept: list[SweepPoint] = []
    for number, (name, decoding, fraction) in enumerate(points, start=1):
        directory = out / "points" / name
        of_point = plan.with_parameters(decoding=decoding.to_json())
        sample_plan(of_point, load, directory, partial(PairDraw, decoding, settings))
        grade_file(rows_in(directory, "samples"), problems / "problems.jsonl", directory / "grades", pool, kind)
        measured = _measured(name, decoding, fraction, directory)
        swept.append(measured)
        shares = f"{100 * measured.average:.1f} % correct, {100 * measured.replaced:.1f} % replaced"
        print(f"{number}/{len(points)} {name}: {shares}", flush=True)
        write_json(out / "progress.json", {"step": number, "steps": len(points)})
    base, trained = (str(checkpoint.directory) for checkpoint in pair)
    ids, samples = tuple(plan.ids), settings.samples_per_problem
    content = Sweep(base=base, trained=trained, problem_ids=ids, samples_per_problem=samples, points=tuple(swept))
    write_json(out / "sweep.json", content.to_json())
    inputs = {name: sha256_file(Path(name)) for name in plan.inputs}
    parameters = {**plan.parameters, "points": [[point.name, point.decoding.to_json()] for point in swept]}
    identity = fingerprint({"parameters": parameters, "inputs": sorted(inputs.values())})
    outputs = hash_files(out, out / "sweep.json")
    Manifest("decoding_sweep", inputs, outputs, parameters, identity).write(out / "manifest.json")


def _points(plan: SamplePlan, load: Callable[[], Backend], grid: Grid) -> Iterator[tuple[str, Decoding, float | None]]:
    """Both models alone, then replacement by every criterion, then extrapolation with either driving.

    Name, way of decoding and fraction of each: see :class:`~rlvr_claims.decoding.settings.SweepPoint`.
    """
    for driver in DRIVERS:
        yield driver, Decoding.alone(driver), None
    values = values_of_driver(plan, load(), grid.criteria, "base")
    for criterion, fraction in product(grid.criteria, grid.fractions):
        tau = threshold(criterion, fraction, values)
        decoding = Decoding(mode="replacement", driver="base", criterion=criterion, tau=tau)
        yield f"replacement-{criterion}-{fraction:g}", decoding, fraction
    difference: Criterion = "log_prob_difference"
    for driver in DRIVERS if grid.gammas else ():
        values = values_of_driver(plan, load(), [difference], driver)
        for fraction, gamma in product(grid.extrapolation_fractions, grid.gammas):
            tau = threshold(difference, fraction, values)
            decoding = Decoding(mode="extrapolation", driver=driver, criterion=difference, tau=tau, gamma=gamma)
            yield f"extrapolation-{driver}-{fraction:g}-{gamma:g}", decoding, fraction


def _measured(name: str, decoding: Decoding, fraction: float | None, directory: Path) -> SweepPoint:
    graded = read_graded_run(directory / "grades")
    samples = read_rows(rows_in(directory, "samples"), Sample)
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
    plan: SamplePlan, backend: Backend, criteria: Sequence[Criterion], driver: Driver
) -> dict[Criterion, FloatArray]:
    """Every criterion but random at every token of the driver's own responses, [tokens] each."""
    collected: dict[Criterion, list[Tensor]] = {name: [] for name in criteria if name != "random"}

    def observe(base: Tensor, trained: Tensor, row_of: Tensor, tokens: Tensor) -> None:
        logits = base if driver == "base" else trained
        for criterion, values in collected.items():
            values.append(criterion_values(criterion, base, trained, logits, row_of, tokens).cpu())

    draws = partial(PairDraw, Decoding.alone(driver), plan.settings, observer=observe)
    for batch in plan.batches():
        backend.generate(list(plan.requests(batch)), draws)
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
