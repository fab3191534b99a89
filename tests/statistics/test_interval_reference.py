"""Intervals of a mean over benchmarks, and of a method's average, against loops written from their definitions."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from evals.statistics.interval import suite_intervals
from evals.statistics.suite import Suite
from tests.statistics.arms import estimate_average

Accuracies = Sequence[Sequence[float]]


def moment(values: Sequence[float], order: int) -> float:
    """The central moment of the values themselves."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** order for value in values) / len(values)


def wilson(mean: float, effective: float, quantile: float) -> tuple[float, float]:
    """The two accuracies p whose |p - mean| is the quantile times their own standard error, sqrt(p (1 - p) / n)."""
    square = quantile**2
    roots = np.roots([effective + square, -(2 * effective * mean + square), effective * mean**2])
    return float(roots.real.min()), float(roots.real.max())


def hall(mean: float, error: float, skewness: float, quantile: float) -> tuple[float, float]:
    """The ends where Hall's transform of the t statistic, t + s t^2 / 3 + s^2 t^3 / 27 + s / 6, is +-quantile."""

    def statistic(bound: float) -> float:
        def transform(t: float) -> float:
            return t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6 - bound

        return float(brentq(transform, -100.0, 100.0, xtol=1e-13))

    return mean - error * statistic(quantile), mean - error * statistic(-quantile)


def luck(informative: int, problems: int) -> float:
    """How much of an interval's being given at all is luck."""
    deviation = math.sqrt(max(informative * (1 - informative / problems), 0.5))
    return math.exp(-max((informative - 8 + 0.5) / deviation, 0.0) / 0.6)


def reference(
    accuracies: Accuracies, samples: Sequence[int], confidence: float, weights: Sequence[float]
) -> tuple[float, float] | None:
    """The interval as its docstring says it; None where none is trusted."""
    shares, sizes = [weight / sum(weights) for weight in weights], [len(values) for values in accuracies]
    counts = [[sum(value > 0 for value in values) for values in accuracies]]
    counts.append([sum(value < 1 for value in values) for values in accuracies])
    heaviest = max(share / size for share, size in zip(shares, sizes, strict=True))
    cubes = [(share / size / heaviest) ** 3 for share, size in zip(shares, sizes, strict=True)]
    if min(sum(cube * count for cube, count in zip(cubes, side, strict=True)) for side in counts) < 8:
        return None
    benchmarks = list(zip(shares, sizes, accuracies, strict=True))
    mean = math.fsum(share * math.fsum(values) / size for share, size, values in benchmarks)
    variances = [share**2 * moment(values, 2) / (size - 1) for share, size, values in benchmarks]
    variance = math.fsum(variances)
    freedom = variance**2 / math.fsum(v**2 / (size - 1) for v, size in zip(variances, sizes, strict=True))
    third = math.fsum(share**3 * moment(values, 3) / size**2 for share, size, values in benchmarks)
    second = math.fsum(share**2 * moment(values, 2) / size for share, size, values in benchmarks)
    skewness = third / second**1.5 * (1 + 7.5 / (freedom + 1))
    spread = math.fsum(share * moment(values, 2) * size / (size - 1) for share, size, values in benchmarks)
    largest = math.fsum(share * (m := math.fsum(values) / size) * (1 - m) for share, size, values in benchmarks)
    weight = math.sqrt(min(spread / largest, 1.0))
    quantile = float(stats.t.ppf(0.5 + confidence / 2, freedom))
    most = sum(size * count for size, count in zip(sizes, samples, strict=True))
    ends_w = wilson(mean, min(mean * (1 - mean) / variance, most), quantile)
    ends_h = hall(mean, math.sqrt(variance), skewness, quantile)
    low, high = (weight * one + (1 - weight) * other for one, other in zip(ends_w, ends_h, strict=True))
    lucky, unlucky = (luck(sum(side), sum(sizes)) for side in counts)
    low = mean - (mean - low) * (1 + 0.8 * lucky) * (1 - 0.5 * unlucky)
    high = mean + (high - mean) * (1 - 0.5 * lucky) * (1 + 0.8 * unlucky)
    return max(low, 0.0), min(high, 1.0)


def draw(generator: np.random.Generator, sizes: Sequence[int], samples: int, level: float) -> list[np.ndarray]:
    """Accuracies of benchmarks of these sizes, more or less skewed."""
    return [generator.binomial(samples, generator.beta(level, 1.0, size)) / samples for size in sizes]


SUITES = [((30,), (1.0,)), ((30, 40), (1.0, 1.0)), ((12, 60, 25), (1.0, 3.0, 2.0)), ((9,), (2.0,))]


