"""The features of a method's trainings, their uncertainty, and the ends of a curve, step by step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evals.core.errors import InvalidInput
from evals.statistics.accuracy import clustered_standard_error
from evals.statistics.interval import suite_intervals, t_interval
from evals.statistics.power import Design
from evals.statistics.resampling import holm, sign_flip_p_values
from evals.statistics.robust import interquartile_mean, performance_profile, stratified_bootstrap
from evals.statistics.scaling import Course, CourseEstimate, Curves, estimate_course, fit_curves
from evals.statistics.suite import Suite, parse_weighting, weighted_mean, weighting_text, weights_of
from tests.statistics.arms import bootstrap_differences, estimate_average, estimate_difference
from tests.statistics.populations import hall_interval, wilson_interval

TARGET = 0.6


def course(seeds: int = 3, problems: int = 12, points: int = 8) -> Course:
    """Accuracies that rise with compute, in eighths."""
    generator = np.random.default_rng(4)
    compute = np.linspace(10.0, 200.0, points) * generator.uniform(0.9, 1.1, (seeds, 1))
    rises = np.concatenate([np.zeros((seeds, 1)), compute / (compute + 60.0)], axis=1)
    means = 0.3 + 0.5 * rises[..., None] * generator.uniform(0.8, 1.2, (seeds, 1, problems))
    return Course(compute, generator.binomial(8, np.clip(means, 0, 1)) / 8)


def features(compute: np.ndarray, accuracies: np.ndarray, target: float) -> list[float]:
    """The five features of accuracies [S, 1 + T, N], one after the other."""
    scores = accuracies.mean(axis=2)
    base, flat, points = [scores[:, 0].mean()], compute.ravel(), scores[:, 1:].ravel()
    curve = fit_curves(flat, points[None], base)
    needed = float(np.clip(curve.log_compute(target)[0], np.log(flat.min() / 100), np.log(flat.max() * 100)))
    early = flat <= flat.max() / 2
    half = fit_curves(flat[early], points[None, early], base)
    error = float((half.scores(flat[~early])[0] - points[~early]).mean())
    return [float(curve.ceiling[0]), float(curve.log_exponent[0]), float(curve.log_midpoint[0]), needed, error]


@pytest.mark.parametrize("target", [TARGET, 0.1, 0.999])
def test_features_are_those_of_the_fits(target: float) -> None:
    given = course()
    draws = np.stack([np.ones(12, dtype=np.int64), np.r_[3, 2, 1, np.zeros(3), np.ones(6)].astype(np.int64)])
    found = estimate_course(given, draws, target)
    assert found.values == pytest.approx(features(given.compute, given.accuracies, target))
    assert found.replicates[0] == pytest.approx(found.values)
    drawn = np.repeat(given.accuracies, draws[1], axis=2)
    assert found.replicates[1] == pytest.approx(features(given.compute, drawn, target))
    for seed in range(3):
        rest = [each for each in range(3) if each != seed]
        expected = features(given.compute[rest], given.accuracies[rest], target)
        assert found.without_seed[seed] == pytest.approx(expected)
    curve = given.curve()
    assert [curve.ceiling[0], curve.log_exponent[0], curve.log_midpoint[0]] == pytest.approx(found.values[:3])
    assert curve.base == pytest.approx([given.accuracies[:, 0].mean()])


def test_one_seed_is_estimated_and_three_points_in_the_first_half_are_enough() -> None:
    alone = course(seeds=1)
    found = estimate_course(alone, np.ones((1, 12), dtype=np.int64), TARGET)
    assert found.without_seed.tolist() == [found.values.tolist()] and np.isnan(found.seed_variance).all()
    for points, known in ((2, False), (3, True)):
        compute = np.r_[np.linspace(1, 5, points), 10.0][None]
        short = Course(compute, np.broadcast_to(np.linspace(0.2, 0.7, points + 2)[None, :, None], (1, points + 2, 4)))
        for seeds in (1, 2):  # three of each seed
            course_of = Course(*(np.repeat(part, seeds, axis=0) for part in (short.compute, short.accuracies)))
            error = estimate_course(course_of, np.ones((1, 4), dtype=np.int64), TARGET).values[4]
            assert bool(np.isfinite(error)) == known


def test_of_two_seeds_each_is_left_out_once() -> None:
    both = course(seeds=2)
    found = estimate_course(both, np.ones((1, 12), dtype=np.int64), TARGET)
    alone = [features(both.compute[[seed]], both.accuracies[[seed]], TARGET) for seed in (1, 0)]
    assert found.without_seed == pytest.approx(np.array(alone))
    assert found.less(None, 12).seed_freedom == pytest.approx([1.0] * 5)


def test_a_difference_of_courses_has_both_variances() -> None:
    generator = np.random.default_rng(5)
    one, other = (
        CourseEstimate(generator.normal(size=5), generator.normal(size=(7, 5)), generator.normal(size=(seeds, 5)))
        for seeds in (4, 3)
    )
    jackknife = [3 * one.without_seed.var(axis=0), 2 * other.without_seed.var(axis=0)]
    assert one.seed_variance == pytest.approx(jackknife[0])
    alone = one.less(None, 20)
    assert alone.estimate.tolist() == one.values.tolist() and alone.problem_freedom.tolist() == [19.0] * 5
    assert alone.problem_variance == pytest.approx(one.replicates.var(axis=0, ddof=1))
    assert alone.seed_variance == pytest.approx(jackknife[0]) and alone.seed_freedom == pytest.approx([3.0] * 5)
    both = one.less(other, 20)
    assert both.estimate == pytest.approx(one.values - other.values)
    assert both.problem_variance == pytest.approx((one.replicates - other.replicates).var(axis=0, ddof=1))
    total = jackknife[0] + jackknife[1]
    assert both.seed_variance == pytest.approx(total)
    assert both.seed_freedom == pytest.approx(total**2 / (jackknife[0] ** 2 / 3 + jackknife[1] ** 2 / 2))


@pytest.mark.filterwarnings("error")
def test_scores_beyond_a_curve_need_no_compute_or_never_come() -> None:
    curve = Curves(*(np.array([value]) for value in (0.25, 0.75, 0.0, 2.0)))
    assert [float(curve.log_compute(part)[0]) for part in (0.2, 0.25, 0.75, 0.8)] == [-np.inf, -np.inf, np.inf, np.inf]
    assert curve.log_compute(0.5)[0] == pytest.approx(2.0)
    assert curve.log_compute(0.65)[0] == pytest.approx(2.0 + np.log(4.0))  # four fifths of the gain: odds of four
    flat = Curves(*(np.array([value]) for value in (0.5, 0.5, 0.0, 2.0)))
    assert float(flat.log_compute(0.5)[0]) == np.inf


def test_rows_are_fitted_by_themselves_within_the_bounds() -> None:
    """Exponents lie between 0.3 and 12, midpoints up to ten times the greatest compute."""
    compute = np.linspace(1.0, 20.0, 15)
    truth = [
        Curves(*(np.array([value]) for value in (base, ceiling, np.log(exponent), np.log(midpoint))))
        for base, ceiling, exponent, midpoint in ((0.2, 0.9, 2.0, 5.0), (0.5, 0.6, 1.0, 3.0), (0.7, 0.1, 3.0, 8.0))
    ]
    rows = np.concatenate([curve.scores(compute) for curve in truth])
    found = fit_curves(compute, rows, [0.2, 0.5, 0.7])
    assert found.ceiling == pytest.approx([0.9, 0.6, 0.1], abs=2e-3)
    assert np.exp(found.log_midpoint) == pytest.approx([5.0, 3.0, 8.0], rel=1e-2)
    assert np.exp(found.log_exponent) == pytest.approx([2.0, 1.0, 3.0], rel=1e-2)
    steps = np.stack([np.where(compute > 10, 0.9, 0.2), np.geomspace(0.21, 0.3, 15)])
    extreme = fit_curves(compute, steps, np.full(2, 0.2))
    assert extreme.log_exponent[0] == pytest.approx(np.log(12.0))
    assert (np.exp(extreme.log_midpoint) <= 200.0 * (1 + 1e-12)).all() and (extreme.log_exponent >= np.log(0.3)).all()
    beyond = [Curves(*(np.array([value]) for value in (0.2, 0.8, *np.log(ends)))) for ends in ((0.1, 3.0), (1.0, 0.02))]
    found = fit_curves(compute, np.concatenate([curve.scores(compute) for curve in beyond]), np.full(2, 0.2))
    assert (found.log_exponent >= np.log(0.3) - 1e-12).all() and (found.log_midpoint >= np.log(0.2) - 1e-12).all()


def test_no_other_curve_with_the_same_ceiling_fits_better() -> None:
    """Also where the ceiling that fits best would be no score: this course rises straight to its end."""
    compute = np.linspace(1.0, 20.0, 15)
    scores = 0.2 + 0.7 * compute / 20.0
    found = fit_curves(compute, scores[None], [0.2])
    assert found.ceiling == pytest.approx([1.0])
    around = np.stack(np.meshgrid(*2 * [np.linspace(-0.2, 0.2, 21)]), axis=-1).reshape(-1, 2)
    others = Curves(
        np.full(441, 0.2), np.full(441, 1.0), found.log_exponent + around[:, 0], found.log_midpoint + around[:, 1]
    )
    errors = [((each.scores(compute) - scores) ** 2).sum(axis=1).min() for each in (found, others)]
    assert errors[0] <= errors[1] + 1e-6


# Accuracies in float32, as some tools write them, give what the same numbers give in float64.

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


# The weights of benchmarks: what the option accepts, what it means, and the mean that it makes.

PROBLEMS = {"aime": 30, "math": 500}


@pytest.mark.parametrize(
    ("text", "parsed", "weights"),
    [
        ("benchmarks", "benchmarks", [1.0, 1.0]),
        ("problems", "problems", [30.0, 500.0]),
        ("math=1,aime=2.5", {"math": 1.0, "aime": 2.5}, [2.5, 1.0]),
        ("math=1e-300,aime=1", {"math": 1e-300, "aime": 1.0}, [1.0, 1e-300]),
    ],
)
def test_weights_are_read_and_put_in_order(text: str, parsed: object, weights: list[float]) -> None:
    assert parse_weighting(text) == parsed
    assert weights_of(parse_weighting(text), PROBLEMS) == weights
    assert weighting_text(parse_weighting(text))


def test_a_name_may_hold_an_equals_sign() -> None:
    assert parse_weighting("a=b=2") == {"a=b": 2.0}


@pytest.mark.parametrize("text", ["", "easy", "=1", "easy=", "easy=0", "easy=-1", "easy=inf", "easy=nan", "a=1,,b=1"])
def test_what_is_no_weighting_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_weighting(text)
    assert error.value.source == "--weighting"


@pytest.mark.parametrize("own", [{"aime": 1.0}, {"aime": 1.0, "math": 1.0, "other": 1.0}])
def test_weights_are_of_the_benchmarks_that_there_are(own: dict[str, float]) -> None:
    with pytest.raises(InvalidInput) as error:
        weights_of(own, PROBLEMS)
    assert error.value.source == "--weighting"


def test_the_three_weightings_are_told_apart_in_words() -> None:
    texts = [weighting_text("benchmarks"), weighting_text("problems"), weighting_text({"aime": 2.0, "math": 0.5})]
    assert texts[0].startswith("each with the") and texts[0].endswith("same weight")
    assert texts[1].startswith("each with the") and texts[1].endswith("number of problems")
    assert "aime 2, math 0.5" in texts[2]


def test_the_mean_is_of_arrays_and_needs_no_normed_weights() -> None:
    values = [np.array([0.0, 1.0]), np.array([0.4, 0.2])]
    assert weighted_mean(values, [1.0, 3.0]) == pytest.approx([0.3, 0.4])
    assert Suite().mean(values) == pytest.approx([0.2, 0.6])
    assert Suite([2.0, 5.0]).relative(2) == [2.0, 5.0]
    with pytest.raises(ValueError, match="zip"):
        weighted_mean(values, [1.0])
