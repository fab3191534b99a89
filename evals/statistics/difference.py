"""Differences between methods, and averages of one, with the training seeds' share of their uncertainty.

Two methods are trained with a few seeds each and answer the same problems. Their difference is uncertain for two
reasons: other problems would have been answered differently, and other seeds would have trained other policies. The
first part is known from tens of problems, the second from two or three seeds, and an interval that forgets the second,
or trusts an estimate from three seeds as if it came from thirty, claims differences that are not there. Hence:

- the variance is the sum of both parts. Sampling noise is inside each of them, so it is taken out of one: out of the
  problems' part, as it is estimated from the samples of each problem and seed, but never more than the seeds' part has.
  Out of the seeds' part it must not be taken: of seeds that vary little by luck nothing would be left.
- the critical value is Cochran and Cox's weighted mean of the two parts' own t quantiles (Cochran and Cox 1957,
  "Experimental Designs", section 4.14). Satterthwaite's single number of degrees of freedom, the usual choice, let more
  than 6 % of true nulls be rejected where the seeds dominate and one side has none.
- where seeds start from several base models, both methods from the same ones, a method's mean gives each base model the
  same weight, and seeds vary around the mean of their base model: what a base model adds to both methods cancels, and
  what it adds to one of them is part of the difference. It is that of these very base models. Three of them leave two
  degrees of freedom for base models that there could be: :meth:`Difference.over_base_models` knows of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import harmonic_mean
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from evals.core.records import Estimate
from evals.statistics.accuracy import FloatArray
from evals.statistics.interval import suite_intervals
from evals.statistics.suite import ALIKE, Clusters, Suite, cluster_values

Bases = Sequence[int] | None  # the base model that each seed [S] of a method started from; None where there is one
_SMALLEST_LOG_P = -80.0  # Student quantiles of fractional degrees of freedom overflow from about e^-300 on.


@dataclass(frozen=True)
class Difference:
    """An estimated difference [...] and the two parts of its variance, each with its degrees of freedom.

    The variance of the seeds is 0 where the policies themselves are compared, and NaN where a method has a single seed,
    for then it cannot be known.
    """

    estimate: FloatArray  # mean accuracy of the treatment less that of the control, in 0..1 units
    problem_variance: FloatArray  # that another draw of problems would cause, without the noise in the seeds' part
    problem_freedom: FloatArray
    seed_variance: FloatArray  # that another draw of training seeds would cause
    seed_freedom: FloatArray
    arms: tuple[tuple[FloatArray, float], ...] = field(default=(), kw_only=True)  # of each method, with its freedom
    noise: FloatArray = field(default_factory=lambda: np.zeros(()), kw_only=True)  # taken out of the problems' part
    sampling: FloatArray = field(default_factory=lambda: np.zeros(()), kw_only=True)  # that other samples would cause
    bases: int = field(default=1, kw_only=True)  # base models
    base_variance: FloatArray | None = field(default=None, kw_only=True)  # that others would cause, and other seeds

    def over_base_models(self) -> "Difference | None":
        """The difference with base models as a sample of all that there could be; None of a single one."""
        if self.base_variance is None:
            return None
        noise = np.minimum(self.noise, self.base_variance)
        problems = self.problem_variance + self.noise - noise
        freedom = np.asarray(self.bases - 1.0)
        return Difference(self.estimate, problems, self.problem_freedom, self.base_variance, freedom, noise=noise)

    def with_choices(self, variance: float, freedom: float) -> "Difference":
        """The difference, if what is compared was chosen: by another choice it would vary by so much more."""
        seeds, seed_freedom = pooled([self.seed_variance, np.asarray(variance)], [self.seed_freedom, freedom])
        return replace(self, seed_variance=seeds, seed_freedom=seed_freedom, arms=())

    def with_least_freedom(self) -> "Difference":
        """The difference with the degrees of freedom of the method that has fewer, which never are too many.

        Welch's are estimated, and too many for small levels where few seeds of one method vary much more than those of
        the other (Mickey and Brown 1966, Annals of Mathematical Statistics 37).
        """
        freedoms = [np.min(freedom) for variance, freedom in self.arms if np.any(variance > 0.0)]
        return replace(self, seed_freedom=np.min([*freedoms, np.min(self.seed_freedom)]))

    def variance_shares(self) -> dict[str, FloatArray]:
        """The share of each level [...] in the variance of the estimate: problems, samples, seeds, base models."""
        problems = self.problem_variance + self.noise
        samples = np.minimum(self.sampling, problems)
        levels = {"problems": problems - samples, "samples": samples, "seeds": self.seed_variance - self.noise}
        if self.base_variance is not None:
            levels["base_models"] = np.maximum(self.base_variance - self.seed_variance, 0.0)
        total = sum(levels.values())
        return {level: np.asarray(variance / total) for level, variance in levels.items()}

    @property
    def standard_error(self) -> FloatArray:
        """Square root of the sum of both variances [...]."""
        return np.asarray(np.sqrt(self.problem_variance + self.seed_variance))

    def critical_value(self, tail: npt.ArrayLike) -> FloatArray:
        """The number of standard errors that leaves ``tail`` probability on one side [...] (Cochran and Cox)."""
        total = self.problem_variance + self.seed_variance
        with np.errstate(invalid="ignore"):
            seed_share = np.where(total == 0.0, 0.0, self.seed_variance / total)
        # stdtrit at the small lower tail keeps its precision where 1 - tail would round to 1.
        problem_quantile = -stdtrit(self.problem_freedom, tail)
        return np.asarray((1.0 - seed_share) * problem_quantile + seed_share * self.seed_critical_value(tail))

    def seed_critical_value(self, tail: npt.ArrayLike) -> FloatArray:
        """The critical value if only the seeds varied [...]."""
        return np.asarray(-stdtrit(self.seed_freedom, tail))

    def interval(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Confidence interval [...], estimate +- critical value * standard error; NaN where the variance is."""
        reach = self.critical_value(0.5 - confidence / 2.0) * self.standard_error
        return self.estimate - reach, self.estimate + reach

    def estimates(self, confidence: float = 0.95) -> list[Estimate]:
        """Each difference with its interval, in order."""
        values, lows, highs = (np.atleast_1d(part).tolist() for part in (self.estimate, *self.interval(confidence)))
        ends = zip(values, lows, highs, strict=True)
        return [(value, None if np.isnan(low) else (low, high)) for value, low, high in ends]

    def p_values(self) -> FloatArray:
        """Two-sided p-values [...]: 1 less the confidence of the interval that just reaches 0; NaN where unknown."""
        from scipy.optimize import elementwise  # slow to import, and most readers of intervals ask for no p-value

        with np.errstate(divide="ignore", invalid="ignore"):
            statistic = np.abs(self.estimate) / self.standard_error
        statistic = np.where((self.estimate == 0.0) & (self.standard_error == 0.0), 0.0, statistic)
        statistic = np.minimum(statistic, self.critical_value(np.exp(_SMALLEST_LOG_P) / 2.0))
        solvable = np.isfinite(statistic)

        def excess(log_p: FloatArray, target: FloatArray, *parts: FloatArray) -> FloatArray:
            return Difference(parts[0] * 0.0, *parts).critical_value(np.exp(log_p) / 2.0) - target

        parts = (self.problem_variance, self.problem_freedom, self.seed_variance, self.seed_freedom)
        known = tuple(np.where(solvable, part, 1.0) for part in parts)
        root = elementwise.find_root(excess, (_SMALLEST_LOG_P, 0.0), args=(np.where(solvable, statistic, 0.0), *known))
        if not np.all(root.success):
            raise ArithmeticError(f"no p-value found for {self}")
        return np.where(solvable, np.exp(root.x), np.nan)


