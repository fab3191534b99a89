"""Every method against the reference method and the base model: scores in, ``results/comparisons.json`` out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.records import ALL_BENCHMARKS, BASE, BenchmarkScores, Claim, Comparison, Comparisons, Verdict
from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import Difference, estimate_difference
from evals.statistics.power import minimum_detectable_effect
from evals.statistics.resampling import bootstrap_differences, draw_problems, holm, sign_flip_p_values

MINIMUM_DIFFERING_PROBLEMS = 6
"""With fewer problems that differ no sign flip can reach 5 % (2 / 2^5 is more), and no interval is given either."""


@dataclass(frozen=True)
class Settings:
    """The way in which methods are compared.

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

    def __post_init__(self) -> None:
        """Refuse numbers out of range; the options of the command line have these names."""
        limits = (("resamples", self.bootstrap_resamples, 100), ("permutations", self.permutations, 100),
                  ("seed", self.seed, 0))  # fmt: skip
        for option, value, least in limits:
            if value < least:
                raise InvalidInput(f"--{option}", "", f"is {value}", f"{least} or more")
        if not 0.5 <= self.confidence < 1.0:
            raise InvalidInput("--confidence", "", f"is {self.confidence}", "0.5 up to 1, 1 excluded")


@dataclass(frozen=True)
class BenchmarkCounts:
    """The correct samples of all runs on one benchmark.

    Attributes:
        path: the file, for messages.
        samples: samples per problem.
        methods: run -> its model and method, in file order.
        counts: run -> correct samples of each problem.
    """

    path: Path
    benchmark: str
    samples: int
    methods: Mapping[str, tuple[str, str]]
    counts: Mapping[str, Sequence[int]]

    @property
    def problems(self) -> int:
        """The number of problems N."""
        return len(next(iter(self.counts.values())))

    def accuracies(self, model: str, method: str) -> FloatArray:
        """Fraction of correct samples [S, N] of a method's runs."""
        runs = [run for run, known in self.methods.items() if known == (model, method)]
        return np.array([self.counts[run] for run in runs]) / self.samples


@dataclass(frozen=True)
class _Pair:
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


def write_comparisons(scores: Sequence[Path], settings: Settings, out: Path) -> None:
    """Write the comparisons, and a manifest beside them.

    Args:
        scores: results/scores/*.json; manifests among them are passed over.
        settings: how to compare.
        out: results/comparisons.json.

    Raises:
        UserError: an input is missing, changed or malformed, or the output cannot be written.
    """
    paths = [path for path in scores if not path.name.endswith(".manifest.json")]
    if not paths:
        raise UserError("--scores: names no file of scores")
    content = compare([read_counts(path) for path in paths], settings)
    written = content.to_json()
    write_json(out, written)
    inputs = {path.as_posix(): sha256_file(path) for path in paths}
    parameters = {key: value for key, value in written.items() if key != "comparisons"}
    Manifest(
        kind="comparisons",
        inputs=inputs,
        outputs=hash_files(out.parent, out),
        parameters=parameters,
        fingerprint=fingerprint({"kind": "comparisons", "parameters": parameters, "inputs": sorted(inputs.values())}),
        details={"comparisons": len(content.comparisons)},
    ).write(out.with_suffix(".manifest.json"))


def read_counts(path: Path) -> BenchmarkCounts:
    """Read a scores file after checking it against its manifest.

    Raises:
        UserError: the file is missing, changed or malformed, or holds fewer than two problems.
    """
    verify_outputs(path.with_suffix(".manifest.json"), "scores")
    content = BenchmarkScores.read(path)
    if len(content.problem_ids) < 2:
        raise InvalidInput(str(path), "problem_ids", "has 1", "at least 2 problems, for a comparison")
    return BenchmarkCounts(
        path,
        content.benchmark,
        content.samples_per_problem,
        {row.run: (row.model, row.method) for row in content.scores},
        {row.run: row.correct_counts for row in content.scores},
    )


def compare(benchmarks: Sequence[BenchmarkCounts], settings: Settings) -> Comparisons:
    """Compare every method with the reference method and the base model, on each benchmark and on all.

    Raises:
        UserError: the benchmarks do not have the same runs, or the reference method is not among them.
    """
    pairs = _pairs(benchmarks, settings)
    draws = [
        draw_problems(
            each.problems, _generator(settings.seed, "problems", each.benchmark), settings.bootstrap_resamples
        )
        for each in benchmarks
    ]
    suites = {each.benchmark: [index] for index, each in enumerate(benchmarks)}
    suites |= {ALL_BENCHMARKS: [*range(len(benchmarks))]}
    flips = {
        name: sign_flip_p_values(
            np.array([pair.contributions(members) for pair in pairs]),
            _generator(settings.seed, "sign flips", name),
            settings.permutations,
        )
        for name, members in suites.items()
        if pairs  # a study of base models alone compares nothing
    }
    rows: list[Comparison] = []
    for number, pair in enumerate(pairs):
        compared = [
            _compare_on(name, pair, members, draws, float(flips[name][number]), settings)
            for name, members in suites.items()
        ]
        rows += _judged(compared, 1.0 - settings.confidence)
    return Comparisons(
        reference_method=settings.reference_method,
        claim=settings.claim,
        confidence=settings.confidence,
        bootstrap_resamples=settings.bootstrap_resamples,
        permutations=settings.permutations,
        seed=settings.seed,
        comparisons=tuple(rows),
    )


