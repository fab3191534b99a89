"""Compute-performance curves: recovered from courses of known parameters, and covered by their intervals."""

import numpy as np
import pytest
from scipy.optimize import curve_fit

from evals.statistics.resampling import draw_problems
from evals.statistics.scaling import FEATURES, Course, Curves, estimate_course, fit_curves

BASE, CEILING, EXPONENT, MIDPOINT = 0.4, 0.85, 1.6, 60_000.0
TARGET = 0.7
COMPUTE = np.linspace(10_000, 300_000, 16)


def truth(compute: np.ndarray) -> np.ndarray:
    return BASE + (CEILING - BASE) / (1 + (MIDPOINT / compute) ** EXPONENT)


def course(generator: np.random.Generator, ceiling: float = CEILING, seeds: int = 5, problems: int = 80) -> Course:
    """Seeds with ceilings of their own, problems from easy to hard; the mean over both is the curve."""
    rise = (truth(COMPUTE) - BASE) / (CEILING - BASE)
    compute = COMPUTE * generator.uniform(0.95, 1.05, (seeds, 1))
    rises = np.array([(np.interp(own, COMPUTE, rise)) for own in compute])
    before = generator.beta(4 * BASE, 4 * (1 - BASE), problems)
    share = ceiling / 0.95  # ceilings of single problems end at 0.95, so that a seed's own part clips nothing
    after = 0.95 * generator.beta(6 * share, 6 * (1 - share), problems) + 0.015 * generator.normal(size=(seeds, 1, 1))
    means = before + (after - before) * np.concatenate([np.zeros((seeds, 1)), rises], axis=1)[..., None]
    means = np.clip(means, 0, 1)
    return Course(compute, generator.binomial(8, means) / 8)


def test_a_curve_without_noise_is_recovered() -> None:
    curves = fit_curves(COMPUTE, truth(COMPUTE)[None], [BASE])
    assert curves.ceiling == pytest.approx([CEILING], abs=2e-4)
    assert np.exp(curves.log_exponent) == pytest.approx([EXPONENT], rel=2e-3)
    assert np.exp(curves.log_midpoint) == pytest.approx([MIDPOINT], rel=2e-3)
    assert curves.scores(COMPUTE)[0] == pytest.approx(truth(COMPUTE), abs=1e-4)


def test_the_search_finds_what_scipy_finds() -> None:
    generator = np.random.default_rng(1)
    noisy = truth(COMPUTE) + generator.normal(0, 0.01, (20, len(COMPUTE)))
    fitted = fit_curves(COMPUTE, noisy, np.full(20, BASE))

    def curve(compute: np.ndarray, ceiling: float, exponent: float, log_midpoint: float) -> np.ndarray:
        return BASE + (ceiling - BASE) / (1 + (np.exp(log_midpoint) / compute) ** exponent)

    for row, ceiling in zip(noisy, fitted.ceiling, strict=True):
        (slow, *_), _ = curve_fit(curve, COMPUTE, row, p0=(0.8, 1.5, 11.0))
        assert ceiling == pytest.approx(slow, abs=1e-3)


def test_the_compute_to_a_score_inverts_the_curve() -> None:
    curves = Curves(*(np.array([value]) for value in (BASE, CEILING, np.log(EXPONENT), np.log(MIDPOINT))))
    needed = np.exp(curves.log_compute(TARGET))
    assert curves.scores(needed)[0] == pytest.approx([TARGET])
    assert np.exp(curves.log_compute((BASE + CEILING) / 2)) == pytest.approx([MIDPOINT])
    assert np.isinf(curves.log_compute(0.9)).all()


def test_a_ceiling_stays_a_score() -> None:
    straight = 0.2 + 0.7 * COMPUTE / COMPUTE[-1]  # nowhere near its end: any ceiling above would do
    assert fit_curves(COMPUTE, straight[None], [0.2]).ceiling[0] <= 1.0
    assert fit_curves(COMPUTE, np.linspace(0.3, 0.0, 16)[None], [0.3]).ceiling[0] >= 0.0


def test_intervals_cover_the_known_parameters_and_equal_methods_are_not_told_apart() -> None:
    generator = np.random.default_rng(2)
    known = np.log([EXPONENT, MIDPOINT])
    covered, rejected, studies = np.zeros(5), 0, 60
    log_compute = np.interp(TARGET, truth(COMPUTE), np.log(COMPUTE))
    for _ in range(studies):
        courses = [course(generator), course(generator)]
        draws = draw_problems(80, generator, 100)
        one, other = (estimate_course(each, draws, TARGET) for each in courses)
        low, high = one.less(None, 80).interval()
        covered += (low <= [CEILING, *known, log_compute, 0]) & ([CEILING, *known, log_compute, 0] <= high)
        rejected += one.less(other, 80).p_values()[0] <= 0.05
    assert (covered / studies >= 0.85).all(), dict(zip(FEATURES, covered / studies, strict=True))
    assert rejected / studies <= 0.1


def test_a_lower_ceiling_is_seen_and_one_seed_has_no_interval() -> None:
    generator = np.random.default_rng(3)
    draws = draw_problems(80, generator, 100)
    low, high = (estimate_course(course(generator, ceiling), draws, TARGET) for ceiling in (0.7, CEILING))
    difference = low.less(high, 80)
    assert difference.p_values()[0] < 0.01 and difference.estimate[0] == pytest.approx(-0.15, abs=0.1)
    short = Course(COMPUTE[None, :4], np.full((2, 5, 80), 0.5)[:1])
    assert np.isnan(estimate_course(short, draws, TARGET).values[-1])  # two points tell nothing of the others
    alone = estimate_course(course(generator, seeds=1), draws, TARGET)
    assert np.isnan(alone.less(None, 80).interval()[0]).all() and np.isfinite(alone.values).all()