@pytest.mark.parametrize(("sizes", "weights"), SUITES, ids=str)
@pytest.mark.parametrize("level", [0.15, 1.0, 6.0])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_suite_intervals_equal_their_reference(
    sizes: tuple[int, ...], weights: tuple[float, ...], level: float, confidence: float
) -> None:
    generator = np.random.default_rng(3)
    given = 0
    for samples in (1, 4, 16):
        for _ in range(4):
            suite = draw(generator, sizes, samples, level)
            expected = reference([values.tolist() for values in suite], [samples] * len(sizes), confidence, weights)
            found = suite_intervals(suite, [samples] * len(sizes), confidence, Suite(weights))
            assert np.allclose(found, (math.nan, math.nan) if expected is None else expected, 1e-9, equal_nan=True)
            given += expected is not None
    assert given or sizes == (9,)


@pytest.mark.parametrize(("solved", "given"), [(7, False), (8, True), (15, True), (22, True), (23, False)])
def test_an_interval_needs_eight_problems_with_a_success_and_eight_with_a_failure(solved: int, given: bool) -> None:
    values = [1.0] * solved + [0.0] * (30 - solved)
    found = suite_intervals([values], [1])
    assert bool(np.isfinite(found).all()) == given == (reference([values], [1], 0.95, [1.0]) is not None)
    if given:
        assert found == pytest.approx(reference([values], [1], 0.95, [1.0]), rel=1e-9)


def test_the_effective_sample_size_is_at_most_the_number_of_samples() -> None:
    """Problems as equal as these would make it larger: 20 problems of 2 samples, all but one half solved."""
    suite = [[0.5] * 19 + [1.0], [0.5] * 30]
    found = suite_intervals(suite, [2, 3])
    assert found == pytest.approx(reference(suite, [2, 3], 0.95, [1.0, 1.0]), rel=1e-9)


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_of_an_average_equals_its_reference(is_fixed: bool, confidence: float) -> None:
    """Cochran and Cox's mean of the reach over problems, that of the suite's interval, and over seeds, Student's."""
    generator = np.random.default_rng(5)
    weights = (1.0, 3.0)
    suite = [np.stack([draw(generator, [size], 4, level)[0] for level in (0.8, 1.0, 1.4)]) for size in (30, 50)]
    average = estimate_average(suite, [4, 4], is_fixed=is_fixed, confidence=confidence, weights=weights)
    by_seed = [(suite[0][s].mean() + 3 * suite[1][s].mean()) / 4 for s in range(3)]
    assert average.by_seed == pytest.approx(by_seed) and average.value == pytest.approx(np.mean(by_seed))
    pooled = [values.mean(axis=0) for values in suite]
    over_problems = sum((w / 4) ** 2 * v.var(ddof=1) / len(v) for w, v in zip(weights, pooled, strict=True))
    over_seeds = 0.0 if is_fixed else np.var(by_seed, ddof=1) / 3
    noise = sum((w / 4 / v.size) ** 2 * (v * (1 - v) / 3).sum() for w, v in zip(weights, suite, strict=True))
    error = math.sqrt(over_problems - min(noise, over_seeds) + over_seeds)
    assert average.standard_error == pytest.approx(error)
    low, high = suite_intervals(pooled, [12, 12], confidence, Suite(weights))
    quantile, share = float(stats.t.ppf(0.5 + confidence / 2, 2)), over_seeds / error**2
    down, up = (
        error * ((1 - share) * reach / math.sqrt(over_problems) + share * quantile)
        for reach in (average.value - low, high - average.value)
    )
    assert average.confidence_interval == pytest.approx((average.value - down, average.value + up))


def test_an_average_says_what_it_knows() -> None:
    """One seed has no error, a handful of problems no interval, and equal problems and seeds have no spread."""
    generator = np.random.default_rng(6)
    suite = [np.stack([draw(generator, [30], 4, 1.0)[0] for _ in range(2)])]
    alone = estimate_average([suite[0][:1]], [4], is_fixed=False)
    assert (alone.standard_error, alone.confidence_interval) == (None, None)
    assert alone.by_seed == (alone.value,) == pytest.approx((suite[0][0].mean(),))
    fixed = estimate_average([suite[0][:1]], [4], is_fixed=True)
    assert fixed.confidence_interval == pytest.approx(tuple(map(float, suite_intervals([suite[0][0]], [4]))))
    few = estimate_average([suite[0][:, :7]], [4], is_fixed=False)
    assert few.standard_error is not None and few.confidence_interval is None
    assert few.value == pytest.approx(suite[0][:, :7].mean())
    assert few.by_seed == pytest.approx(suite[0][:, :7].mean(axis=1))
    equal = estimate_average([np.full((2, 30), 0.5)], [4], is_fixed=False)
    assert equal.standard_error == 0.0 and equal.confidence_interval is None


def test_an_averages_interval_ends_at_0_and_1() -> None:
    for apart, end in ((0.4, 0), (0.6, 1)):
        problems = np.tile([0.0, 1.0], 20)
        suite = [np.stack([np.clip(problems * 0.5 + shift, 0, 1) for shift in (apart - 0.4, apart)])]
        interval = estimate_average(suite, [4], is_fixed=False).confidence_interval
        assert interval is not None and interval[end] == end
