"""A method's average over seeds and problems, with the uncertainty of both.

The arithmetic is :mod:`evals.statistics.average`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evals.statistics.average import estimate_average
from evals.tables.records import BASE, Condition, Interval, Results


@dataclass(frozen=True)
class Average:
    """Mean avg@k of a method; all fractions of one.

    Attributes:
        by_seed: the average of every seed, in seed order.
        standard_error: over problems and seeds; None for a method trained with one seed, which cannot tell.
        confidence_interval: within [0, 1]; None where there is no standard error, or where a handful of problems
            decides and no interval is to be trusted.
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
    k = results.samples_per_problem
    rates = [
        np.array([results.scores[run.run, benchmark].correct_counts for run in condition.runs], dtype=np.float64) / k
        for benchmark in benchmarks
    ]
    by_seed = tuple(float(value) for value in np.mean([benchmark.mean(axis=1) for benchmark in rates], axis=0))
    fixed = condition.method == BASE
    average = estimate_average(rates, [k] * len(rates), is_fixed=fixed, confidence=results.confidence)
    return Average(average.value, by_seed, average.standard_error, average.interval)
