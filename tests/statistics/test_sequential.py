"""Studies that stop when they are certain: levels against published ones, errors, coverage and power by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit, logit, ndtri
from scipy.stats import nct, t

from evals.statistics.difference import Difference, pooled
from evals.statistics.power import Design, minimum_detectable_effect
from evals.statistics.resampling import sign_flip_p_values
from evals.statistics.sequential import Repetitions, StoppingRule, nominal_levels
from tests.statistics.arms import estimate_difference

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


# The promise of the minimum detectable effect, held against studies simulated from docs/evaluation.md alone.

STUDIES, REPORTING, PERMUTATIONS, SAMPLES = 400, 100, 1_000, 8
Arm = list[npt.NDArray[np.float64]]  # of every benchmark the accuracies [STUDIES, S, N]


def simulated(
    generator: np.random.Generator, sizes: list[int], seeds: int, seed_sd: float, effects: npt.NDArray[np.float64]
) -> tuple[Arm, Arm]:
    """Draw studies of two methods whose true scores differ by ``effects``, one each, each method with its own ways."""
    studies = len(effects)
    strengths = [seed_sd * generator.normal(size=(studies, seeds, 1)) for _ in range(2)]  # one policy on all benchmarks
    arms: tuple[Arm, Arm] = ([], [])
    for size in sizes:
        difficulty = logit(0.6) + 0.85 * generator.normal(size=(studies, 1, size))
        for arm, strength, effect in zip(arms, strengths, (effects, 0.0 * effects), strict=True):
            rates = expit(difficulty + 0.3 * generator.normal(size=difficulty.shape) + strength)
            room = rates * (1.0 - rates)
            rates = rates + effect[:, None, None] * room / room.mean(axis=2, keepdims=True)
            arm.append(generator.binomial(SAMPLES, np.clip(rates, 0.0, 1.0)) / SAMPLES)
    return arms


def differ(treatment: Arm, control: Arm) -> Difference:
    return estimate_difference(treatment, control, samples=([SAMPLES] * len(treatment), [SAMPLES] * len(control)))


def is_found(treatment: Arm, control: Arm) -> npt.NDArray[np.bool_]:
    """Whether each study finds a difference at 5 %, by the page's two tests."""
    shares = [(a.mean(axis=1) - b.mean(axis=1)) / a.shape[2] for a, b in zip(treatment, control, strict=True)]
    flips = sign_flip_p_values(np.concatenate(shares, axis=1), np.random.default_rng(1), PERMUTATIONS)
    return np.asarray(np.maximum(flips, differ(treatment, control).p_values()) <= 0.05)


@pytest.mark.parametrize(
    ("sizes", "seeds", "seed_sd"),
    [([60, 60], 16, 0.15), ([60, 60], 5, 0.15), ([60, 60], 3, 0.15), ([60, 60], 2, 0.06), ([30, 30, 120], 3, 0.1)],
)
def test_reported_effects_are_found_four_times_in_five(sizes: list[int], seeds: int, seed_sd: float) -> None:
    generator = np.random.default_rng(seeds)
    nothing = np.zeros(REPORTING)
    reported = minimum_detectable_effect(differ(*simulated(generator, sizes, seeds, seed_sd, nothing)))
    effects = np.tile(np.minimum(reported, 0.5), STUDIES // REPORTING)
    shares = is_found(*simulated(generator, sizes, seeds, seed_sd, effects))
    # 1 %, two-sided, of the simulation: of the studies, and of those whose reports are few and vary themselves.
    error = 2.6 * np.sqrt(0.8 * 0.2 * (1 / STUDIES + 1 / (4 * REPORTING)))
    assert 0.8 - error <= shares.mean() <= 0.85 + error


@pytest.mark.parametrize("freedom", [2, 4, 30])
@pytest.mark.parametrize("planned", [True, False])
def test_where_one_part_varies_the_effect_is_that_of_the_noncentral_t(freedom: int, planned: bool) -> None:
    """Estimates of other studies are chi-squared around the truth; those of the reporting study, too."""
    difference = Difference(*map(np.asarray, (0.0, 0.0, 29.0, 1.0, float(freedom))))
    effect = float(minimum_detectable_effect(difference, planned=planned))
    if planned:
        assert nct.sf(t.ppf(0.975, freedom), freedom, effect) == pytest.approx(0.8, abs=0.002)
        return
    generator = np.random.default_rng(freedom)
    reported, estimated = (np.sqrt(generator.chisquare(freedom, 400_000) / freedom) for _ in range(2))
    found = effect * reported + generator.normal(size=400_000) > t.ppf(0.975, freedom) * estimated
    assert found.mean() == pytest.approx(0.8, abs=0.004)


@pytest.mark.parametrize(("seeds", "seed_sd"), [(2, 0.03), (3, 0.03), (8, 0.02)])
def test_a_planned_study_finds_the_effect_that_its_true_variances_promise(seeds: int, seed_sd: float) -> None:
    """Accuracies around one half with the design's own variances, 100 problems."""
    design = Design(effect_sd=0.1, sampling_variance=0.49, seed_sd=seed_sd, seeds=seeds)
    effect = float(minimum_detectable_effect(design.expected_difference(100, SAMPLES), planned=True))
    generator = np.random.default_rng(seeds)
    arms = []
    for level in (0.5 + effect, 0.5):
        own_ways = 0.1 / np.sqrt(2) * generator.normal(size=(4_000, 1, 100))
        of_seeds = seed_sd * generator.normal(size=(4_000, seeds, 1))
        arms.append([generator.binomial(SAMPLES, np.clip(level + own_ways + of_seeds, 0.0, 1.0)) / SAMPLES])
    assert 0.78 <= (differ(*arms).p_values() <= 0.05).mean() <= 0.86
