"""Falls, interquartile means and performance profiles, held to rliable's numbers and to known answers."""

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
def test_interquartile_mean_is_rliables(seeds: int, seed: int, estimate: float, interval: tuple[float, float]) -> None:
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
    assert fell_in_training(course) == expected


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


def fell(rewards: np.ndarray) -> bool:
    """The definition of a fall, by loops."""
    window = min(len(rewards), max(5, -(-len(rewards) // 10)))
    means = [sum(rewards[at : at + window]) / window for at in range(len(rewards) - window + 1)]
    return max(means) - means[-1] >= max(0.2, (max(means) - means[0]) / 2)


def test_falls_equal_their_definition_for_courses_of_all_lengths() -> None:
    generator = np.random.default_rng(6)
    found = []
    for length in range(1, 140):
        turns = generator.uniform(0, 1, (8, 4))
        for course in (np.interp(np.linspace(0, 3, length), np.arange(4), each) for each in turns):
            found.append(fell_in_training(course))
            assert found[-1] == fell(course)
    assert 0.2 < np.mean(found) < 0.8


def test_a_loss_of_exactly_the_least_is_a_fall() -> None:
    assert fell_in_training(np.r_[np.full(20, 0.2), np.zeros(20)])
    assert fell_in_training(np.r_[np.zeros(10), np.ones(10), np.full(10, 0.5)])


def test_summaries_of_batches_and_their_confidence() -> None:
    batch = np.stack([SCORES, SCORES / 2])
    shares = [[(scores > threshold).mean() for threshold in (0.117, 0.5)] for scores in batch]
    assert performance_profile(batch, [0.117, 0.5]) == pytest.approx(np.array(shares))
    replicates = np.random.default_rng(7).normal(size=(101, 2))
    low, high = percentile_interval(replicates, 0.9)
    assert low == pytest.approx(np.sort(replicates, axis=0)[5]) and high == pytest.approx(
        np.sort(replicates, axis=0)[95]
    )
    assert share_interval(3, 3) == (pytest.approx(1 - share_interval(0, 3)[1]), 1.0)
    low, high = share_interval(1, 2, 0.9)
    assert binom.sf(0, 2, low) == pytest.approx(0.05) and binom.cdf(1, 2, high) == pytest.approx(0.05)


def test_seeds_are_drawn_for_each_benchmark_or_for_all() -> None:
    apart, together = (draw_seeds((3, 4), np.random.default_rng(8), 50, together=each) for each in (False, True))
    for drawn in (apart, together):
        assert drawn.shape == (50, 3, 4) and set(drawn.ravel()) == {0, 1, 2}
    assert (together == together[:, :, :1]).all() and not (apart == apart[:, :, :1]).all()


def test_a_fall_below_the_base_model_depends_on_the_confidence() -> None:
    base = [np.linspace(0.2, 0.8, 30), np.linspace(0.3, 0.7, 20)]
    noise = np.random.default_rng(9).normal(0, 0.1, 50)
    policy = [base[0] - 0.02 + noise[:30], base[1] - 0.02 + noise[30:]]
    assert fell_below(policy, base, 0.5) and not fell_below(policy, base, 0.999)
    assert not fell_below(base, policy, 0.5) and not fell_below(base, base)
