"""Simulated benchmarks whose true accuracy is known, and how often intervals cover it.

Problems are drawn anew from a population for every simulated benchmark, and every problem is answered by independent
samples: what an interval over problems promises to cover.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit, ndtri

from evals.statistics import interval
from evals.statistics.accuracy import clustered_standard_error

Counts = npt.NDArray[np.int64]
Intervals = Callable[[Counts, int], interval.Ends]


def t_intervals(counts: Counts, samples: int) -> interval.Ends:
    """The textbook's intervals."""
    return interval.t_interval(counts / samples)


@dataclass(frozen=True)
class Population:
    """A population that the problems of a benchmark are drawn from.

    ``beta``: Beta(m c, (1 - m) c) with concentration c, from all or nothing (0.1) to equally hard (1e6); ``normal``:
    normal logits with standard deviation s; ``two``: half of the problems at m + d, half at m - d, with
    d = s min(m, 1 - m); ``impossible``: a part of the problems is never solved, the others at level s.
    """

    family: str
    spread: float  # c or s
    accuracy: float  # the mean m, which an interval is to cover

    def draw(self, problems: int, samples: int, benchmarks: int, generator: np.random.Generator) -> Counts:
        """Counts of correct samples [benchmarks, problems]."""
        mean, spread, shape = self.accuracy, self.spread, (benchmarks, problems)
        if self.family == "beta":
            accuracies = generator.beta(mean * spread, (1.0 - mean) * spread, shape)
        elif self.family == "normal":
            grid = ndtri((np.arange(20_000) + 0.5) / 20_000)
            centre = brentq(lambda logit: expit(logit + spread * grid).mean() - mean, -60.0, 60.0)
            accuracies = expit(float(centre) + spread * generator.normal(size=shape))
        elif self.family == "two":
            accuracies = mean + spread * min(mean, 1.0 - mean) * generator.choice([-1.0, 1.0], shape)
        else:
            accuracies = np.where(generator.random(shape) < mean / spread, spread, 0.0)
        return generator.binomial(samples, accuracies)


@dataclass(frozen=True)
class Coverage:
    """The share of benchmarks that got an interval, and of these the share that covers the truth, NaN of none."""

    given: float
    covered: float


def measure_coverage(
    population: Population,
    intervals: Intervals = interval.score_intervals,
    *,
    problems: int = 30,
    samples: int = 32,
    benchmarks: int = 10_000,
) -> Coverage:
    """Simulate benchmarks and count how often the interval covers."""
    key = [0, round(1e4 * population.accuracy), round(100 * population.spread), *population.family.encode()]
    counts = population.draw(problems, samples, benchmarks, np.random.default_rng(key))
    low, high = intervals(counts, samples)
    known = ~(np.isnan(low) | np.isnan(high))
    covered = ((low <= population.accuracy) & (population.accuracy <= high))[known]
    return Coverage(float(known.mean()), float(covered.mean()) if known.any() else np.nan)


def wilson_interval(accuracies: npt.ArrayLike, samples: int, confidence: float = 0.95) -> interval.Ends:
    """Wilson's score interval [...] with the effective sample size of clustered data, from accuracies [..., N].

    The effective sample size is ``p (1 - p) / SE^2``, never more than N * k; the quantile is Student's with N - 1
    degrees of freedom (Kott and Carr 1997, Journal of Official Statistics 13; Dean and Pagano 2015, Journal of Survey
    Statistics and Methodology 3). NaN where all accuracies are equal to 0 or to 1.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    mean, problems = values.mean(axis=-1), values.shape[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.minimum(mean * (1.0 - mean) / clustered_standard_error(values) ** 2, problems * samples)
        return interval._score_ends(mean, effective, interval._t_quantile(problems, confidence))


def hall_interval(accuracies: npt.ArrayLike, confidence: float = 0.95) -> interval.Ends:
    """The t interval corrected for skewness by Hall's cubic transformation [...], from accuracies [..., N].

    Hall 1992, "On the removal of skewness by transformation", Journal of the Royal Statistical Society B 54. With no
    skewness it is the t interval. NaN where all accuracies are equal.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    mean, problems = values.mean(axis=-1), values.shape[-1]
    deviations = values - mean[..., None]
    with np.errstate(invalid="ignore"):
        skewness = (deviations**3).mean(axis=-1) / (deviations**2).mean(axis=-1) ** 1.5 / np.sqrt(problems)
        return interval._skewness_free(
            mean, clustered_standard_error(values), skewness, interval._t_quantile(problems, confidence)
        )
