"""Falls, interquartile means and performance profiles, held to rliable's numbers and to known answers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from evals.statistics.robust import (
    draw_seeds,
    fell_below,
    fell_in_training,
    interquartile_mean,
    percentile_interval,
    performance_profile,
    share_interval,
    stratified_bootstrap,
)

# One seed of six fell.
SCORES = np.array(
    [
        [0.706, 0.117, 0.663, 0.615, 0.732],
        [0.368, 0.197, 0.565, 0.57, 1.0],
        [0.087, 0.089, 0.112, 0.12, 0.128],
        [0.341, 0.572, 0.564, 0.844, 0.77],
        [0.404, 0.732, 0.682, 0.624, 0.773],
        [0.481, 0.79, 0.56, 0.663, 0.95],
    ]
)


def as_rliable_draws(seed: int, shape: tuple[int, int], resamples: int) -> np.ndarray:
    """The seeds that rliable 1.2.0 draws after ``np.random.seed(seed)``."""
    state = np.random.RandomState(seed)
    return np.array([state.choice(shape[0], shape, replace=True) for _ in range(resamples)])


# The numbers are rliable 1.2.0's: library.get_interval_estimates and library.create_performance_profile.
@pytest.mark.parametrize(
    ("seeds", "seed", "estimate", "interval"),
    [(6, 7, 0.569375, (0.43379375, 0.6519578125)), (3, 9, 0.37144444, (0.19410833, 0.5417))],
)
def test_interquartile_mean_and_interval_are_those_of_rliable(
    seeds: int, seed: int, estimate: float, interval: tuple[float, float]
) -> None:
    scores = SCORES[:seeds]
    assert interquartile_mean(scores) == pytest.approx(estimate, abs=1e-8)
    replicates = stratified_bootstrap(scores, interquartile_mean, as_rliable_draws(seed, scores.shape, 2000))
    assert percentile_interval(replicates) == pytest.approx(interval, abs=1e-8)


def test_the_performance_profile_is_that_of_rliable() -> None:
    thresholds = np.linspace(0, 1, 6)
    low = [1.0, 0.6333333333, 0.5333333333, 0.3158333333, 0.0158333333, 0.0]
    high = [1.0, 0.9, 0.8666666667, 0.6, 0.2, 0.0]
    assert performance_profile(SCORES, thresholds) == pytest.approx([1, 23 / 30, 21 / 30, 14 / 30, 3 / 30, 0])
    draws = as_rliable_draws(8, SCORES.shape, 500)
    replicates = stratified_bootstrap(SCORES, lambda drawn: performance_profile(drawn, thresholds), draws)
    for found, expected in zip(percentile_interval(replicates), (low, high), strict=True):
        assert found == pytest.approx(expected, abs=1e-9)


def test_the_middle_half_by_a_slow_reference() -> None:
    values = np.sort(SCORES.ravel())
    assert interquartile_mean(SCORES) == pytest.approx(values[7:-7].mean())
    batch = np.stack([SCORES, SCORES + 1])
    assert interquartile_mean(batch) == pytest.approx([values[7:-7].mean(), values[7:-7].mean() + 1])


def test_seeds_drawn_together_know_that_a_seed_is_one_policy() -> None:
    generator = np.random.default_rng(1)
    policies = np.repeat(generator.normal(0.6, 0.1, (8, 1)), 5, axis=1)
    lengths = []
    for together in (False, True):
        draws = draw_seeds((8, 5), np.random.default_rng(2), 4000, together=together)
        low, high = percentile_interval(stratified_bootstrap(policies, lambda drawn: drawn.mean(axis=(1, 2)), draws))
        lengths.append(float(high - low))
    assert lengths[1] / lengths[0] == pytest.approx(np.sqrt(5), rel=0.1)


def test_the_interval_of_a_share_leaves_its_tails() -> None:
    assert share_interval(0, 3) == pytest.approx((0.0, 0.7075982), abs=1e-6)
    low, high = share_interval(2, 9)
    assert binom.sf(1, 9, low) == pytest.approx(0.025) and binom.cdf(2, 9, high) == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("course", "expected"),
    [
        (np.linspace(0.4, 0.9, 40), False),
        (np.r_[np.linspace(0.4, 0.9, 30), np.linspace(0.9, 0.1, 10)], True),
        (np.r_[np.linspace(0.4, 0.9, 20), np.linspace(0.9, 0.3, 10), np.linspace(0.3, 0.85, 10)], False),  # came back
        (np.r_[np.linspace(0.4, 0.9, 30), np.full(10, 0.72)], False),  # less than half of the gain
        (np.r_[np.linspace(0.4, 0.9, 30), np.full(10, 0.6)], True),
        (np.r_[np.full(20, 0.4), np.full(20, 0.25)], False),  # too little to tell from noise
        (np.full(40, 0.5), False),
        (np.array([0.9, 0.1]), False),  # too short to say
    ],
)
def test_a_training_fell_if_it_lost_more_than_half_of_its_gain(course: np.ndarray, expected: bool) -> None:
    assert fell_in_training(course) is expected


def test_noise_is_no_fall() -> None:
    generator = np.random.default_rng(4)
    courses = np.clip(0.5 + generator.normal(0, 0.08, (2000, 40)), 0, 1)  # a method that learns nothing
    assert sum(map(fell_in_training, courses)) <= 2


def test_a_policy_below_its_base_model_fell_and_one_within_the_noise_did_not() -> None:
    generator = np.random.default_rng(5)
    base = [generator.uniform(0.2, 0.8, 30) for _ in range(3)]
    assert fell_below([values - 0.2 * generator.uniform(0, 1, 30) for values in base], base)
    assert not fell_below([values + generator.normal(0, 0.1, 30) for values in base], base)
    nulls = [fell_below([values + generator.normal(0, 0.1, 30) for values in base], base) for _ in range(1000)]
    assert np.mean(nulls) < 0.04  # one side of a 95 % interval
