"""Confidence intervals for avg@k that hold near 0 and 1 too, and none where none holds.

The textbook interval, mean +- t * SE, misses too often when the problems' accuracies are skewed, as they are near 0
and 1. Two corrections exist and each is right where the other is wrong:

- Wilson's interval with an effective sample size knows that the mean lies in [0, 1]. It is right when a problem is
  either always or never solved, and too short when accuracies trail off slowly.
- Hall's interval removes the skewness of the t statistic. It is right for accuracies spread out within (0, 1), and too
  long when problems are all or nothing.

:func:`suite_intervals` weights their end points by how near to all or nothing the problems are. It answers for one
benchmark or for the mean of several. docs/evaluation.md has the coverage, measured.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from evals.statistics.accuracy import FloatArray, check_counts
from evals.statistics.suite import ALIKE, Clusters, Suite, cluster_sums, cluster_values, weighted_mean

MINIMUM_INFORMATIVE_PROBLEMS = 8
"""Fewest problems with a success, and fewest with a failure, from which an interval is computed."""

_HIDDEN_TAIL = 7.5  # the skewness of N accuracies is too small by about 1 + 7.5 / N: the far tail is seldom among them
_STRETCH, _SHRINK, _FORGETTING = 0.8, 0.5, 0.6
"""Shares by which the ends move if an interval is only just given; standard deviations over which that fades."""

Ends = tuple[FloatArray, FloatArray]  # the lower and the upper end of intervals [...]


def t_interval(accuracies: npt.ArrayLike, confidence: float = 0.95) -> Ends:
    """The textbook interval mean +- t_{N-1} * SE [...] from per-problem accuracies [..., N]; it may leave [0, 1]."""
    values = np.asarray(accuracies, dtype=np.float64)
    mean, problems = values.mean(axis=-1), values.shape[-1]
    reach = _t_quantile(problems, confidence) * values.std(axis=-1, ddof=1) / np.sqrt(problems)
    return mean - reach, mean + reach


def _t_quantile(problems: int, confidence: float) -> FloatArray:
    """Student's two-sided quantile with N - 1 degrees of freedom."""
    return np.asarray(stdtrit(problems - 1, 0.5 + confidence / 2.0))


def _skewness_free(mean: FloatArray, error: FloatArray, skewness: FloatArray, quantile: FloatArray) -> Ends:
    """Hall's end points [...] from a mean, its standard error, the skewness of the mean, and Student's quantile."""
    small = np.abs(skewness) < 1e-6
    safe = np.where(small, 1.0, skewness)

    def statistic(bound: FloatArray) -> FloatArray:
        """The t statistic whose skewness-free transform equals ``bound``."""
        cubic = 3.0 / safe * (np.cbrt(1.0 + safe * (bound - safe / 6.0)) - 1.0)
        return np.where(small, bound, cubic)

    return mean - error * statistic(quantile), mean - error * statistic(-quantile)


def _score_ends(mean: FloatArray, effective: FloatArray, quantile: FloatArray) -> Ends:
    """Wilson's end points [...] for a proportion from an effective sample size."""
    t2 = quantile**2
    centre = (mean + t2 / (2.0 * effective)) / (1.0 + t2 / effective)
    reach = np.sqrt(t2 * (mean * (1.0 - mean) / effective + t2 / (4.0 * effective**2))) / (1.0 + t2 / effective)
    return centre - reach, centre + reach


