"""Intervals for one score or a suite: what they reduce to, when there is none, and their coverage by simulation."""

import numpy as np
import pytest
from scipy import stats

from evals.statistics.interval import score_interval, score_intervals, suite_intervals, t_interval
from evals.statistics.suite import Suite
from tests.statistics.arms import estimate_average
from tests.statistics.populations import Population, hall_interval, measure_coverage, t_intervals, wilson_interval

REPLICATES = 4_000
MEANS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.95, 0.98, 0.99)
# From all-or-nothing problems (beta 0.1) to equally hard ones (beta 1e6), long tails (normal 4), two kinds of problems.
SPREADS = {"beta": (0.1, 0.3, 1.0, 3.0, 10.0, 50.0, 1e6), "normal": (1.0, 2.0, 3.0, 4.0), "two": (0.3, 0.7, 1.0)}
POPULATIONS = [
    *(Population(family, spread, mean) for family, spreads in SPREADS.items() for spread in spreads for mean in MEANS),
    *(Population("impossible", 0.5, mean) for mean in (0.1, 0.2, 0.3, 0.45)),
]


def name(population: Population) -> str:
    return f"{population.family}-{population.spread:g}-{population.accuracy:g}"


@pytest.mark.parametrize("population", POPULATIONS, ids=name)
def test_95_percent_intervals_cover_between_93_and_97_percent_wherever_they_are_given(population: Population) -> None:
    coverage = measure_coverage(population, benchmarks=REPLICATES)
    if coverage.given < 0.1:  # too few to count coverage among; an interval is then seldom printed and wrong
        assert coverage.given == 0.0 or coverage.given * (1.0 - coverage.covered) <= 0.02
        return
    noise = 2.33 * np.sqrt(0.95 * 0.05 / (coverage.given * REPLICATES))  # 1 % one-sided, of the simulation itself
    assert 0.93 - noise <= coverage.covered <= 0.97 + noise


def test_coverage_is_measured_on_most_populations() -> None:
    shares = [measure_coverage(population, benchmarks=200).given for population in POPULATIONS]
    assert np.mean(np.array(shares) >= 0.1) > 0.7


@pytest.mark.parametrize("mean", [0.002, 0.01, 0.02, 0.05, 0.98, 0.995])
@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0, 3.0])
def test_where_a_handful_of_problems_decides_an_interval_is_rarely_given(spread: float, mean: float) -> None:
    population = Population("beta", spread, mean)
    ours = measure_coverage(population, benchmarks=REPLICATES)
    given_and_wrong = ours.given * (1.0 - ours.covered) if ours.given else 0.0
    assert given_and_wrong <= 0.035
    assert ours.given < 0.95
    assert measure_coverage(population, t_intervals, benchmarks=REPLICATES).covered < 0.93  # what is avoided


@pytest.mark.parametrize(("problems", "samples"), [(60, 16), (100, 8), (200, 4)])
@pytest.mark.parametrize(("family", "spread"), [("beta", 0.5), ("beta", 3.0), ("normal", 2.0)])
@pytest.mark.parametrize("mean", [0.05, 0.3, 0.9])
def test_other_sizes_cover_too(problems: int, samples: int, family: str, spread: float, mean: float) -> None:
    population = Population(family, spread, mean)
    coverage = measure_coverage(population, problems=problems, samples=samples, benchmarks=1_500)
    noise = 2.6 * np.sqrt(0.95 * 0.05 / (coverage.given * 1_500))
    assert 0.93 - noise <= coverage.covered <= 0.97 + noise


@pytest.mark.parametrize(
    "means", [(0.5, 0.5), (0.02, 0.05, 0.1), (0.9, 0.6, 0.3, 0.1, 0.02), (0.0, 0.0, 0.2), (0.98, 0.95)], ids=str
)
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_intervals_of_a_suite_cover_its_mean_over_benchmarks(means: tuple[float, ...], spread: float) -> None:
    generator = np.random.default_rng(7)
    sizes = (30, 40, 20, 30, 30)[: len(means)]
    strata = [
        (Population("beta", spread, mean).draw(size, 16, REPLICATES, generator) if mean else
         np.zeros((REPLICATES, size))) / 16
        for mean, size in zip(means, sizes, strict=True)
    ]  # fmt: skip
    low, high = suite_intervals(strata, [16] * len(strata))
    given = ~np.isnan(low)
    covered = ((low <= np.mean(means)) & (np.mean(means) <= high))[given].mean()
    noise = 2.6 * np.sqrt(0.95 * 0.05 / given.sum())
    if given.mean() < 0.2:
        assert given.mean() * (1.0 - covered) <= 0.02
        return
    assert 0.93 - noise <= covered <= 0.97 + noise


