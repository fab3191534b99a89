"""Falls, interquartile means and performance profiles, held to rliable's numbers and to known answers."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom, kendalltau

from evals.statistics.difference import Difference
from evals.statistics.ranks import (
    Means,
    decision_accuracy,
    inversions,
    kendall_tau,
    repeated_tau,
    signal_of_equal_methods,
    signal_to_noise,
    smallest_inversion,
)
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
from tests.statistics.arms import estimate_difference

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
    base = [generator.uniform(0.2, 0.8, (1, 30)) for _ in range(3)]
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
    base = [np.linspace(0.2, 0.8, 30)[None], np.linspace(0.3, 0.7, 20)[None]]
    noise = np.random.default_rng(9).normal(0, 0.1, 50)
    policy = [base[0] - 0.02 + noise[:30], base[1] - 0.02 + noise[30:]]
    assert fell_below(policy, base, confidence=0.5) and not fell_below(policy, base, confidence=0.999)
    assert not fell_below(base, policy, confidence=0.5) and not fell_below(base, base)


# The order of methods in two studies: Kendall's tau, its interval, and inversions, by simulation.

TRUTH = np.array([0.80, 0.81, 0.76, 0.80, 0.70, 0.79, 0.73])
"""Scores of seven methods: two clearly worse, one a little, four nearly equal."""


PAIRS = list(combinations(range(len(TRUTH)), 2))


def ladder(generator: np.random.Generator, truths: list[np.ndarray], seeds: int = 4) -> list[Means]:
    """Studies of several sizes, whose seeds vary by 1 to 2 points."""
    return [Means.of(list(methods.mean(axis=-1))) for methods in scores(generator, truths, seeds, 2, 0.0)]


def scores(
    generator: np.random.Generator, truths: list[np.ndarray], seeds: int = 4, problems: int = 60, own: float = 0.08
) -> list[np.ndarray]:
    """The scores [M, S, N] of studies whose methods find problems differently hard, by ``own`` each."""
    studies = []
    for truth in truths:
        spread = generator.uniform(0.01, 0.02, (len(truth), 1, 1)) * generator.standard_normal((len(truth), seeds, 1))
        hard = own * generator.standard_normal((len(truth), 1, problems))
        studies.append(truth[:, None, None] + spread + hard)
    return studies


def differences(studies: list[np.ndarray]) -> list[list[Difference]]:
    return [[estimate_difference([methods[a]], [methods[b]]) for a, b in PAIRS] for methods in studies]


def test_tau_is_that_of_kendall() -> None:
    generator = np.random.default_rng(1)
    one, other = generator.random((2, 50, 7))
    expected = [kendalltau(a, b).statistic for a, b in zip(one, other, strict=True)]
    assert kendall_tau(one, other) == pytest.approx(np.array(expected))
    assert kendall_tau([1, 2, 3], [1, 1, 2]) == pytest.approx(2 / 3), "an equal pair counts as neither"


def test_decision_accuracy_is_the_share_of_pairs_with_the_same_sign() -> None:
    generator = np.random.default_rng(3)
    study, *others = ([generator.random(4) for _ in range(6)] for _ in range(4))
    agreed = [
        (study[a].mean() - study[b].mean()) * (other[a].mean() - other[b].mean()) > 0
        for other in others
        for a, b in combinations(range(6), 2)
    ]
    share, (low, high) = decision_accuracy(Means.of(study), [Means.of(other) for other in others], generator, 2000)
    assert share == pytest.approx(sum(agreed) / len(agreed)) and 0 < low < high < 1
    certain = Means.of([[mean - 1e-6, mean + 1e-6] for mean in (0.1, 0.2, 0.3)])
    reversed_ = Means.of([[mean - 1e-6, mean + 1e-6] for mean in (0.3, 0.2, 0.1)])
    assert decision_accuracy(certain, [certain], generator, 100) == (1.0, (1.0, 1.0))
    assert decision_accuracy(certain, [certain, reversed_], generator, 100) == (0.5, (0.5, 0.5))


def test_signal_to_noise_is_the_range_of_means_over_the_pooled_deviation() -> None:
    study = [[0.1, 0.2, 0.4], [0.5, 0.9], [0.3, 0.35, 0.3, 0.2]]
    means = [sum(seeds) / len(seeds) for seeds in study]
    squares = sum((score - mean) ** 2 for seeds, mean in zip(study, means, strict=True) for score in seeds)
    expected = (max(means) - min(means)) / (squares / (9 - 3)) ** 0.5
    assert signal_to_noise(Means.of(study)) == pytest.approx(expected)
    assert signal_to_noise(Means.of([[0.1, 0.1], [0.2, 0.2]])) == np.inf
    assert np.isnan(signal_to_noise(Means.of([[0.1, 0.1], [0.1, 0.1]])))


def test_equal_methods_have_the_signal_that_is_told_of_them() -> None:
    generator = np.random.default_rng(4)
    simulated = [signal_to_noise(Means.of([generator.normal(size=seeds) for seeds in (3, 3, 6)])) for _ in range(2000)]
    told = signal_of_equal_methods(Means.of([[0.1, 0.2, 0.4], [0.1, 0.2, 0.5], np.arange(6)]), generator, 10_000)
    assert told == pytest.approx(float(np.median(simulated)), rel=0.05)


def test_base_models_weigh_the_same_and_seeds_vary_around_their_own() -> None:
    scores, bases = [0.1, 0.3, 0.9], [1, 1, 2]
    means = Means.of([scores], [bases])
    assert means.means[0] == pytest.approx((0.2 + 0.9) / 2) and means.freedoms[0] == 1
    assert means.errors[0] == pytest.approx((0.02 * (1 / 2 + 1)) ** 0.5 / 2)
    assert means.errors[0] ** 2 * means.seeds[0] == pytest.approx(0.02), "the variance between seeds of one base model"
    with pytest.raises(ValueError, match="one seed of each"):
        Means.of([scores], [[1, 2, 3]])


def test_one_seed_is_no_order() -> None:
    with pytest.raises(ValueError, match="one seed"):
        Means.of([[0.1, 0.2], [0.3]])


@pytest.mark.parametrize("shrunk", [1.0, 0.3])
def test_equal_ladders_are_called_inverted_in_at_most_5_per_cent(shrunk: float) -> None:
    """The order is one on all three sizes; differences may shrink with the size, and four methods are nearly equal."""
    generator = np.random.default_rng(2)
    truths = [TRUTH, 0.8 + shrunk * (TRUTH - 0.8), 0.9 + shrunk**2 * (TRUTH - 0.8)]
    called = [min(inversions(differences(scores(generator, truths))).values()) <= 0.05 for _ in range(100)]
    assert np.mean(called) <= 0.05


def test_methods_that_few_problems_put_in_another_order_are_not_inverted() -> None:
    """Many seeds know the means on these 20 problems exactly; other problems would give the order another way."""
    generator, equal = np.random.default_rng(5), np.full(len(TRUTH), 0.8)
    called = [
        min(inversions(differences(scores(generator, [equal, equal], 8, 20, 0.1))).values()) <= 0.05 for _ in range(60)
    ]
    assert np.mean(called) <= 0.05


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_smallest_inversion_is_found_four_times_in_five(share: float) -> None:
    generator, equal = np.random.default_rng(6), np.full(len(TRUTH), 0.8)
    smallest = [
        smallest_inversion(one[0], other[0], len(PAIRS))
        for one, other in (differences(scores(generator, [equal, equal], 8)) for _ in range(20))
    ]
    planted, found = share * float(np.mean(smallest)), []
    for _ in range(100):
        studies = scores(generator, [equal, equal], 8)
        studies[0][0], studies[1][1] = studies[0][0] + planted, studies[1][1] + planted
        found.append(inversions(differences(studies))[0, 1, PAIRS.index((0, 1))] <= 0.05)
    assert (np.mean(found) >= 0.7) == (share == 1.0)


def test_an_inversion_is_recognised_and_named() -> None:
    """The method that is worst on the first two sizes is the best on the third."""
    generator, inverted = np.random.default_rng(3), TRUTH.copy()
    inverted[4] = 0.9
    found = []
    for _ in range(60):
        p_values = inversions(differences(scores(generator, [TRUTH, TRUTH, inverted], 8)))
        found.append({(*key[:2], *PAIRS[key[2]]) for key, p_value in p_values.items() if p_value <= 0.05})
    assert np.mean([bool(pairs) for pairs in found]) >= 0.9
    others = [pair for pairs in found for pair in pairs if 4 not in pair[2:] or pair[:2] == (0, 1)]
    assert len(others) <= 0.05 * len(found)


def test_the_repetition_holds_the_tau_of_another_draw() -> None:
    generator, within = np.random.default_rng(4), 0
    for _ in range(300):
        one, again = ladder(generator, [TRUTH, TRUTH])
        within += repeated_tau(one, generator, 400)[1] <= kendall_tau(one.means, again.means)
    assert within / 300 >= 0.92, "95 % of repetitions exceed it, but for the simulation's error"
