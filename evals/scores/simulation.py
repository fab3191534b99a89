"""Simulated studies: how often the comparisons of a study err, and whether they find the differences that they promise.

Both start from the scores of a real study. Under the null the whole of :func:`evals.scores.comparison.compare` runs on
one method under two names. The promise, the minimum detectable effect, is held against studies drawn with the variances
of the real one.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from evals.core.comparisons import Verdict
from evals.core.errors import UserError
from evals.core.files import write_text
from evals.core.random import stream_seed
from evals.core.records import ALL_BENCHMARKS, BASE
from evals.scores.comparison import BenchmarkCounts, Settings, compare, problem_shares, read_counts
from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import estimate_difference
from evals.statistics.power import minimum_detectable_effect, residual_variance
from evals.statistics.resampling import sign_flip_p_values
from evals.statistics.robust import share_interval
from evals.statistics.weighting import parse_weighting, weighted_mean, weights_of

_NAMES = ("first", "second")


@dataclass(frozen=True)
class Share:
    """A number of simulated studies, their share and its exact 95 % interval."""

    studies: int
    of: int
    share: float
    low: float
    high: float

    @classmethod
    def count(cls, studies: int, of: int) -> "Share":
        """The share of ``studies`` in ``of``."""
        return cls(studies, of, studies / of, *share_interval(studies, of))


@dataclass(frozen=True)
class NullStudies:
    """Studies of one method under two names.

    Attributes:
        pool: runs of the method that seeds were drawn from.
        verdicts: studies with a verdict of better or worse, over all benchmarks.
        p_values: studies with p <= 0.05.
        median_effect: median of their minimum detectable effects.
        found: verdicts of as many studies in which the first name is worse by ``median_effect``.
    """

    model: str
    method: str
    pool: int
    seeds: int
    verdicts: Share
    p_values: Share
    median_effect: float
    found: Share


def simulate_null(
    benchmarks: Sequence[BenchmarkCounts], model: str, method: str, seeds: int, studies: int, settings: Settings
) -> NullStudies:
    """Divide the runs of one method at random into two methods of ``seeds`` seeds, and compare them.

    Seeds are drawn without replacement, which keeps the variance of a difference of two means as it is: what the runs
    in common to the pool take away from it, their negative correlation gives back. Problems are drawn with replacement,
    the same for both names.
    """
    pool = [run for run, known in benchmarks[0].methods.items() if known == (model, method)]
    if seeds < 2 or len(pool) < 2 * seeds:
        accepted = f"at least 2, and at most half of the {len(pool)} runs of {method} on {model}"
        raise UserError(f"--seeds: is {seeds}; accepted: {accepted}")
    drawn = [_null_study(benchmarks, pool, seeds, settings, number) for number in range(studies)]
    rows = [_verdict(study, settings) for study in drawn]
    effects = [effect for _, _, effect in rows if effect is not None]
    if not effects:
        raise UserError(f"--scores: {method} has too few problems that differ between its seeds")
    effect = float(np.median(effects))
    weights = _weights(benchmarks, settings)
    found = [_verdict(_worsen(study, model, effect, weights), settings)[0] for study in drawn]
    return NullStudies(
        model,
        method,
        len(pool),
        seeds,
        Share.count(sum(verdict.is_difference for verdict, _, _ in rows), studies),
        Share.count(sum(p_value is not None and p_value <= 0.05 for _, p_value, _ in rows), studies),
        effect,
        Share.count(sum(verdict is Verdict.WORSE for verdict in found), studies),
    )


def _null_study(
    benchmarks: Sequence[BenchmarkCounts], pool: Sequence[str], seeds: int, settings: Settings, number: int
) -> list[BenchmarkCounts]:
    """Draw the scores of one study."""
    generator = np.random.default_rng(stream_seed("null study", settings.seed, number))
    runs = generator.permutation(len(pool))[: 2 * seeds]
    model = benchmarks[0].methods[pool[0]][0]
    study = []
    for each in benchmarks:
        count = len(each.counts[pool[0]])
        problems = generator.integers(0, count, count)
        methods, counts = {}, {}
        for place, index in enumerate(runs):
            methods[f"run{place}"] = (model, _NAMES[place // seeds])
            counts[f"run{place}"] = np.asarray(each.counts[pool[index]])[problems].tolist()
        study.append(replace(each, methods=methods, counts=counts))
    return study


def _weights(benchmarks: Sequence[BenchmarkCounts], settings: Settings) -> list[float]:
    """The weights of the benchmarks in a mean over them, which sum to 1."""
    weights = weights_of(settings.weighting, {each.benchmark: each.problems for each in benchmarks})
    return [weight / sum(weights) for weight in weights]


def _worsen(
    study: Sequence[BenchmarkCounts], model: str, effect: float, weights: Sequence[float]
) -> list[BenchmarkCounts]:
    """The same study with the first name's mean over benchmarks lower by ``effect``: every accuracy by one factor."""
    average = float(weighted_mean([each.accuracies(model, _NAMES[0]).mean() for each in study], weights))
    factor = 1.0 - effect / average
    return [
        replace(
            each,
            counts={
                run: [count * factor for count in counts] if each.methods[run][1] == _NAMES[0] else counts
                for run, counts in each.counts.items()
            },
        )
        for each in study
    ]