@pytest.mark.parametrize("spread", [2.0, 3.0, 5.0])
def test_a_small_benchmark_beside_a_large_one_is_asked_whether_it_would_have_an_interval_alone(spread: float) -> None:
    """30 problems with half of the weight decide the variance; the successes of 500 others say nothing about it."""
    generator = np.random.default_rng(9)
    small = Population("beta", spread, 0.05).draw(30, 32, REPLICATES, generator)
    large = Population("beta", 3.0, 2 / 3).draw(500, 32, REPLICATES, generator)
    truth = (0.05 + 2 / 3) / 2
    low, high = suite_intervals([small / 32, large / 32], [32, 32])
    given, alone = ~np.isnan(low), ~np.isnan(score_intervals(small, 32)[0])
    covered = ((low <= truth) & (truth <= high))[given].mean()
    assert covered >= 0.93 - 2.6 * np.sqrt(0.95 * 0.05 / given.sum())
    assert given[alone].mean() > 0.98  # no interval is lost that the small benchmark has by itself
    assert (given & ~alone).mean() < 0.02
    low, high = suite_intervals([small / 32, large / 32], [32, 32], suite=Suite([30.0, 500.0]))
    assert not np.isnan(low).any()  # with so little weight it decides nothing
    truth = (30 * 0.05 + 500 * 2 / 3) / 530
    assert 0.93 <= ((low <= truth) & (truth <= high)).mean() <= 0.97


def test_equal_benchmarks_that_are_short_of_successes_together_make_up_for_it() -> None:
    """A suite of five hard benchmarks is one of 150 problems, though each of them would be refused."""
    generator = np.random.default_rng(10)
    counts = [Population("beta", 0.5, 0.03).draw(30, 32, REPLICATES, generator) for _ in range(5)]
    low, high = suite_intervals([each / 32 for each in counts], [32] * 5)
    given = ~np.isnan(low)
    covered = ((low <= 0.03) & (high >= 0.03))[given].mean()
    assert given.mean() > 0.7 and np.isnan(score_intervals(counts[0], 32)[0]).mean() > 0.9
    assert 0.93 <= covered <= 0.97 + 2.6 * np.sqrt(0.95 * 0.05 / given.sum())


@pytest.mark.parametrize("weights", [(30.0, 198.0, 500.0), (3.0, 1.0, 1.0)])
def test_weighted_means_are_covered(weights: tuple[float, ...]) -> None:
    generator = np.random.default_rng(11)
    means, sizes = (0.15, 0.45, 0.8), (30, 198, 500)
    strata = [
        Population("beta", 1.0, mean).draw(size, 8, REPLICATES, generator) / 8
        for mean, size in zip(means, sizes, strict=True)
    ]
    truth = np.average(means, weights=weights)
    low, high = suite_intervals(strata, [8] * 3, suite=Suite(weights))
    given = ~np.isnan(low)
    assert given.mean() > 0.8
    assert 0.93 <= ((low <= truth) & (truth <= high))[given].mean() <= 0.97 + 0.01


def test_weights_by_problems_are_one_benchmark_of_all_problems() -> None:
    strata = [np.random.default_rng(key).random((3, size)) for key, size in ((12, 20), (13, 50))]
    joined = np.concatenate(strata, axis=1)
    average = estimate_average(strata, [8, 8], is_fixed=False, weights=[20.0, 50.0])
    assert average.value == pytest.approx(joined.mean())
    assert average.by_seed == pytest.approx(joined.mean(axis=1))


@pytest.mark.parametrize("seed_sd", [0.0, 0.02, 0.05])
def test_intervals_of_a_method_cover_over_problems_and_seeds(seed_sd: float) -> None:
    generator = np.random.default_rng(8)
    replicates, hits = 600, 0
    for _ in range(replicates):
        rates = [generator.beta(0.6, 1.4, 30), generator.beta(1.5, 1.5, 30)]
        seeds = 1.0 + seed_sd / 0.4 * generator.normal(size=(3, 1))  # a seed scales all accuracies
        accuracies = [generator.binomial(32, np.clip(seeds * rate, 0.0, 1.0)) / 32 for rate in rates]
        interval = estimate_average(accuracies, [32, 32], is_fixed=False).confidence_interval
        assert interval is not None
        hits += interval[0] <= 0.4 <= interval[1]
    assert hits / replicates >= 0.93  # seeds and sampling noise are counted on the safe side


def test_the_textbook_interval_fails_where_ours_holds() -> None:
    population = Population("normal", 2.0, 0.05)
    assert measure_coverage(population, t_intervals, benchmarks=REPLICATES).covered < 0.89
    assert measure_coverage(population, benchmarks=REPLICATES).covered > 0.93


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


def test_intervals_end_at_0_and_1() -> None:
    counts = np.array([2, 2, 8, 9, 9, 9, 10, 10])  # so few and so skewed that the ends would lie beyond
    low, high = score_interval(counts, 32) or (np.nan, np.nan)
    assert low == 0.0 and score_interval(32 - counts, 32) == (pytest.approx(1.0 - high), 1.0)