@dataclass(frozen=True)
class Arm:
    """A method's seeds on some benchmarks; seed s is the same policy in every benchmark.

    Where ``samples`` are unknown, or 1, nothing says how large the sampling noise is, and it stays counted twice. The
    seeds of a method that is fixed add no variance: the claim is about these very policies, or the method has no
    training randomness (the base model).
    """

    accuracies: Sequence[npt.ArrayLike]  # [..., S, N] of S seeds on the N problems of each benchmark
    samples: Sequence[npt.ArrayLike] | None = None  # of a problem, for each benchmark a number or one for each seed [S]
    bases: Bases = None
    is_fixed: bool = False

    @cached_property
    def strata(self) -> list[FloatArray]:
        return [np.asarray(values, dtype=np.float64) for values in self.accuracies]

    @cached_property
    def masks(self) -> list[Any]:
        """The seeds of each base model, as indices of the method's [S]; all of them where there is one."""
        bases = self.bases
        return [slice(None)] if bases is None else [np.asarray(bases) == base for base in np.unique(bases)]

    @property
    def means(self) -> list[FloatArray]:
        """The mean [..., N] over seeds on each benchmark, in which every base model has the same weight."""
        of_bases = ([values[..., mask, :].mean(axis=-2) for mask in self.masks] for values in self.strata)
        return [np.asarray(sum(means) / len(means)) for means in of_bases]

    def clustered(self, clusters: Sequence[Clusters] | None) -> "Arm":
        """The same with a value for each cluster in place of a problem."""
        known = clusters or [None] * len(self.strata)
        return replace(self, accuracies=list(map(cluster_values, self.strata, known)))

    def sampling_variance(self, shares: Sequence[float]) -> FloatArray:
        """The variance [...] of the mean that other samples of the seeds would cause; 0 where it cannot be known.

        A problem's k samples of one seed are right with a variance of p (1 - p) k / (k - 1), without bias, and their
        mean has a k-th part of it.
        """
        if self.samples is None:
            return np.zeros(())
        total = np.zeros(self.strata[0].shape[:-2])
        for share, values, counts in zip(shares, self.strata, self.samples, strict=True):
            others = np.asarray(counts)[..., None] - 1
            if (others < 1).any():
                return np.zeros_like(total)
            of_problems = values * (1.0 - values) / others
            for part in (of_problems[..., mask, :] for mask in self.masks):
                alone = share**2 * part.sum(axis=(-2, -1)) / (part.shape[-2] * part.shape[-1]) ** 2
                total = total + alone / len(self.masks) ** 2
        return total

    def seed_variance(self, by_seed: FloatArray) -> tuple[FloatArray, int]:
        """Variance [...] of the mean over seeds, by their means [..., S], and its degrees of freedom.

        Seeds vary alike around the mean of their base model, whichever it is.
        """
        parts = [by_seed[..., mask] for mask in self.masks]
        freedom = by_seed.shape[-1] - len(parts)
        if self.is_fixed:
            return np.zeros(by_seed.shape[:-1]), max(freedom, 1)
        if freedom == 0:
            return np.full(by_seed.shape[:-1], np.nan), 1
        squares = sum(np.square(part - part.mean(axis=-1, keepdims=True)).sum(axis=-1) for part in parts)
        seeds = len(parts) * harmonic_mean([part.shape[-1] for part in parts])
        return np.asarray(squares / freedom / seeds), freedom