def _pairs(benchmarks: Sequence[BenchmarkCounts], settings: Settings) -> list[_Pair]:
    """All pairs to compare: models and methods in file order, seeds in the same order on every benchmark."""
    reference, is_fixed = settings.reference_method, settings.claim is Claim.CHECKPOINTS
    pairs = []
    for model, methods in _methods_by_model(benchmarks, reference).items():
        for method in methods:
            for against in dict.fromkeys((reference, BASE)):
                if method in (against, BASE) or against not in methods:
                    continue
                pairs.append(
                    _Pair(
                        model,
                        method,
                        against,
                        tuple(each.accuracies(model, method) for each in benchmarks),
                        tuple(each.accuracies(model, against) for each in benchmarks),
                        treatment_is_fixed=is_fixed or method in settings.given,
                        control_is_fixed=is_fixed or against in settings.given,
                        samples=tuple(each.samples for each in benchmarks),
                    )
                )
    if not pairs and reference != BASE:  # a study of base models has nothing to compare
        raise UserError(f"--scores: hold no method but {reference}; nothing to compare")
    return pairs


def _methods_by_model(benchmarks: Sequence[BenchmarkCounts], reference: str) -> dict[str, list[str]]:
    """Each model's methods, in file order, after checking that every benchmark has the same runs."""
    first = benchmarks[0]
    for number, each in enumerate(benchmarks):
        differing = sorted(set(first.counts) ^ set(each.counts))
        if differing:
            raise UserError(f"{each.path}: run {differing[0]} is in only one of it and {first.path}")
        if each.benchmark in [other.benchmark for other in benchmarks[:number]]:
            raise UserError(f"{each.path}: benchmark {each.benchmark} is given twice")
    methods: dict[str, list[str]] = {}
    for model, method in dict.fromkeys(first.methods.values()):
        methods.setdefault(model, []).append(method)
    for model, members in methods.items():
        if reference not in members:
            raise UserError(f"--reference-method: {reference} has no scores for {model}; it has {', '.join(members)}")
    return methods


def _compare_on(
    benchmark: str,
    pair: _Pair,
    members: Sequence[int],
    draws: Sequence[npt.NDArray[np.int64]],
    flip_p_value: float,
    settings: Settings,
) -> dict[str, Any]:
    """One comparison but for its Holm p-value and verdict, which take the other benchmarks to know.

    The p-value is the larger of the sign-flip one, which needs no normality, and the t one, which knows of the seeds.
    """
    treatment = [pair.treatment[index] for index in members]
    control = [pair.control[index] for index in members]
    fixed = {"treatment_is_fixed": pair.treatment_is_fixed, "control_is_fixed": pair.control_is_fixed}
    difference = estimate_difference(treatment, control, **fixed)
    known = bool(np.isfinite(difference.standard_error))
    interval = None
    if _supports_interval(pair.contributions(members), difference):
        replicates = bootstrap_differences(
            treatment,
            control,
            [draws[index] for index in members],
            _generator(settings.seed, "seeds", pair.model, pair.method, pair.against),
            samples=[pair.samples[index] for index in members] if settings.resample_samples else None,
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
    """Return whether enough problems differ, and differ among themselves, for an interval to mean anything."""
    differing = int(np.count_nonzero(contributions))
    spread = bool(difference.problem_variance > 0.0 and np.isfinite(difference.standard_error))
    return spread and differing >= MINIMUM_DIFFERING_PROBLEMS


def _hull(difference: Difference, replicates: FloatArray, confidence: float) -> tuple[float, float]:
    """The hull of the t interval, which knows of the seeds, and the percentile bootstrap, which knows of skewness."""
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(replicates, [tail, 1.0 - tail])
    t_low, t_high = difference.interval(confidence)
    return float(max(-1.0, min(low, t_low))), float(min(1.0, max(high, t_high)))


def _judged(compared: Sequence[Mapping[str, Any]], alpha: float) -> list[Comparison]:
    """The comparisons of a pair, the last of them over all benchmarks, with Holm over the others and verdicts."""
    *single, overall = [row["p_value"] for row in compared]
    adjusted = single if None in single else [float(p_value) for p_value in holm(single)]
    return [
        Comparison(
            **row,
            p_value_holm=p_value,
            verdict=verdict(row["difference"], row["confidence_interval"], p_value, alpha),
        )
        for row, p_value in zip(compared, [*adjusted, overall], strict=True)
    ]


def verdict(
    difference: float, interval: tuple[float, float] | None, p_value_holm: float | None, alpha: float
) -> Verdict:
    """Better or worse only where the Holm p-value and the interval both say so."""
    reaches_zero = interval is not None and interval[0] <= 0.0 <= interval[1]
    # 1 - 0.95 is 0.05000000000000004 in floating point, in either direction for other levels.
    if p_value_holm is None or p_value_holm > alpha + 1e-12 or reaches_zero:
        return Verdict.NOT_DISTINGUISHABLE
    return Verdict.BETTER if difference > 0.0 else Verdict.WORSE


def _generator(seed: int, *names: str) -> np.random.Generator:
    """A stream of its own for every use, so that adding a method or a benchmark leaves the other rows as they are."""
    digest = hashlib.sha256("\x00".join(names).encode("utf-8")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
