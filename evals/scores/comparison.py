"""What two methods' scores say about each other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.core.errors import UserError
from evals.core.records import ALL_BENCHMARKS, BASE, Verdict
from evals.scores.table import BenchmarkCounts
from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import Difference, estimate_difference
from evals.statistics.power import minimum_detectable_effect
from evals.statistics.resampling import bootstrap_differences, draw_problems, holm, sign_flip_p_values

MINIMUM_DIFFERING_PROBLEMS = 6
"""With fewer problems that differ no sign flip can reach 5 % (2 / 2^5 is more), and no interval is given either."""


class Claim(StrEnum):
    """What a comparison is about."""

    METHODS = "methods"
    """Methods, whose seeds are a sample of all the seeds that could have been trained."""
    CHECKPOINTS = "checkpoints"
    """The very policies that were evaluated."""


@dataclass(frozen=True)
class Settings:
    """How methods are compared.

    Attributes:
        reference_method: what all others are compared with.
        claim: about methods or about these checkpoints.
        confidence: level of the intervals; 1 less it is the level of the tests.
        seed: of the resampling.
        bootstrap_resamples: bootstrap replicates.
        permutations: random sign flips.
        resample_samples: draw the samples within each problem anew as well. Their noise is inside the spread of the
            problems already, so intervals then err on the long side.
        given: methods that are one given policy each, as the base model is: their seeds add no variance.
    """

    reference_method: str
    claim: Claim = Claim.METHODS
    confidence: float = 0.95
    seed: int = 0
    bootstrap_resamples: int = 10_000
    permutations: int = 100_000
    resample_samples: bool = False
    given: tuple[str, ...] = (BASE,)


@dataclass(frozen=True)
class Pair:
    """Two methods of one model.

    Attributes:
        treatment: for each benchmark, accuracies [S, N] of the method's seeds.
        control: the same for the method that it is compared against.
        treatment_is_fixed: its seeds are no sample: the claim is about checkpoints.
        control_is_fixed: the same for the control, or the control is the base model.
        samples: for each benchmark, the samples behind each accuracy.
    """

    model: str
    method: str
    against: str
    treatment: tuple[FloatArray, ...]
    control: tuple[FloatArray, ...]
    treatment_is_fixed: bool
    control_is_fixed: bool
    samples: tuple[int, ...]

    def contributions(self, benchmarks: Sequence[int]) -> FloatArray:
        """Each problem's share [sum of N] in the difference of the means over some benchmarks."""
        shares = [
            (self.treatment[index].mean(axis=0) - self.control[index].mean(axis=0)) / self.treatment[index].shape[1]
            for index in benchmarks
        ]
        return np.concatenate(shares) / len(benchmarks)


def compare(tables: Sequence[BenchmarkCounts], settings: Settings) -> dict[str, Any]:
    """The content of ``comparisons.json`` (docs/architecture.md, section 5).

    Raises:
        UserError: the benchmarks do not have the same runs, or the reference method is not among them.
    """
    pairs = _pairs(tables, settings)
    draws = [
        draw_problems(
            table.problems, _generator(settings.seed, "problems", table.benchmark), settings.bootstrap_resamples
        )
        for table in tables
    ]
    scopes = {table.benchmark: [index] for index, table in enumerate(tables)} | {ALL_BENCHMARKS: [*range(len(tables))]}
    flips = {
        name: sign_flip_p_values(
            np.array([pair.contributions(benchmarks) for pair in pairs]),
            _generator(settings.seed, "sign flips", name),
            settings.permutations,
        )
        for name, benchmarks in scopes.items()
        if pairs  # a study of base models alone compares nothing
    }
    rows: list[dict[str, Any]] = []
    for number, pair in enumerate(pairs):
        compared = [
            _compare_on(name, pair, benchmarks, draws, float(flips[name][number]), settings)
            for name, benchmarks in scopes.items()
        ]
        rows += _judged(compared, 1.0 - settings.confidence)
    return {
        "reference_method": settings.reference_method,
        "claim": settings.claim.value,
        "confidence": settings.confidence,
        "bootstrap_resamples": settings.bootstrap_resamples,
        "permutations": settings.permutations,
        "seed": settings.seed,
        "comparisons": rows,
    }


def _pairs(tables: Sequence[BenchmarkCounts], settings: Settings) -> list[Pair]:
    """All pairs to compare: models and methods in file order."""
    pairs = []
    for model, methods in _methods_by_model(tables, settings.reference_method).items():
        for method in methods:
            for against in dict.fromkeys((settings.reference_method, BASE)):
                if method not in (against, BASE) and against in methods:
                    pairs.append(_pair(tables, model, method, against, settings))
    if not pairs and settings.reference_method != BASE:  # a study of base models has nothing to compare
        raise UserError(f"--scores: hold no method but {settings.reference_method}; nothing to compare")
    return pairs


def _methods_by_model(tables: Sequence[BenchmarkCounts], reference: str) -> dict[str, list[str]]:
    """Each model's methods, in file order, after checking that every benchmark has the same runs."""
    first = tables[0]
    for number, table in enumerate(tables):
        differing = sorted(set(first.counts) ^ set(table.counts))
        if differing:
            raise UserError(f"{table.path}: run {differing[0]} is in only one of it and {first.path}")
        if table.benchmark in [other.benchmark for other in tables[:number]]:
            raise UserError(f"{table.path}: benchmark {table.benchmark} is given twice")
    methods: dict[str, list[str]] = {}
    for model, method in first.methods.values():
        members = methods.setdefault(model, [])
        if method not in members:
            members.append(method)
    for model, members in methods.items():
        if reference not in members:
            raise UserError(f"--reference-method: {reference} has no scores for {model}; it has {', '.join(members)}")
    return methods


