"""A method's average over seeds and benchmarks, and the interval that knows of both."""

from dataclasses import dataclass

import numpy as np

from evals.statistics.difference import ALIKE, Arm, Suite, estimate_difference
from evals.statistics.interval import suite_intervals
from evals.statistics.weighting import weighted_mean, weights_or_alike


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
    relative = weights_or_alike(suite.weights, len(arm.strata))
    by_seed = tuple(weighted_mean([values.mean(axis=1) for values in arm.strata], relative).tolist())
    nothing = [np.zeros((len(arm.masks), values.shape[1])) for values in arm.strata]
    zero = Arm(nothing, arm.samples, arm.bases and sorted(set(arm.bases)), is_fixed=True)
    estimate = estimate_difference(arm, zero, suite)
    value, error = float(estimate.estimate), float(estimate.standard_error)
    if np.isnan(error):
        return Average(value, by_seed)
    counts = [len(by_seed) * int(np.max(count)) for count in arm.samples or ()]
    low, high = map(float, suite_intervals(arm.means, counts, confidence, relative, suite.clusters))
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