def _verdict(study: Sequence[BenchmarkCounts], settings: Settings) -> tuple[Verdict, float | None, float | None]:
    """Verdict, p-value and minimum detectable effect of a simulated study over all benchmarks."""
    compared = compare(study, replace(settings, reference_method=_NAMES[1])).comparisons
    (row,) = [row for row in compared if row.benchmark == ALL_BENCHMARKS]
    return row.verdict, row.p_value, row.minimum_detectable_effect


@dataclass(frozen=True)
class PromisedEffect:
    """The minimum detectable effect of a comparison, and the share of simulated studies with it that have p <= 0.05."""

    model: str
    method: str
    against: str
    effect: float
    found: Share


def simulate_promises(
    benchmarks: Sequence[BenchmarkCounts], reference: str, studies: int, settings: Settings
) -> list[PromisedEffect]:
    """Hold the minimum detectable effect of every comparison with ``reference`` against studies that have it.

    The studies are drawn with the comparison's own variances (:class:`_Variances`), normal, and tested as in
    :mod:`evals.scores.comparison`: by t and by sign flips.
    """
    promises, weights = [], _weights(benchmarks, settings)
    for model, method in dict.fromkeys(benchmarks[0].methods.values()):
        if method in (BASE, reference) or (model, reference) not in benchmarks[0].methods.values():
            continue
        arms = [[each.accuracies(model, name) for each in benchmarks] for name in (method, reference)]
        difference = estimate_difference(*arms, weights=weights)
        effect = float(minimum_detectable_effect(difference))
        if not np.isfinite(effect):
            continue
        generator = np.random.default_rng(stream_seed("promise", settings.seed, model, method))
        variances = [_Variances.of(a, b) for a, b in zip(*arms, strict=True)]
        means = [weighted_mean([values.mean(axis=1) for values in arm], weights) for arm in arms]  # [S]
        seed_variances = [float(values.var(ddof=1)) for values in means]
        drawn = _draw_arms(variances, seed_variances, effect, studies, generator, weights)
        p_values = np.maximum(
            estimate_difference(*drawn, weights=weights).p_values(),
            sign_flip_p_values(problem_shares(*drawn, weights), generator, settings.permutations),
        )
        promises.append(
            PromisedEffect(model, method, reference, effect, Share.count(int((p_values <= 0.05).sum()), studies))
        )
    return promises


