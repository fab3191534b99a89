"""Intervals for one score: what they reduce to, when there is none, and their coverage by simulation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit

from evals.statistics.interval import hall_interval, score_interval, score_intervals, t_interval, wilson_interval

PROBLEMS, SAMPLES, REPLICATES = 30, 32, 6_000
BETA, LOGIT_NORMAL = "beta", "logit-normal"

# (family, its concentration or spread, true accuracy): from all-or-nothing problems (beta 0.3) to equally hard ones
# (beta 1e6). Tested separately: beta 0.3 at 0.2 and 0.8, and accuracies so near 0 or 1 that few have an interval.
SETTINGS = [
    *[(BETA, 0.3, mean) for mean in (0.35, 0.5, 0.65)],
    *[(BETA, 1.0, mean) for mean in (0.1, 0.2, 0.5, 0.8, 0.9)],
    *[(BETA, 3.0, mean) for mean in (0.05, 0.1, 0.5, 0.9, 0.95)],
    *[(BETA, 10.0, mean) for mean in (0.02, 0.05, 0.5, 0.95, 0.98)],
    *[(BETA, 50.0, mean) for mean in (0.02, 0.05, 0.5, 0.95, 0.98)],
    *[(BETA, 1e6, mean) for mean in (0.02, 0.05, 0.5, 0.95, 0.98)],
    *[(LOGIT_NORMAL, 1.0, mean) for mean in (0.01, 0.02, 0.05, 0.2, 0.5, 0.95, 0.99)],
    *[(LOGIT_NORMAL, 2.0, mean) for mean in (0.02, 0.05, 0.1, 0.5, 0.95)],
    *[(LOGIT_NORMAL, 3.0, mean) for mean in (0.1, 0.2, 0.5, 0.9)],
]


def simulated_counts(family: str, spread: float, mean: float, replicates: int = REPLICATES) -> npt.NDArray[np.int64]:
    """Counts [replicates, PROBLEMS] of benchmarks whose problems have the given mean accuracy."""
    generator = np.random.default_rng([int(1000 * mean), int(10 * spread), len(family)])
    shape = (replicates, PROBLEMS)
    if family == BETA:
        accuracies = generator.beta(mean * spread, (1.0 - mean) * spread, shape)
    else:
        grid = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
        centre = brentq(lambda value: expit(value + spread * grid).mean() - mean, -30.0, 30.0)
        accuracies = expit(centre + spread * generator.normal(size=shape))
    return generator.binomial(SAMPLES, accuracies)


@pytest.mark.parametrize(("family", "spread", "mean"), SETTINGS)
def test_95_percent_intervals_cover_between_93_and_97_percent(family: str, spread: float, mean: float) -> None:
    low, high = score_intervals(simulated_counts(family, spread, mean), SAMPLES)
    given = ~np.isnan(low)
    assert given.mean() > 0.4
    coverage = ((low <= mean) & (mean <= high))[given].mean()
    simulation_error = 2.33 * np.sqrt(0.95 * 0.05 / given.sum())  # 1 % one-sided: the noise of the simulation itself
    assert 0.93 - simulation_error <= coverage <= 0.97 + simulation_error


@pytest.mark.parametrize("mean", [0.2, 0.8])
def test_intervals_of_all_or_nothing_problems_err_on_the_long_side(mean: float) -> None:
    low, high = score_intervals(simulated_counts(BETA, 0.3, mean), SAMPLES)
    given = ~np.isnan(low)
    assert 0.96 <= ((low <= mean) & (mean <= high))[given].mean() <= 0.985


@pytest.mark.parametrize("mean", [0.002, 0.01, 0.02, 0.05, 0.98, 0.995])
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_an_interval_is_rarely_given_and_wrong_where_a_handful_of_problems_decides(spread: float, mean: float) -> None:
    counts = simulated_counts(BETA, spread, mean)
    low, high = score_intervals(counts, SAMPLES)
    given_and_wrong = ~np.isnan(low) & ~((low <= mean) & (mean <= high))
    assert given_and_wrong.mean() <= 0.05
    textbook_low, textbook_high = t_interval(counts / SAMPLES)
    assert ((textbook_low <= mean) & (mean <= textbook_high)).mean() < 0.93  # what is being avoided


def test_the_textbook_interval_fails_where_ours_holds() -> None:
    counts = simulated_counts(LOGIT_NORMAL, 2.0, 0.05)
    low, high = t_interval(counts / SAMPLES)
    assert ((low <= 0.05) & (high >= 0.05)).mean() < 0.89


def test_t_interval_agrees_with_scipy() -> None:
    values = np.random.default_rng(3).random(30)
    low, high = t_interval(values, 0.9)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.9)
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_wilson_agrees_with_scipy_when_problems_are_all_or_nothing() -> None:
    solved = np.array([1.0] * 300 + [0.0] * 700)  # many: the t quantile is then the normal one, SE the binomial one
    low, high = wilson_interval(solved, 1)
    expected = stats.binomtest(300, 1000).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_hall_is_the_t_interval_without_skewness_and_leans_to_the_long_tail_with_it() -> None:
    symmetric = np.array([0.1, 0.2, 0.3, 0.4, 0.5] * 3)
    assert np.array(hall_interval(symmetric)) == pytest.approx(np.array(t_interval(symmetric)))
    skewed = np.array([0.0] * 20 + [0.1] * 6 + [0.9] * 4)
    (low, high), (t_low, t_high) = hall_interval(skewed), t_interval(skewed)
    assert low > t_low
    assert high > t_high


def test_halls_cubic_is_inverted_exactly() -> None:
    values = np.random.default_rng(4).beta(0.5, 2.0, 30)
    problems, quantile = 30, stats.t.ppf(0.975, 29)
    skewness = stats.skew(values)
    low, high = hall_interval(values)
    error = values.std(ddof=1) / np.sqrt(problems)
    for end, bound in ((low, quantile), (high, -quantile)):
        statistic = (values.mean() - end) / error
        scaled = skewness * statistic / np.sqrt(problems)
        transformed = np.sqrt(problems) / skewness * (scaled + scaled**2 / 3 + scaled**3 / 27)
        assert transformed + skewness / (6 * np.sqrt(problems)) == pytest.approx(bound, abs=1e-9)


@pytest.mark.parametrize("counts", [[0] * 30, [32] * 30, [0] * 23 + [9] * 7, [32] * 23 + [3] * 7, [5, 6, 7]])
def test_no_interval_where_a_handful_of_problems_decides(counts: list[int]) -> None:
    assert score_interval(counts, 32) is None


def test_intervals_mirror_when_right_and_wrong_change_places() -> None:
    counts = np.random.default_rng(5).binomial(32, 0.1, 30)
    low, high = score_interval(counts, 32) or (np.nan, np.nan)
    assert score_interval(32 - counts, 32) == pytest.approx((1.0 - high, 1.0 - low))
    assert 0.0 <= low < counts.mean() / 32 < high <= 1.0
