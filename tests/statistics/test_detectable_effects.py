"""The promise of the minimum detectable effect, held against studies simulated from docs/evaluation.md alone.

The page says: a method is trained with S seeds; problems, seeds and samples are drawn anew in every study; a
difference counts as found if its p-value, the larger of sign flips by problem and t, is at most 5 %; the effect is
found in four of five studies.
"""

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit, logit
from scipy.stats import nct, t

from evals.statistics.difference import Difference, estimate_difference
from evals.statistics.power import Design, minimum_detectable_effect
from evals.statistics.resampling import sign_flip_p_values

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
    [
        ([60, 60], 16, 0.15),
        ([60, 60], 5, 0.15),
        ([60, 60], 3, 0.15),
        ([60, 60], 2, 0.06),
        ([30, 30, 120], 3, 0.1),
    ],
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
