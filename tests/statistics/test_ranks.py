"""The order of methods in two studies: Kendall's tau, its interval, and inversions, by simulation."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from evals.statistics.ranks import Means, inversions, kendall_tau, repeated_tau, tau_interval

TRUTH = np.array([0.80, 0.81, 0.76, 0.80, 0.70, 0.79, 0.73])
"""Scores of seven methods: two clearly worse, one a little, four nearly equal."""


def ladder(generator: np.random.Generator, truths: list[np.ndarray], seeds: int = 4) -> list[Means]:
    """Studies of several sizes, whose seeds vary by 1 to 2 points."""
    spreads = generator.uniform(0.01, 0.02, (len(truths), len(TRUTH)))
    return [
        Means.of(list(truth[:, None] + spread[:, None] * generator.standard_normal((len(truth), seeds))))
        for truth, spread in zip(truths, spreads, strict=True)
    ]


def test_tau_is_that_of_kendall() -> None:
    generator = np.random.default_rng(1)
    one, other = generator.random((2, 50, 7))
    expected = [kendalltau(a, b).statistic for a, b in zip(one, other, strict=True)]
    assert kendall_tau(one, other) == pytest.approx(np.array(expected))
    assert kendall_tau([1, 2, 3], [1, 1, 2]) == pytest.approx(2 / 3), "an equal pair counts as neither"


def test_one_seed_is_no_order() -> None:
    with pytest.raises(ValueError, match="one seed"):
        Means.of([[0.1, 0.2], [0.3]])


@pytest.mark.parametrize("shrunk", [1.0, 0.3])
def test_equal_ladders_are_called_inverted_in_at_most_5_per_cent(shrunk: float) -> None:
    """The order is one on all three sizes; differences may shrink with the size, and four methods are nearly equal."""
    generator = np.random.default_rng(2)
    truths = [TRUTH, 0.8 + shrunk * (TRUTH - 0.8), 0.9 + shrunk**2 * (TRUTH - 0.8)]
    called = [min(inversions(ladder(generator, truths)).values()) <= 0.05 for _ in range(400)]
    assert np.mean(called) <= 0.05


def test_an_inversion_is_recognised_and_named() -> None:
    """The method that is worst on the first two sizes is the best on the third."""
    generator, inverted = np.random.default_rng(3), TRUTH.copy()
    inverted[4] = 0.9
    found = [
        {pair for pair, p_value in inversions(ladder(generator, [TRUTH, TRUTH, inverted])).items() if p_value <= 0.05}
        for _ in range(200)
    ]
    assert np.mean([bool(pairs) for pairs in found]) >= 0.9
    others = [pair for pairs in found for pair in pairs if 4 not in pair[2:] or pair[:2] == (0, 1)]
    assert len(others) <= 0.05 * len(found)


def test_the_interval_holds_the_tau_of_the_truths_and_the_repetition_that_of_another_draw() -> None:
    generator, other = np.random.default_rng(4), TRUTH[[0, 3, 2, 1, 6, 5, 4]]
    truth, inside, within = float(kendall_tau(TRUTH, other)), 0, 0
    for _ in range(300):
        one, two = ladder(generator, [TRUTH, other])
        low, high = tau_interval(one, two, generator, 400, 0.95)
        inside += low <= truth <= high
        (again,) = ladder(generator, [TRUTH])
        within += repeated_tau(one, generator, 400)[1] <= kendall_tau(one.means, again.means)
    assert inside / 300 >= 0.93 and within / 300 >= 0.85, "the means of a study are further apart than the truth"