def suite_intervals(
    accuracies: Sequence[npt.ArrayLike], samples: Sequence[int], confidence: float = 0.95, suite: Suite = ALIKE
) -> Ends:
    """Interval [...] for the mean over benchmarks of their average accuracies; NaN where none is to be trusted.

    ``w * Wilson + (1 - w) * Hall``, cut to [0, 1]; ``w = s / sqrt(p (1 - p))`` is 1 where problems are all or nothing.
    Variance and skewness of the mean are those of problems drawn anew within each benchmark (stratified); Student's
    quantile has Welch and Satterthwaite's degrees of freedom, N - 1 for a single benchmark.

    Where fewer than :data:`MINIMUM_INFORMATIVE_PROBLEMS` problems of all have a success, or fewer have a failure, both
    ends are NaN: a handful of problems then decides, and every interval tried misses by far more than it promises.
    A problem counts by the cube of its weight in the mean, as it does in the skewness that makes intervals miss; the
    heaviest counts 1. So 500 problems do not speak for 30 others that have half of the weight, and benchmarks whose
    problems weigh the same are one long benchmark.
    That an interval is given at all makes it likelier that fortune was kind, and so the ends of those that hardly
    pass are moved away from the side that was given away (:func:`_selection`). The three constants of the two
    corrections were fitted on simulated benchmarks of 30 problems and hold on others (docs/evaluation.md).

    ``accuracies`` [..., N] are of each benchmark's problems, from ``samples`` each. Of problems in clusters a cluster
    takes the place of a problem.
    """
    problem_values = [np.asarray(values, dtype=np.float64) for values in accuracies]
    known = suite.clusters or [None] * len(problem_values)
    strata = [cluster_values(values, labels) for values, labels in zip(problem_values, known, strict=True)]
    if not strata or min(values.shape[-1] for values in strata) < 2:
        raise ValueError("an interval needs at least one benchmark, and two problems in each")
    relative = suite.relative(len(strata))
    shares = [weight / sum(relative) for weight in relative]
    problems = sum(values.shape[-1] for values in strata)
    solved, unsolved = (
        [(cluster_sums(is_so, labels) > 0.0).sum(axis=-1) for is_so, labels in zip(informative, known, strict=True)]
        for informative in ([values > 0.0 for values in problem_values], [values < 1.0 for values in problem_values])
    )
    of_problems = [share / values.shape[-1] for share, values in zip(shares, strata, strict=True)]
    parts = [(weight / max(of_problems)) ** 3 for weight in of_problems]
    telling = [sum(part * each for part, each in zip(parts, counts, strict=True)) for counts in (solved, unsolved)]
    trusted = np.minimum(*telling) >= MINIMUM_INFORMATIVE_PROBLEMS
    mean = suite.mean([values.mean(axis=-1) for values in strata])
    variance, freedom, skewness, weight = _moments(strata, shares)
    quantile = np.asarray(stdtrit(freedom, 0.5 + confidence / 2.0))
    most = float(sum(values.shape[-1] * count for values, count in zip(problem_values, samples, strict=True)))
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.minimum(mean * (1.0 - mean) / variance, most)
        hall = _skewness_free(mean, np.sqrt(variance), skewness * (1.0 + _HIDDEN_TAIL / (freedom + 1.0)), quantile)
        wilson = _score_ends(mean, effective, quantile)
        low, high = (weight * one + (1.0 - weight) * other for one, other in zip(wilson, hall, strict=True))
        lucky, unlucky = (_selection(np.asarray(sum(counts)), problems) for counts in (solved, unsolved))
        low = mean - (mean - low) * (1.0 + _STRETCH * lucky) * (1.0 - _SHRINK * unlucky)
        high = mean + (high - mean) * (1.0 - _SHRINK * lucky) * (1.0 + _STRETCH * unlucky)
    low, high = (np.where(trusted, np.clip(end, 0.0, 1.0), np.nan) for end in (low, high))
    return low, high


def _moments(
    strata: Sequence[FloatArray], shares: Sequence[float]
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Variance, degrees of freedom and skewness of the mean over benchmarks [...], and Wilson's weight."""
    spreads, sizes = [values.var(axis=-1, ddof=1) for values in strata], [values.shape[-1] for values in strata]
    variances = [share**2 * spread / size for share, size, spread in zip(shares, sizes, spreads, strict=True)]
    thirds = [
        share**3 * ((values - values.mean(axis=-1, keepdims=True)) ** 3).mean(axis=-1) / values.shape[-1] ** 2
        for share, values in zip(shares, strata, strict=True)
    ]
    # The plain second moment goes with the plain third one; the variance itself is the unbiased one.
    plain = sum(variance * (size - 1) / size for size, variance in zip(sizes, variances, strict=True))
    largest = [values.mean(axis=-1) * (1.0 - values.mean(axis=-1)) for values in strata]
    variance = np.asarray(sum(variances))
    with np.errstate(invalid="ignore"):
        freedom = variance**2 / sum(v**2 / (size - 1) for v, size in zip(variances, sizes, strict=True))
        skewness = np.asarray(sum(thirds)) / np.asarray(plain) ** 1.5
        weight = np.sqrt(np.minimum(weighted_mean(spreads, shares) / weighted_mean(largest, shares), 1.0))
    return variance, freedom, skewness, weight


def _selection(informative: FloatArray, problems: int) -> FloatArray:
    """The part of luck in being given an interval [...]: near 1 if hardly enough problems are informative."""
    deviation = np.sqrt(np.maximum(informative * (1.0 - informative / problems), 0.5))
    distance = (informative - MINIMUM_INFORMATIVE_PROBLEMS + 0.5) / deviation
    return np.exp(-np.maximum(distance, 0.0) / _FORGETTING)


def score_intervals(
    correct_counts: npt.ArrayLike, samples: int, confidence: float = 0.95, clusters: Clusters = None
) -> Ends:
    """:func:`suite_intervals` for avg@k on one benchmark [...], from counts [..., N]; NaN where there is none."""
    counts = check_counts(correct_counts, samples)
    if counts.shape[-1] < MINIMUM_INFORMATIVE_PROBLEMS:
        nothing = np.full(counts.shape[:-1], np.nan)
        return nothing, nothing
    return suite_intervals([counts / samples], [samples], confidence, Suite(clusters=[clusters]))


def score_interval(
    correct_counts: npt.ArrayLike, samples: int, confidence: float = 0.95, clusters: Clusters = None
) -> tuple[float, float] | None:
    """:func:`score_intervals` for one score with counts [N]; None where no interval is to be trusted."""
    low, high = score_intervals(correct_counts, samples, confidence, clusters)
    return None if np.isnan(low) else (float(low), float(high))
