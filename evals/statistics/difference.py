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
    arms: tuple[tuple[FloatArray, int], ...] = field(default=(), kw_only=True)  # of each method, with its freedom
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
    treated = [np.asarray(values, dtype=np.float64) for values in treatment]
    controls = [np.asarray(values, dtype=np.float64) for values in control]
    if not treated or len(treated) != len(controls):
        raise ValueError(f"the methods cover {len(treated)} and {len(controls)} benchmarks")
    for a, b in zip(treated, controls, strict=True):
        if a.shape[-1] != b.shape[-1] or a.shape[-1] < 2:
            message = f"a benchmark has {a.shape[-1]} and {b.shape[-1]} problems"
            raise ValueError(f"{message}; two or more of the same needed")
    relative = weights_or_alike(weights, len(treated))
    shares = [1.0 / sum(relative) * weight for weight in relative]
    noises = [
        np.zeros(()) if fixed or counts is None else _sampling_noise(arm, counts, shares)
        for arm, fixed, counts in zip(
            (treated, controls), (treatment_is_fixed, control_is_fixed), samples or (None, None), strict=True
        )
    ]
    known = clusters or [None] * len(treated)
    treated, controls = (
        [cluster_values(values, labels) for values, labels in zip(arm, known, strict=True)]
        for arm in (treated, controls)
    )
    differences = [a.mean(axis=-2) - b.mean(axis=-2) for a, b in zip(treated, controls, strict=True)]
    estimate = sum(share * d.mean(axis=-1) for share, d in zip(shares, differences, strict=True))
    problem_variances = [
        share**2 * d.var(axis=-1, ddof=1) / d.shape[-1] for share, d in zip(shares, differences, strict=True)
    ]
    problem_variance, problem_freedom = pooled(problem_variances, [d.shape[-1] - 1 for d in differences])
    arms = [_seed_part(treated, shares, treatment_is_fixed), _seed_part(controls, shares, control_is_fixed)]
    seed_variance, seed_freedom = pooled([variance for variance, _ in arms], [freedom for _, freedom in arms])
    twice = sum(np.fmin(noise, variance) for noise, (variance, _) in zip(noises, arms, strict=True))
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


def _seed_part(strata: Sequence[FloatArray], shares: Sequence[float], fixed: bool) -> tuple[FloatArray, int]:
    """Variance [...] of one method's mean over its seeds, and its degrees of freedom."""
    per_seed = np.asarray(sum(share * values.mean(axis=-1) for share, values in zip(shares, strata, strict=True)))
    seeds = per_seed.shape[-1]
    if fixed:
        return np.zeros(per_seed.shape[:-1]), max(seeds - 1, 1)
    if seeds == 1:
        return np.full(per_seed.shape[:-1], np.nan), 1
    return per_seed.var(axis=-1, ddof=1) / seeds, seeds - 1


def pooled(variances: Sequence[FloatArray], freedoms: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    """Sum of independent variances [...] and its effective degrees of freedom (Welch, Satterthwaite 1946)."""
    total = np.asarray(sum(variances))
    spread = np.asarray(sum(v**2 / f for v, f in zip(variances, freedoms, strict=True)))
    with np.errstate(invalid="ignore"):
        return total, np.where(spread > 0.0, total**2 / spread, float(sum(freedoms)))
