"""Confidence intervals for avg@k that hold near 0 and 1 too, and none where none holds.

The textbook interval, mean +- t * SE, misses too often when the problems' accuracies are skewed, as they are near 0
and 1. Two corrections exist and each is right where the other is wrong:

- Wilson's interval with an effective sample size knows that the mean lies in [0, 1]. It is right when a problem is
  either always or never solved, and too short when accuracies trail off slowly.
- Hall's interval removes the skewness of the t statistic. It is right for accuracies spread out within (0, 1), and too
  long when problems are all or nothing.

:func:`score_interval` weights their end points by the intraclass correlation, which says which case it is.
docs/evaluation.md has the coverage of all four, measured.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student_t

from evals.statistics.accuracy import FloatArray, check_counts
from evals.statistics.standard_error import clustered_standard_error

MINIMUM_INFORMATIVE_PROBLEMS = 8
"""Fewest problems with a success, and fewest with a failure, from which an interval is computed."""

_NO_SKEWNESS = 1e-6


def t_interval(accuracies: npt.ArrayLike, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """The textbook interval mean +- t_{N-1} * SE [...] from per-problem accuracies [..., N]; it may leave [0, 1]."""
    values = np.asarray(accuracies, dtype=np.float64)
    mean = values.mean(axis=-1)
    reach = _t_quantile(values.shape[-1], confidence) * clustered_standard_error(values)
    return mean - reach, mean + reach


def wilson_interval(accuracies: npt.ArrayLike, samples: int, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Wilson's score interval [...] with the effective sample size of clustered data, from accuracies [..., N].

    The effective sample size is ``p (1 - p) / SE^2``, never more than N * k; the quantile is Student's with N - 1
    degrees of freedom (Kott and Carr 1997, Journal of Official Statistics 13; Dean and Pagano 2015, Journal of Survey
    Statistics and Methodology 3). NaN where all accuracies are equal to 0 or to 1.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    mean, problems = values.mean(axis=-1), values.shape[-1]
    t2 = _t_quantile(problems, confidence) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.minimum(mean * (1.0 - mean) / clustered_standard_error(values) ** 2, problems * samples)
        centre = (mean + t2 / (2.0 * effective)) / (1.0 + t2 / effective)
        reach = np.sqrt(t2 * (mean * (1.0 - mean) / effective + t2 / (4.0 * effective**2))) / (1.0 + t2 / effective)
    return centre - reach, centre + reach


def hall_interval(accuracies: npt.ArrayLike, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """The t interval corrected for skewness by Hall's cubic transformation [...], from accuracies [..., N].

    Hall 1992, "On the removal of skewness by transformation", Journal of the Royal Statistical Society B 54. With no
    skewness it is the t interval. NaN where all accuracies are equal.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    mean, problems = values.mean(axis=-1), values.shape[-1]
    error = clustered_standard_error(values)
    deviations = values - mean[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        skewness = (deviations**3).mean(axis=-1) / (deviations**2).mean(axis=-1) ** 1.5
    quantile = _t_quantile(problems, confidence)
    low, high = (mean - error * _untransformed(bound, skewness, problems) for bound in (quantile, -quantile))
    return low, high


def _untransformed(bound: float, skewness: FloatArray, problems: int) -> FloatArray:
    """The t statistic whose skewness-free transform equals ``bound``."""
    root = np.sqrt(problems)
    safe = np.where(np.abs(skewness) < _NO_SKEWNESS, 1.0, skewness)
    cubic = 3.0 * root / safe * (np.cbrt(1.0 + safe * (bound / root - safe / (6.0 * problems))) - 1.0)
    return np.where(np.abs(skewness) < _NO_SKEWNESS, bound, cubic)


def score_intervals(
    correct_counts: npt.ArrayLike, samples: int, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """The interval that this project reports for avg@k [...], from counts [..., N]; NaN where none is to be trusted.

    End points are ``rho * Wilson + (1 - rho) * Hall`` with the intraclass correlation ``rho = s^2 / (p (1 - p))``, cut
    to [0, 1]. Where fewer than :data:`MINIMUM_INFORMATIVE_PROBLEMS` problems have a success, or fewer have a failure,
    both ends are NaN: a handful of problems then decides, and every interval tried misses by far more than it promises.
    """
    counts = check_counts(correct_counts, samples)
    informative = np.minimum((counts > 0).sum(axis=-1), (counts < samples).sum(axis=-1))
    if counts.shape[-1] < MINIMUM_INFORMATIVE_PROBLEMS:
        nothing = np.full(informative.shape, np.nan)
        return nothing, nothing
    accuracies = counts / samples
    mean = accuracies.mean(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.clip(accuracies.var(axis=-1, ddof=1) / (mean * (1.0 - mean)), 0.0, 1.0)
    trusted = informative >= MINIMUM_INFORMATIVE_PROBLEMS
    low, high = (
        np.where(trusted, np.clip(rho * wilson + (1.0 - rho) * hall, 0.0, 1.0), np.nan)
        for wilson, hall in zip(
            wilson_interval(accuracies, samples, confidence), hall_interval(accuracies, confidence), strict=True
        )
    )
    return low, high


def score_interval(correct_counts: npt.ArrayLike, samples: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """:func:`score_intervals` for one score with counts [N]; None where no interval is to be trusted."""
    low, high = score_intervals(correct_counts, samples, confidence)
    return None if np.isnan(low) or np.isnan(high) else (float(low), float(high))


def _t_quantile(problems: int, confidence: float) -> float:
    """Student's two-sided quantile with N - 1 degrees of freedom."""
    return float(student_t.ppf(0.5 + confidence / 2.0, problems - 1))