@dataclass(frozen=True)
class _Variances:
    """The variances of a comparison on one benchmark of N problems."""

    problems: int
    seeds: tuple[int, int]
    effect: float  # over problems, of the true difference of the methods
    residual: tuple[float, float]  # of a seed on a problem beyond both: sampling, and the seed's own strengths

    @classmethod
    def of(cls, treatment: FloatArray, control: FloatArray) -> "_Variances":
        """Estimate the variances from accuracies [S, N] of both methods, by analyses of variance."""
        residuals = residual_variance(treatment), residual_variance(control)
        seeds = len(treatment), len(control)
        noise = sum(residual / count for residual, count in zip(residuals, seeds, strict=True))
        spread = float((treatment.mean(axis=0) - control.mean(axis=0)).var(ddof=1))
        return cls(treatment.shape[1], seeds, max(spread - noise, 0.0), residuals)


def _draw_arms(
    variances: Sequence[_Variances],
    seed_variances: Sequence[float],
    effect: float,
    studies: int,
    generator: np.random.Generator,
    weights: Sequence[float],
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Accuracies [R, S, N] of both methods on each benchmark, with a true difference of ``effect``.

    The measured variance of a seed's mean over benchmarks, by ``weights`` that sum to 1, holds the residuals' share
    already; that is taken off.
    """
    arms: tuple[list[FloatArray], list[FloatArray]] = ([], [])
    for arm, measured in enumerate(seed_variances):
        residual = sum(w**2 * each.residual[arm] / each.problems for w, each in zip(weights, variances, strict=True))
        own = np.sqrt(max(measured - residual, 0.0)) * generator.normal(size=(studies, variances[0].seeds[arm], 1))
        for each in variances:
            shape = (studies, each.seeds[arm], each.problems)
            values = own + np.sqrt(each.residual[arm]) * generator.normal(size=shape)
            if arm == 0:
                values += effect + np.sqrt(each.effect) * generator.normal(size=(studies, 1, each.problems))
            arms[arm].append(values)
    return arms


def simulate(
    scores: Sequence[Path],
    reference_method: str,
    method: str | None = None,
    seeds: int = 0,
    studies: int = 200,
    seed: int = 0,
    resamples: int = 1_000,
    permutations: int = 2_000,
    weighting: str = "benchmarks",
    out: Path | None = None,
) -> list[str]:
    """Simulate studies with a study's own variances, and count verdicts where there is no difference, and where one is.

    One method under two names: its runs are divided at random and its problems drawn anew, and the whole comparison
    runs; at most 5 % should get a verdict. Studies in which the methods differ by the minimum detectable effect of the
    main table: 80 % should find it.

    Args:
        method: whose runs are divided in two; default: the reference method.
        seeds: of each of the two names; default: half of the method's runs.
        studies: simulated ones of each kind.
        out: JSON; default: standard output.

    Returns:
        The JSON, unless it is written to a file.
    """
    if studies < 1:
        raise UserError(f"--studies: is {studies}; accepted: 1 or more")
    settings = Settings(
        reference_method,
        seed=seed,
        bootstrap_resamples=resamples,
        permutations=permutations,
        weighting=parse_weighting(weighting),
    )
    benchmarks, method = read_counts(scores), method or reference_method
    known = Counter(benchmarks[0].methods.values())
    for option, name in (("--method", method), ("--reference-method", reference_method)):
        if name not in {each for _, each in known}:
            raise UserError(f"{option}: is {name}; accepted: {', '.join(dict.fromkeys(each for _, each in known))}")
    null = [
        simulate_null(benchmarks, model, method, seeds or pool // 2, studies, settings)
        for (model, name), pool in known.items()
        if name == method and (pool >= 4 or seeds)
    ]
    content = {
        "studies": studies,
        "seed": seed,
        "one_method_under_two_names": [asdict(each) for each in null],
        "minimum_detectable_effects": [
            asdict(each) for each in simulate_promises(benchmarks, reference_method, studies, settings)
        ],
    }
    text = json.dumps(content, indent=2)
    if out is None:
        return [text]
    write_text(out, text + "\n")
    return []
