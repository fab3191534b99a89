"""A method's average over seeds and problems, with the uncertainty of both.

It is the method's difference to an imagined policy that never answers correctly, so that averages and differences are
judged by one rule: :mod:`evals.statistics.difference` says which and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evals.statistics.difference import estimate_difference
from evals.tables.records import BASE, Condition, Interval, Results


@dataclass(frozen=True)
class Average:
    """Mean avg@k of a method; all fractions of one.

    Attributes:
        by_seed: the average of every seed, in seed order.
        standard_error: over problems and seeds; None for a method trained with one seed, which cannot tell.
        confidence_interval: within [0, 1]; None where there is no standard error or no spread to judge by.
    """

    value: float
    by_seed: tuple[float, ...]
    standard_error: float | None
    confidence_interval: Interval | None


def condition_average(results: Results, condition: Condition, benchmarks: Sequence[str]) -> Average:
    """Average a method over its seeds and over one or several benchmarks, each benchmark weighing the same.

    The base model is one given policy: its error has no share of seeds, and on a single benchmark its interval is the
    one that its score carries.
    """
    fixed = condition.method == BASE
    rates = [
        np.array([results.scores[run.run, benchmark].correct_counts for run in condition.runs], dtype=np.float64)
        / results.samples_per_problem
        for benchmark in benchmarks
    ]
    by_seed = tuple(float(value) for value in np.mean([benchmark.mean(axis=1) for benchmark in rates], axis=0))
    if fixed and len(benchmarks) == 1:
        score = results.scores[condition.runs[0].run, benchmarks[0]]
        return Average(by_seed[0], by_seed, score.standard_error, score.confidence_interval)
    nothing = [np.zeros((1, benchmark.shape[1])) for benchmark in rates]
    estimate = estimate_difference(rates, nothing, treatment_is_fixed=fixed, control_is_fixed=True)
    value, error = float(estimate.estimate), float(estimate.standard_error)
    if np.isnan(error):
        return Average(value, by_seed, None, None)
    if error == 0.0:
        return Average(value, by_seed, error, None)
    low, high = estimate.interval(results.confidence)
    return Average(value, by_seed, error, (max(0.0, float(low)), min(1.0, float(high))))
