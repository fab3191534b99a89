"""The difference between two methods, with the training seeds' share of its uncertainty.

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
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from evals.statistics.accuracy import FloatArray
from evals.statistics.clusters import Clusters, cluster_values
from evals.statistics.weighting import weights_or_alike

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


def estimate_difference(
    treatment: Sequence[npt.ArrayLike],
    control: Sequence[npt.ArrayLike],
    *,
    treatment_is_fixed: bool = False,
    control_is_fixed: bool = False,
    weights: Sequence[float] | None = None,
    samples: tuple[Sequence[npt.ArrayLike], Sequence[npt.ArrayLike]] | None = None,
    clusters: Sequence[Clusters] | None = None,
) -> Difference:
    """Compare two methods on the same problems: the difference of their means over benchmarks.

    Seeds count as independent between the methods, even where they share a number: the same seed in two methods gives
    the same order of problems, not the same policy.

    ``treatment`` and ``control`` hold for each benchmark accuracies [..., S, N] of S seeds on N problems, the same in
    the same order. Seed s is the same policy in every benchmark; S may differ between the two methods, N between
    benchmarks. The seeds of a method that is fixed add no variance: the claim is about these very policies, or the
    method has no training randomness (the base model). ``weights`` are of the benchmarks, alike if there are none, and
    their problems are in ``clusters``.

    ``samples`` of a problem are of both methods, for each benchmark a number or one for each seed [S]. Where they are
    unknown, or 1, nothing says how large the sampling noise is, and it stays counted twice.
    """
    if not treatment or len(treatment) != len(control):
        raise ValueError(f"the methods cover {len(treatment)} and {len(control)} benchmarks")
    return estimate_combination(
        (treatment, control),
        (1.0, -1.0),
        fixed=(treatment_is_fixed, control_is_fixed),
        weights=weights,
        samples=samples,
        clusters=clusters,
    )


def estimate_combination(
    methods: Sequence[Sequence[npt.ArrayLike]],
    coefficients: Sequence[float],
    *,
    fixed: Sequence[bool] | None = None,
    weights: Sequence[float] | None = None,
    samples: Sequence[Sequence[npt.ArrayLike] | None] | None = None,
    clusters: Sequence[Clusters] | None = None,
    seeds_are_blocks: bool = False,
) -> Difference:
    """Combine the means over benchmarks of several methods: the sum of each one's times its coefficient.

    Methods, their samples and whether they are ``fixed``, and what the others say, are as for
    :func:`estimate_difference`. Where ``seeds_are_blocks`` all methods have the same seeds in the same order, and what
    a seed adds to all of them is no variance. The coefficients then have to add up to 0, and C methods of S seeds have
    at most (C - 1)(S - 1) degrees of freedom together, as in a two-way layout.
    """
    if seeds_are_blocks and not np.isclose(sum(coefficients), 0.0, atol=1e-9):
        raise ValueError(f"what a seed adds cancels where the coefficients add up to 0, and not to {sum(coefficients)}")
    strata = [[np.asarray(values, dtype=np.float64) for values in method] for method in methods]
    for benchmark in zip(*strata, strict=True):
        sizes = [values.shape[-1] for values in benchmark]
        if len(set(sizes)) > 1 or sizes[0] < 2:
            raise ValueError(
                f"a benchmark has {' and '.join(map(str, sizes))} problems; two or more of the same needed"
            )
    relative = weights_or_alike(weights, len(strata[0]))
    shares = [1.0 / sum(relative) * weight for weight in relative]
    is_fixed = [False] * len(strata) if fixed is None else fixed
    noises = [
        np.zeros(()) if given or counts is None else _sampling_noise(method, counts, shares)
        for method, given, counts in zip(strata, is_fixed, samples or [None] * len(strata), strict=True)
    ]
    known = clusters or [None] * len(shares)
    strata = [
        [cluster_values(values, labels) for values, labels in zip(method, known, strict=True)] for method in strata
    ]
    combined = [
        sum(factor * values.mean(axis=-2) for factor, values in zip(coefficients, benchmark, strict=True))
        for benchmark in zip(*strata, strict=True)
    ]
    estimate = sum(share * np.asarray(d).mean(axis=-1) for share, d in zip(shares, combined, strict=True))
    problem_variances = [
        np.asarray(share**2 * np.var(d, axis=-1, ddof=1) / np.shape(d)[-1])
        for share, d in zip(shares, combined, strict=True)
    ]
    problem_variance, problem_freedom = pooled(problem_variances, [np.shape(d)[-1] - 1 for d in combined])
    by_seed = [
        np.asarray(sum(share * values.mean(axis=-1) for share, values in zip(shares, method, strict=True)))
        for method in strata
    ]
    scale = 1.0
    if seeds_are_blocks:
        blocks = np.mean(by_seed, axis=0)
        by_seed, scale = [values - blocks for values in by_seed], len(strata) / (len(strata) - 1)
    arms = [
        (scale * factor**2 * variance, freedom / scale)
        for factor, (variance, freedom) in zip(coefficients, map(_seed_part, by_seed, is_fixed), strict=True)
    ]
    seed_variance, seed_freedom = pooled([variance for variance, _ in arms], [freedom for _, freedom in arms])
    noisy = zip(coefficients, noises, arms, strict=True)
    twice = sum(np.fmin(factor**2 * noise, variance) for factor, noise, (variance, _) in noisy)
    noise = np.minimum(twice, problem_variance)
    parts = (problem_variance - noise, problem_freedom, seed_variance, seed_freedom)
    return Difference(np.asarray(estimate), *parts, arms=tuple(arms), noise=noise)


def _sampling_noise(
    strata: Sequence[FloatArray], samples: Sequence[npt.ArrayLike], shares: Sequence[float]
) -> FloatArray:
    """The variance [...] of a method's mean that other samples of its seeds would cause; 0 where one sample is all.

    A problem's k samples of one seed are right with a variance of p (1 - p) k / (k - 1), without bias, and their mean
    has a k-th part of it.
    """
    total = np.zeros(strata[0].shape[:-2])
    for share, values, counts in zip(shares, strata, samples, strict=True):
        others = np.asarray(counts)[..., None] - 1
        if (others < 1).any():
            return np.zeros_like(total)
        of_problems = values * (1.0 - values) / others
        total = total + share**2 * of_problems.sum(axis=(-2, -1)) / (values.shape[-2] * values.shape[-1]) ** 2
    return total


def _seed_part(by_seed: FloatArray, fixed: bool) -> tuple[FloatArray, int]:
    """Variance [...] of one method's mean over its seeds' means [..., S], and its degrees of freedom."""
    seeds = by_seed.shape[-1]
    if fixed:
        return np.zeros(by_seed.shape[:-1]), max(seeds - 1, 1)
    if seeds == 1:
        return np.full(by_seed.shape[:-1], np.nan), 1
    return by_seed.var(axis=-1, ddof=1) / seeds, seeds - 1


def pooled(variances: Sequence[FloatArray], freedoms: Sequence[float | FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Sum of independent variances [...] and its effective degrees of freedom (Welch, Satterthwaite 1946)."""
    total = np.asarray(sum(variances))
    spread = np.asarray(sum(v**2 / f for v, f in zip(variances, freedoms, strict=True)))
    with np.errstate(invalid="ignore"):
        return total, np.where(spread > 0.0, total**2 / spread, sum(freedoms))
