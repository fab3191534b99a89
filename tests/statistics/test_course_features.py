"""The features of a method's trainings, their uncertainty, and the ends of a curve, step by step."""

import numpy as np
import pytest

from evals.statistics.scaling import Course, CourseEstimate, Curves, estimate_course, fit_curves

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
    assert [float(curve.log_compute(score)[0]) for score in (0.2, 0.25, 0.75, 0.8)] == [
        -np.inf,
        -np.inf,
        np.inf,
        np.inf,
    ]
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
