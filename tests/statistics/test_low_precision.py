"""Accuracies in float32, as some tools write them, give what the same numbers give in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evals.statistics.accuracy import clustered_standard_error
from evals.statistics.average import estimate_average
from evals.statistics.difference import estimate_difference
from evals.statistics.interval import suite_intervals, t_interval
from evals.statistics.power import Design
from evals.statistics.resampling import bootstrap_differences, holm, sign_flip_p_values
from evals.statistics.robust import interquartile_mean, performance_profile, stratified_bootstrap
from evals.statistics.scaling import fit_curves
from evals.statistics.weighting import weighted_mean
from tests.statistics.populations import hall_interval, wilson_interval

DRAWS = np.random.default_rng(1).multinomial(30, np.full(30, 1 / 30), size=9)
SEEDS = np.random.default_rng(2).integers(0, 2, (9, 2, 30))
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "clustered": lambda values: clustered_standard_error(values),
    "t": lambda values: t_interval(values),
    "wilson": lambda values: wilson_interval(values, 7),
    "hall": lambda values: hall_interval(values),
    "suite": lambda values: suite_intervals([values], [7]),
    "difference": lambda values: estimate_difference([values], [values[:, ::-1] / 2]).interval(),
    "average": lambda values: estimate_average([values], [7], is_fixed=False).confidence_interval,
    "pilot": lambda values: Design.from_accuracies(values[0], values[1], 7).effect_sd,
    "mean": lambda values: weighted_mean([values[0], values[1]], [1.0, 2.0]),
    "bootstrap": lambda values: bootstrap_differences([values], [values], [DRAWS], np.random.default_rng(3)),
    "flips": lambda values: sign_flip_p_values(values - values[:, ::-1] / 2, np.random.default_rng(4), 99),
    "holm": lambda values: holm(values),
    "quartiles": lambda values: interquartile_mean(values),
    "profile": lambda values: performance_profile(values, [3 / 7]),
    "stratified": lambda values: stratified_bootstrap(values, lambda drawn: drawn.mean(axis=(1, 2)), SEEDS),
    "curves": lambda values: fit_curves(np.arange(1, 31, dtype=values.dtype), values, values[:, 0]).scores([3.0]),
    "starts": lambda values: fit_curves(np.arange(1.0, 31.0), values, values[:, 0]).base,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_low_precision_is_that_of_the_input_alone(name: str) -> None:
    accuracies = (np.random.default_rng(5).binomial(7, 0.4, (2, 30)) / 7).astype(np.float32)
    found, expected = (FUNCTIONS[name](values) for values in (accuracies, accuracies.astype(np.float64)))
    assert np.array_equal(np.asarray(found), np.asarray(expected))
    assert np.asarray(found).dtype == np.float64