def estimate_difference(treatment: Arm, control: Arm, suite: Suite = ALIKE) -> Difference:
    """Compare two methods on the same problems in the same order: the difference of their means over benchmarks.

    Seeds count as independent between the methods, even where they share a number: the same seed in two methods gives
    the same order of problems, not the same policy. Where the methods do not have the same base models, how seeds vary
    is not known.
    """
    return estimate_combination((treatment, control), (1.0, -1.0), suite)


def estimate_combination(
    arms: Sequence[Arm], coefficients: Sequence[float], suite: Suite = ALIKE, *, seeds_are_blocks: bool = False
) -> Difference:
    """Combine the means over benchmarks of several methods: the sum of each one's times its coefficient.

    Where ``seeds_are_blocks`` all methods have the same seeds in the same order, and what a seed adds to all of them is
    no variance. The coefficients then have to add up to 0, and C methods of S seeds have at most (C - 1)(S - 1) degrees
    of freedom together, as in a two-way layout. Where a method has one seed of each base model, seeds vary with base
    models, and the variance of the seeds is that of both.
    """
    if seeds_are_blocks and not np.isclose(sum(coefficients), 0.0, atol=1e-9):
        raise ValueError(f"what a seed adds cancels where the coefficients add up to 0, and not to {sum(coefficients)}")
    if len(covered := {len(arm.strata) for arm in arms}) > 1 or 0 in covered:
        raise ValueError(f"the methods cover {' and '.join(str(len(arm.strata)) for arm in arms)} benchmarks")
    for benchmark in zip(*(arm.strata for arm in arms), strict=True):
        sizes = [values.shape[-1] for values in benchmark]
        if len(set(sizes)) > 1 or sizes[0] < 2:
            counts = " and ".join(map(str, sizes))
            raise ValueError(f"a benchmark has {counts} problems; two or more of the same needed")
    relative = suite.relative(len(arms[0].strata))
    shares = [1.0 / sum(relative) * weight for weight in relative]
    of_samples = [factor**2 * arm.sampling_variance(shares) for factor, arm in zip(coefficients, arms, strict=True)]
    arms = [arm.clustered(suite.clusters) for arm in arms]
    combined = [
        np.asarray(sum(factor * mean for factor, mean in zip(coefficients, means, strict=True)))
        for means in zip(*(arm.means for arm in arms), strict=True)
    ]
    estimate = sum(share * values.mean(axis=-1) for share, values in zip(shares, combined, strict=True))
    problem_variances = [
        np.asarray(share**2 * values.var(axis=-1, ddof=1) / values.shape[-1])
        for share, values in zip(shares, combined, strict=True)
    ]
    problem_variance, problem_freedom = pooled(problem_variances, [values.shape[-1] - 1 for values in combined])
    by_seed = [
        np.asarray(sum(share * values.mean(axis=-1) for share, values in zip(shares, arm.strata, strict=True)))
        for arm in arms
    ]
    scale = 1.0
    if seeds_are_blocks:
        blocks = np.mean(by_seed, axis=0)
        by_seed, scale = [values - blocks for values in by_seed], len(arms) / (len(arms) - 1)
    parts = [
        (scale * factor**2 * variance, freedom / scale)
        for factor, (variance, freedom) in zip(coefficients, map(Arm.seed_variance, arms, by_seed), strict=True)
    ]
    is_paired = len({frozenset(arm.bases or ()) for arm in arms}) == 1  # else nobody knows how base models differ
    number = len(arms[0].masks) if is_paired else 1
    base_variance = None
    if number > 1:  # of the mean over base models of what the combination is on each
        of_bases = [
            sum(
                factor * values[..., mask].mean(axis=-1)
                for factor, values, mask in zip(coefficients, by_seed, masks, strict=True)
            )
            for masks in zip(*(arm.masks for arm in arms), strict=True)
        ]
        base_variance = np.asarray(np.var(of_bases, axis=0, ddof=1) / number)
    if not is_paired:
        parts = [(variance * np.nan, freedom) for variance, freedom in parts]
    elif base_variance is not None and any(np.isnan(variance).all() for variance, _ in parts):
        parts = [(base_variance / len(arms), (number - 1) / len(arms)) for _ in arms]
    seed_variance, seed_freedom = pooled([variance for variance, _ in parts], [freedom for _, freedom in parts])
    twice = sum(
        np.fmin(0.0 if arm.is_fixed else noise, variance)
        for noise, arm, (variance, _) in zip(of_samples, arms, parts, strict=True)
    )
    noise = np.minimum(twice, problem_variance)
    return Difference(
        np.asarray(estimate),
        *(problem_variance - noise, problem_freedom, seed_variance, seed_freedom),
        arms=tuple(parts),
        noise=noise,
        sampling=np.asarray(sum(of_samples)),
        bases=number,
        base_variance=base_variance,
    )