def test_a_suite_of_one_benchmark_is_that_benchmark() -> None:
    counts = np.random.default_rng(6).binomial(32, 0.1, (50, 30))
    assert np.array(suite_intervals([counts / 32], [32])) == pytest.approx(np.array(score_intervals(counts, 32)))


def test_a_suite_of_equal_skewed_benchmarks_is_a_long_benchmark() -> None:
    accuracies = np.random.default_rng(7).beta(0.5, 4.0, 100)
    low, high = suite_intervals([accuracies, accuracies], [32, 32])
    expected = suite_intervals([np.concatenate([accuracies, accuracies])], [32])
    assert (float(low), float(high)) == pytest.approx(tuple(map(float, expected)), abs=3e-4)
    assert float(high) - accuracies.mean() > 1.1 * (accuracies.mean() - float(low))  # the skewness is there


def test_the_interval_of_a_suite_agrees_with_the_stratified_bootstrap() -> None:
    generator = np.random.default_rng(8)
    strata = [generator.beta(1.0, 1.0, 60), generator.beta(1.0, 3.0, 90)]
    draws = [values[generator.integers(0, len(values), (20_000, len(values)))].mean(axis=1) for values in strata]
    expected = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    assert np.array(suite_intervals(strata, [32, 32])) == pytest.approx(expected, abs=0.006)


def test_benchmarks_without_two_problems_are_refused() -> None:
    for strata in ([], [np.array([0.5])]):
        with pytest.raises(ValueError, match="two problems"):
            suite_intervals(strata, [32] * len(strata))
    for samples, weights in (([32], None), ([32, 32], [1.0])):
        with pytest.raises(ValueError, match="zip"):
            suite_intervals([np.full(9, 0.5)] * 2, samples, suite=Suite(weights))


@pytest.mark.filterwarnings("error")
def test_degenerate_scores_have_no_ends_and_no_warning() -> None:
    for value in (0.0, 1.0):
        assert np.isnan(wilson_interval([value] * 9, 4)).all()
    assert np.isnan(hall_interval([0.5] * 9)).all() and np.isfinite(wilson_interval([0.5] * 9, 4)).all()
    assert np.isfinite(hall_interval([0.0, 0.5, 1.0] * 3)).all()  # without skewness
    assert np.isnan(suite_intervals([[0.0] * 9, [0.0] * 12], [4, 4])).all()
    assert np.isnan(suite_intervals([[0.5] * 9], [4])).all() and np.isnan(suite_intervals([[0.5, 1.0]], [4])).all()
    assert score_interval([0, 4] * 3, 4) is None and score_interval([1, 3] * 4, 4) is not None
    nothing = score_intervals(np.ones((2, 3, 7), dtype=int), 4)
    assert np.isnan(nothing).all() and np.shape(nothing) == (2, 2, 3)


def test_intervals_of_a_batch_are_those_of_its_rows() -> None:
    counts = np.random.default_rng(7).binomial(4, 0.4, (2, 3, 12))
    for interval in (
        lambda rows: score_intervals(rows, 4, 0.9),
        lambda rows: t_interval(rows / 4, 0.9),
        lambda rows: wilson_interval(rows / 4, 4, 0.9),
        lambda rows: hall_interval(rows / 4, 0.9),
    ):
        of_rows = np.array([[interval(row) for row in rows] for rows in counts])
        for end, expected in zip(interval(counts), np.moveaxis(of_rows, 2, 0), strict=True):
            assert end.shape == (2, 3) and end == pytest.approx(expected)


def test_a_single_score_has_its_own_confidence_and_wilsons_size_its_own_limit() -> None:
    counts = np.array([0, 1, 4, 4, 3, 1, 2, 4, 0, 4, 1, 2, 4, 1])
    expected = pytest.approx([float(end) for end in suite_intervals([counts / 4], [4], 0.5)])
    assert score_interval(counts, 4, 0.5) == expected
    accuracies, (low, high) = counts / 4, wilson_interval(counts / 4, 4)
    error = accuracies.std(ddof=1) / np.sqrt(14)
    for end in (low, high):  # as far from the mean as its own standard error says, of p (1 - p) / SE^2 samples
        own = np.sqrt(end * (1 - end) * error**2 / (accuracies.mean() * (1 - accuracies.mean())))
        assert abs(end - accuracies.mean()) == pytest.approx(stats.t.ppf(0.975, 13) * own)
    # Problems all alike but one: no more samples than there are.
    low, high = wilson_interval([0.5] * 13 + [0.75], 4)
    mean = 7.25 / 14
    assert (high - mean) ** 2 == pytest.approx(stats.t.ppf(0.975, 13) ** 2 * high * (1 - high) / (14 * 4))
