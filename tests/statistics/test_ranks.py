"""The order of methods in two studies: Kendall's tau, its interval, and inversions, by simulation."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import kendalltau

from evals.statistics.difference import Difference, estimate_difference
from evals.statistics.ranks import (
    Means,
    decision_accuracy,
    inversions,
    kendall_tau,
    repeated_tau,
    signal_to_noise,
    smallest_inversion,
)

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