@dataclass(frozen=True)
class Average:
    """A method's mean accuracy over benchmarks, in fractions of one."""

    value: float
    by_seed: tuple[float, ...]
    standard_error: float | None = None  # over problems and seeds; one seed cannot tell how seeds differ
    confidence_interval: tuple[float, float] | None = None  # None without an error, or if a handful of problems decides


def estimate_average(arm: Arm, suite: Suite = ALIKE, confidence: float = 0.95) -> Average:
    """Average of a method over benchmarks, from a known number of samples of each problem.

    Problems and seeds both add variance, as in :mod:`evals.statistics.difference`. The critical value is Cochran and
    Cox's weighted mean, with one change: the problems' part takes the end points of
    :func:`~evals.statistics.interval.suite_intervals` in place of Student's quantile, for accuracies are skewed near 0
    and 1 where differences are not. With no variance between seeds it is that interval.

    The average is that of the very base models that the seeds started from.
    """
    by_seed = tuple(suite.mean([values.mean(axis=1) for values in arm.strata]).tolist())
    nothing = [np.zeros((len(arm.masks), values.shape[1])) for values in arm.strata]
    zero = Arm(nothing, arm.samples, arm.bases and sorted(set(arm.bases)), is_fixed=True)
    estimate = estimate_difference(arm, zero, suite)
    value, error = float(estimate.estimate), float(estimate.standard_error)
    if np.isnan(error):
        return Average(value, by_seed)
    counts = [len(by_seed) * int(np.max(count)) for count in arm.samples or ()]
    low, high = map(float, suite_intervals(arm.means, counts, confidence, suite))
    problem_error = float(np.sqrt(estimate.problem_variance + estimate.noise))
    if np.isnan(low):
        return Average(value, by_seed, error)
    seed_share = float(estimate.seed_variance) / error**2
    seed_quantile = float(estimate.seed_critical_value(0.5 - confidence / 2.0))
    down, up = (
        error * ((1.0 - seed_share) * reach / problem_error + seed_share * seed_quantile)
        for reach in (value - low, high - value)
    )
    return Average(value, by_seed, error, (max(0.0, value - down), min(1.0, value + up)))


def pooled(variances: Sequence[FloatArray], freedoms: Sequence[float | FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Sum of independent variances [...] and its effective degrees of freedom (Welch, Satterthwaite 1946)."""
    total = np.asarray(sum(variances))
    spread = np.asarray(sum(v**2 / f for v, f in zip(variances, freedoms, strict=True)))
    with np.errstate(invalid="ignore"):
        return total, np.where(spread > 0.0, total**2 / spread, sum(freedoms))
