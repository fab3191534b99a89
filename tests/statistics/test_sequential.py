"""Studies that stop when they are certain: levels against published ones, errors, coverage and power by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import ndtri

from evals.statistics.difference import Difference, estimate_difference, pooled
from evals.statistics.sequential import Repetitions, StoppingRule, nominal_levels

LOOKS, AT_MOST, MARGIN = (4, 6, 8, 11, 16), 16, 2.0
SEED_SD, PROBLEM_VARIANCE = 1.14, 0.0147  # points, of the default study: 16 and 54 seeds, 480 problems


def test_bounds_are_those_published_for_five_looks() -> None:
    """Lan and DeMets' spending near Pocock's bound, two-sided 5 %, as the package ldbounds tabulates it."""
    bounds = [-ndtri(level / 2) for level in nominal_levels((1, 2, 3, 4, 5), 5, 0.05)]
    assert bounds == pytest.approx([2.4380, 2.4268, 2.4101, 2.3966, 2.3859], abs=1e-4)


def test_one_look_has_the_whole_level_and_later_looks_change_no_earlier_one() -> None:
    assert nominal_levels((16,), 16, 0.05) == pytest.approx([0.05], abs=1e-12)
    assert nominal_levels(LOOKS, AT_MOST, 0.01)[:3] == nominal_levels(LOOKS[:3], AT_MOST, 0.01)


@dataclass(frozen=True)
class Simulated:
    """Studies [R] of methods [m]: what was decided (-1, 0, 1; 2 for equivalent), and when."""

    verdict: np.ndarray
    seeds: np.ndarray
    estimate: np.ndarray
    covered: np.ndarray  # by the interval of one comparison that holds at every look

    def wrong(self, effects: np.ndarray) -> np.ndarray:
        sign = (self.verdict == 1) & (effects <= 0) | (self.verdict == -1) & (effects >= 0)
        return np.asarray(sign | (self.verdict == 2) & (np.abs(effects) >= MARGIN))


def simulate(effects: Sequence[float], studies: int = 1000, seed: int = 0) -> Simulated:
    """Draw studies in the shape of the default one, and stop them as a study does."""
    generator, true, shape = np.random.default_rng(seed), np.array(effects), (studies, len(effects))
    methods = true[:, None] + SEED_SD * generator.standard_normal((*shape, AT_MOST))
    reference = SEED_SD * generator.standard_normal((studies, 1, AT_MOST))
    problems = np.sqrt(PROBLEM_VARIANCE) * generator.standard_normal(shape)
    verdict, seeds = np.zeros(shape, int), np.full(shape, LOOKS[-1])
    estimate, covered = np.zeros(shape), np.zeros(shape, bool)
    levels, alone = nominal_levels(LOOKS, AT_MOST, 0.05 / len(effects)), nominal_levels(LOOKS, AT_MOST, 0.05)
    for look, level, level_alone in zip(LOOKS, levels, alone, strict=True):
        arms = methods[..., :look], np.broadcast_to(reference[..., :look], (*shape, look))
        variance, freedom = pooled([arm.var(axis=-1, ddof=1) / look for arm in arms], [look - 1] * 2)
        value = arms[0].mean(axis=-1) - arms[1].mean(axis=-1) + problems
        of_problems = np.full(shape, PROBLEM_VARIANCE)
        difference = Difference(value, of_problems, np.full(shape, 476.0), variance, freedom)
        low, high = difference.interval(1.0 - level)
        now = np.select([(low > -MARGIN) & (high < MARGIN), low > 0, high < 0], [2, 1, -1], 0)
        ends = (verdict == 0) & ((now != 0) | (look == LOOKS[-1]))
        low, high = difference.interval(1.0 - level_alone)
        estimate[ends], seeds[ends], covered[ends] = value[ends], look, ((low <= true) & (true <= high))[ends]
        verdict = np.where(verdict == 0, now, verdict)
    return Simulated(verdict, seeds, estimate, covered)


@pytest.mark.parametrize(
    "effects",
    [[0.0] * 8, [2.0] * 8, [-2.0] * 4 + [2.0] * 4, [-0.6, 0.3, -4.2, 0.2, -6.3, -0.5, -0.3, -7.0]],
    ids=["null", "at the margin", "both sides", "the default study"],
)
def test_at_most_five_in_a_hundred_studies_have_a_false_verdict(effects: list[float]) -> None:
    simulated = simulate(effects)
    assert simulated.wrong(np.array(effects)).any(axis=1).mean() <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 1000)


def test_intervals_hold_when_they_decide_and_power_is_kept() -> None:
    """Coverage errs on the safe side: 98 in place of 95 %. A stopped estimate is too far from 0 by up to 0.2 points."""
    effects = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
    simulated = simulate(effects.tolist(), studies=4000)
    assert (simulated.covered.mean(axis=0) > 0.95).all()
    found = dict(zip(effects, (simulated.verdict == 1).mean(axis=0), strict=True))
    assert found[2.0] > 0.85 and found[3.0] > 0.99 and found[0.0] < 0.01
    assert (np.abs((simulated.estimate - effects).mean(axis=0)) < 0.2).all()


def test_a_study_like_the_default_one_saves_a_quarter_of_its_trainings() -> None:
    simulated = simulate([-0.6, 0.3, -4.2, 0.2, -6.3, -0.5, -0.3, -7.0])
    trainings = simulated.seeds.sum(axis=1) + simulated.seeds.max(axis=1)
    assert trainings.mean() / (9 * AT_MOST) < 0.75


def test_a_repeated_study_finds_its_own_mde_four_times_in_five_and_leaves_open_what_it_says() -> None:
    levels = nominal_levels(LOOKS, AT_MOST, 0.05 / 8)
    parts = [(np.asarray(SEED_SD**2 / AT_MOST), 1e6)] * 2  # known, as in the simulation
    known = map(np.asarray, (0.0, PROBLEM_VARIANCE, 1e6, 2 * SEED_SD**2 / AT_MOST, 2e6))
    rule, streams = StoppingRule(LOOKS, levels, MARGIN), (np.random.default_rng(seed) for seed in (1, 2))
    repeated = Repetitions.draw(Difference(*known, arms=tuple(parts)), (AT_MOST, AT_MOST), rule, *streams)
    mde = repeated.detectable()
    assert 1.7 < mde < 2.1
    found = simulate([mde] * 8).verdict
    assert (found == 1).mean() == pytest.approx(0.8, abs=0.05)
    assert (simulate([0.0] * 8).verdict == 0).mean() == pytest.approx(repeated.end(0.0)[1].mean(), abs=0.05)
    assert np.median(repeated.end(repeated.median_unbiased(2.4))[2]) == pytest.approx(2.4, abs=0.01)


def test_the_first_look_has_the_degrees_of_freedom_of_the_method_that_has_fewer() -> None:
    generator = np.random.default_rng(8)
    arms = [generator.binomial(8, 0.5, (seeds, 40)) / 8 for seeds in (4, 6)]
    found = estimate_difference([arms[0]], [arms[1]])
    least = found.with_least_freedom()
    assert float(least.seed_freedom) == 3.0 < float(found.seed_freedom)
    assert least.interval(0.999)[0] < found.interval(0.999)[0]
    beside_one = estimate_difference([arms[1]], [arms[0][:1]], control_is_fixed=True)
    assert float(beside_one.with_least_freedom().seed_freedom) == 5.0