def _pair(tables: Sequence[BenchmarkCounts], model: str, method: str, against: str, settings: Settings) -> Pair:
    """Two methods' accuracies; seeds in the same order on every benchmark."""
    names = {
        name: [run for run, known in tables[0].methods.items() if known == (model, name)] for name in (method, against)
    }
    return Pair(
        model,
        method,
        against,
        tuple(table.accuracies(names[method]) for table in tables),
        tuple(table.accuracies(names[against]) for table in tables),
        treatment_is_fixed=settings.claim is Claim.CHECKPOINTS or method in settings.given,
        control_is_fixed=settings.claim is Claim.CHECKPOINTS or against in settings.given,
        samples=tuple(table.samples for table in tables),
    )


def _compare_on(
    benchmark: str,
    pair: Pair,
    benchmarks: Sequence[int],
    draws: Sequence[npt.NDArray[np.int64]],
    flip_p_value: float,
    settings: Settings,
) -> dict[str, Any]:
    """One comparison, without what takes the other benchmarks to know.

    The p-value is the larger of the sign-flip one, which needs no normality, and the t one, which knows of the seeds.
    """
    treatment = [pair.treatment[index] for index in benchmarks]
    control = [pair.control[index] for index in benchmarks]
    fixed = {"treatment_is_fixed": pair.treatment_is_fixed, "control_is_fixed": pair.control_is_fixed}
    difference = estimate_difference(treatment, control, **fixed)
    known = bool(np.isfinite(difference.standard_error))
    interval = None
    if _supports_interval(pair.contributions(benchmarks), difference):
        replicates = bootstrap_differences(
            treatment,
            control,
            [draws[index] for index in benchmarks],
            _generator(settings.seed, "seeds", pair.model, pair.method, pair.against),
            samples=[pair.samples[index] for index in benchmarks] if settings.resample_samples else None,
            **fixed,
        )
        interval = _hull(difference, replicates, settings.confidence)
    effect = minimum_detectable_effect(difference, 1.0 - settings.confidence)
    return {
        "model": pair.model,
        "method": pair.method,
        "against": pair.against,
        "benchmark": benchmark,
        "method_average": float(np.mean([values.mean() for values in treatment])),
        "against_average": float(np.mean([values.mean() for values in control])),
        "difference": float(difference.estimate),
        "standard_error": float(difference.standard_error) if known else None,
        "confidence_interval": interval,
        "p_value": max(flip_p_value, float(difference.p_values())) if known else None,
        "minimum_detectable_effect": float(effect) if known and difference.problem_variance > 0.0 else None,
        "seeds": len(treatment[0]),
        "against_seeds": len(control[0]),
        "problems": sum(values.shape[1] for values in treatment),
    }


def _supports_interval(contributions: FloatArray, difference: Difference) -> bool:
    """Whether enough problems differ, and differ among themselves, for an interval to mean anything."""
    differing = int(np.count_nonzero(contributions))
    spread = bool(difference.problem_variance > 0.0 and np.isfinite(difference.standard_error))
    return spread and differing >= MINIMUM_DIFFERING_PROBLEMS


def _hull(difference: Difference, replicates: FloatArray, confidence: float) -> list[float]:
    """The hull of the t interval, which knows of the seeds, and the percentile bootstrap, which knows of skewness."""
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(replicates, [tail, 1.0 - tail])
    t_low, t_high = difference.interval(confidence)
    return [float(max(-1.0, min(low, t_low))), float(min(1.0, max(high, t_high)))]


def _judged(compared: Sequence[Mapping[str, Any]], alpha: float) -> list[dict[str, Any]]:
    """The same rows, the last of them over all benchmarks, with Holm over the others and a verdict for each."""
    *single, overall = [row["p_value"] for row in compared]
    adjusted = single if None in single else [float(p_value) for p_value in holm(single)]
    return [
        {**row, "p_value_holm": p_value, "verdict": verdict(row, p_value, alpha).value}
        for row, p_value in zip(compared, [*adjusted, overall], strict=True)
    ]


def verdict(row: Mapping[str, Any], p_value_holm: float | None, alpha: float) -> Verdict:
    """Better or worse only where the Holm p-value and the interval both say so."""
    interval = row["confidence_interval"]
    reaches_zero = interval is not None and interval[0] <= 0.0 <= interval[1]
    # 1 - 0.95 is 0.05000000000000004 in floating point, in either direction for other levels.
    if p_value_holm is None or p_value_holm > alpha + 1e-12 or reaches_zero:
        return Verdict.NOT_DISTINGUISHABLE
    return Verdict.BETTER if row["difference"] > 0.0 else Verdict.WORSE


def _generator(seed: int, *names: str) -> np.random.Generator:
    """A stream of its own for every use, so that adding a method or a benchmark leaves the other rows as they are."""
    digest = hashlib.sha256("\x00".join(names).encode("utf-8")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
