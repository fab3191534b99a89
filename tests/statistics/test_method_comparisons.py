"""Comparisons of methods by simulation: true nulls are kept, true differences found, families of tests corrected.

A simulated study is the laptop study's: 30 problems, 32 samples, 3 seeds a method. Every problem has a difficulty,
every method its own way with every problem (interaction), and every training seed moves the accuracy of its policy.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit, logit

from evals.core.comparisons import Claim, Verdict
from evals.core.records import ALL_BENCHMARKS
from evals.scores.comparison import BenchmarkCounts, Settings, arm_of, compare, problem_shares
from evals.scores.printed import FEWEST_UNEQUAL_SAMPLES
from evals.statistics.difference import Arm, Difference
from evals.statistics.difference import estimate_difference as difference_of_arms
from evals.statistics.power import minimum_detectable_effect
from evals.statistics.resampling import draw_problems, holm, sign_flip_p_values
from evals.statistics.suite import Suite
from tests.statistics.arms import bootstrap_differences, estimate_difference

PROBLEMS, SAMPLES, REPLICATES, PERMUTATIONS = 30, 32, 4_000, 1_000
FloatArray = npt.NDArray[np.float64]


class SimulatedStudy:
    """Accuracies [REPLICATES, S, PROBLEMS] of methods on benchmarks whose true differences are known."""

    def __init__(self, key: int, mean: float, interaction: float) -> None:
        self.generator = np.random.default_rng(key)
        self.interaction = interaction
        self.difficulty = logit(mean) + 1.5 * self.generator.normal(size=(REPLICATES, 1, PROBLEMS))

    def seed_effects(self, seeds: int, seed_sd: float) -> FloatArray:
        return seed_sd * self.generator.normal(size=(REPLICATES, seeds, 1))

    def method(self, seed_effects: FloatArray, effect: float = 0.0) -> FloatArray:
        """A method's accuracies; ``effect`` and seed effects are in units of avg@k."""
        shape = (*seed_effects.shape[:2], PROBLEMS)
        own_way = self.interaction * self.generator.normal(size=self.difficulty.shape)
        probability = expit(self.difficulty + own_way + 0.1 * self.generator.normal(size=shape))
        room = probability * (1.0 - probability)  # easy and impossible problems move least
        shift = (seed_effects + effect) * room / room.mean(axis=2, keepdims=True)
        counts = self.generator.binomial(SAMPLES, np.clip(probability + shift, 0.0, 1.0))
        return np.asarray(counts / SAMPLES)


def differ(treatment: FloatArray, control: FloatArray, fixed: str = "") -> Difference:
    """The difference on one benchmark; ``fixed``: of the base model, of both policies, or of none."""
    sides = {"control_is_fixed": bool(fixed), "treatment_is_fixed": fixed == "both"}
    return estimate_difference([treatment], [control], samples=([SAMPLES], [SAMPLES]), **sides)


def p_values(treatment: FloatArray, control: FloatArray, difference: Difference, key: int = 0) -> FloatArray:
    """The reported p-values: the larger of sign flips and t."""
    flips = (treatment.mean(axis=1) - control.mean(axis=1)) / PROBLEMS
    return np.maximum(sign_flip_p_values(flips, np.random.default_rng(key), PERMUTATIONS), difference.p_values())


@pytest.mark.parametrize("mean", [0.5, 0.1])
@pytest.mark.parametrize("interaction", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed_sds", [(0.0, 0.0), (0.01, 0.01), (0.03, 0.03), (0.05, 0.05), (0.05, 0.0), (0.1, 0.02)])
def test_equal_methods_are_told_apart_rarely(seed_sds: tuple[float, float], interaction: float, mean: float) -> None:
    """Seeds move an accuracy by half of it at most: cut off at 0, larger effects would not be 0 on average."""
    study = SimulatedStudy(1, mean, interaction)
    treatment, control = (study.method(study.seed_effects(3, min(seed_sd, mean / 2))) for seed_sd in seed_sds)
    difference = differ(treatment, control)
    assert (p_values(treatment, control, difference) <= 0.05).mean() <= 0.06
    low, high = difference.interval()
    assert ((low <= 0.0) & (high >= 0.0)).mean() >= 0.94


@pytest.mark.parametrize("interaction", [0.0, 0.5])
@pytest.mark.parametrize("seed_sd", [0.0, 0.01, 0.03, 0.05])
def test_a_method_equal_to_its_base_model_is_told_apart_rarely(seed_sd: float, interaction: float) -> None:
    study = SimulatedStudy(2, 0.5, interaction)
    treatment, base = study.method(study.seed_effects(3, seed_sd)), study.method(study.seed_effects(1, 0.0))
    difference = differ(treatment, base, "base")
    assert (p_values(treatment, base, difference) <= 0.05).mean() <= 0.06


@pytest.mark.parametrize("seeds", [2, 5])
def test_other_numbers_of_seeds_keep_the_level(seeds: int) -> None:
    study = SimulatedStudy(3, 0.5, 0.3)
    treatment, control = (study.method(study.seed_effects(seeds, 0.03)) for _ in range(2))
    assert (p_values(treatment, control, differ(treatment, control)) <= 0.05).mean() <= 0.06


@pytest.mark.parametrize("interaction", [0.0, 0.3])
@pytest.mark.parametrize("seed_sd", [0.0, 0.01, 0.03])
def test_with_many_seeds_the_level_is_used_and_not_only_kept(seed_sd: float, interaction: float) -> None:
    """With sampling noise counted twice the setting without any spread of seeds rejects 0.5 %."""
    study = SimulatedStudy(15, 0.5, interaction)
    treatment, control = (study.method(study.seed_effects(16, seed_sd)) for _ in range(2))
    difference = differ(treatment, control)
    assert 0.025 <= (p_values(treatment, control, difference) <= 0.05).mean() <= 0.06
    low, high = difference.interval()
    assert 0.94 <= ((low <= 0.0) & (high >= 0.0)).mean() <= 0.975


def test_the_reported_interval_of_many_seeds_is_no_longer_than_the_t_interval() -> None:
    """The bootstrap draws seeds and problems, and would count the noise of their samples three times."""
    generator = np.random.default_rng(16)
    methods = {f"{name}{seed}": ("model", name) for name in ("a", "b") for seed in range(16)}
    rates = expit(generator.normal(size=120))
    counts = {run: generator.binomial(8, rates).tolist() for run in methods}
    benchmark = BenchmarkCounts(Path("one.json"), "simulated", dict.fromkeys(methods, 8), methods, counts)
    row = compare([benchmark], Settings("b", bootstrap_resamples=2_000, permutations=200)).comparisons[-1]
    one, other = (arm_of([benchmark], benchmark.held("model", name)) for name in ("a", "b"))
    difference = difference_of_arms(one, other)
    assert row.confidence_interval is not None and row.standard_error == float(difference.standard_error)
    assert row.confidence_interval == pytest.approx([float(end) for end in difference.interval()], abs=1e-3)


def test_forgetting_the_seeds_would_find_differences_that_are_not_there() -> None:
    study = SimulatedStudy(4, 0.5, 0.3)
    treatment, control = (study.method(study.seed_effects(3, 0.03)) for _ in range(2))
    forgetful = differ(treatment, control, "both")
    assert (p_values(treatment, control, forgetful) <= 0.05).mean() > 0.15


@pytest.mark.parametrize("mean", [0.03, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("interaction", [0.0, 0.5, 1.5])
def test_two_equal_checkpoints_are_told_apart_in_5_percent(mean: float, interaction: float) -> None:
    study = SimulatedStudy(5, mean, interaction)
    one, other = (study.method(study.seed_effects(1, 0.0)) for _ in range(2))
    difference = differ(one, other, "both")
    assert 0.03 <= (p_values(one, other, difference) <= 0.05).mean() <= 0.06
    low, high = difference.interval()
    assert 0.93 <= ((low <= 0.0) & (high >= 0.0)).mean() <= 0.97


@pytest.mark.parametrize("fewer", [FEWEST_UNEQUAL_SAMPLES, 8])
@pytest.mark.parametrize("mean", [0.03, 0.1, 0.5])
def test_sides_with_different_numbers_of_samples_keep_the_level(fewer: int, mean: float) -> None:
    generator = np.random.default_rng(12)
    rates = expit(logit(mean) + 1.5 * generator.normal(size=(REPLICATES, 1, PROBLEMS)))
    one, other = (generator.binomial(samples, rates) / samples for samples in (SAMPLES, fewer))
    difference = estimate_difference([one], [other], treatment_is_fixed=True, control_is_fixed=True)
    assert (p_values(one, other, difference) <= 0.05).mean() <= 0.06


@pytest.mark.parametrize("weights", [[20.0, 60.0], [5.0, 1.0]])
def test_weighted_benchmarks_keep_the_level_and_the_sign_flips_have_the_same_statistic(weights: list[float]) -> None:
    generator = np.random.default_rng(13)
    arms = []
    for _ in range(2):
        difficulties = [np.random.default_rng(14).normal(size=(REPLICATES, 1, size)) for size in (20, 60)]
        arms.append([generator.binomial(8, expit(each + 0.5 * generator.normal(size=each.shape))) / 8
                     for each in difficulties])  # fmt: skip
    fixed = {"treatment_is_fixed": True, "control_is_fixed": True}
    difference = estimate_difference(*arms, weights=weights, **fixed)
    shares = problem_shares(Arm(arms[0]), Arm(arms[1]), Suite(weights))
    assert shares.sum(axis=-1) == pytest.approx(difference.estimate)
    flips = sign_flip_p_values(shares, generator, PERMUTATIONS)
    assert 0.03 <= (np.maximum(flips, difference.p_values()) <= 0.05).mean() <= 0.06
    draws = [draw_problems(each.shape[-1], generator, 2_000) for each in arms[0]]
    one, other = [[each[0] for each in arm] for arm in arms]
    drawn = bootstrap_differences(one, other, draws, generator, weights=weights, **fixed)
    assert drawn.mean() == pytest.approx(difference.estimate[0], abs=0.005)
    assert drawn.std() == pytest.approx(difference.standard_error[0], rel=0.1)


def test_the_reported_hull_covers_a_skewed_true_difference() -> None:
    """Against a base that seldom solves anything most problems gain nothing and a few gain much."""
    generator = np.random.default_rng(6)
    replicates, hits = 1_000, 0
    for _ in range(replicates):
        base = generator.beta(0.2, 3.8, PROBLEMS)
        gain = (1.0 - base) * generator.beta(0.4, 1.6, PROBLEMS)
        truth = (1.0 - 0.05) * 0.2
        one, other = (generator.binomial(SAMPLES, rate, (1, PROBLEMS)) / SAMPLES for rate in (base + gain, base))
        fixed = {"treatment_is_fixed": True, "control_is_fixed": True}
        draws = draw_problems(PROBLEMS, generator, 500)
        resampled = bootstrap_differences([one], [other], [draws], generator, **fixed)
        low, high = np.quantile(resampled, [0.025, 0.975])
        t_low, t_high = estimate_difference([one], [other], **fixed).interval()
        hits += min(low, t_low) <= truth <= max(high, t_high)
    assert 0.93 <= hits / replicates <= 0.97


@pytest.mark.parametrize("seed_sd", [0.0, 0.03])
def test_holm_keeps_the_rate_of_any_false_verdict_over_six_benchmarks(seed_sd: float) -> None:
    study = SimulatedStudy(7, 0.5, 0.5)
    seeds = [study.seed_effects(3, seed_sd) for _ in range(2)]  # one policy answers all benchmarks
    by_benchmark = []
    for benchmark in range(6):
        study.difficulty = study.generator.normal(0.0, 1.5, size=study.difficulty.shape)
        effect = 0.25 if benchmark >= 4 else 0.0  # two true differences among four true nulls
        treatment, control = study.method(seeds[0], effect), study.method(seeds[1])
        by_benchmark.append(p_values(treatment, control, differ(treatment, control), benchmark))
    adjusted = holm(np.stack(by_benchmark, axis=-1))
    assert (adjusted[:, :4] <= 0.05).any(axis=1).mean() <= 0.06
    assert (adjusted[:, 4:] <= 0.05).mean() > 0.5


@pytest.mark.parametrize(("seeds", "seed_sd"), [(1, 0.0), (3, 0.0), (3, 0.03)])
def test_holm_keeps_the_rate_of_any_false_verdict_over_seven_methods(seeds: int, seed_sd: float) -> None:
    """All seven meet the same reference, so its luck is in every comparison. One seed: claims about checkpoints."""
    study = SimulatedStudy(11, 0.5, 1.0)
    reference = study.method(study.seed_effects(seeds, seed_sd))
    of_methods = []
    for _ in range(7):
        method = study.method(study.seed_effects(seeds, seed_sd))
        of_methods.append(p_values(method, reference, differ(method, reference, "both" if seeds == 1 else "")))
    single = np.stack(of_methods, axis=-1)
    assert (holm(single) <= 0.05).any(axis=1).mean() <= 0.05
    assert (single <= 0.05).any(axis=1).mean() > 0.08


def test_a_study_of_seven_equal_methods_has_any_verdict_at_most_5_percent_of_the_time() -> None:
    """Whole studies through ``compare``; of checkpoints, where a single comparison keeps its level with least slack."""
    settings = Settings("reference", Claim.CHECKPOINTS, bootstrap_resamples=100, permutations=1_000)
    methods, generator = ["reference", *(f"equal_{number}" for number in range(7))], np.random.default_rng(11)
    single, verdicts, studies = 0, 0, 40
    for number in range(studies):
        difficulty = 1.5 * generator.normal(size=PROBLEMS)
        answered = {
            method: generator.binomial(SAMPLES, expit(difficulty + generator.normal(size=PROBLEMS))).tolist()
            for method in methods
        }
        names = {method: ("model", method) for method in methods}
        benchmark = BenchmarkCounts(Path(f"{number}.json"), "simulated", dict.fromkeys(names, SAMPLES), names, answered)
        rows = [row for row in compare([benchmark], settings).comparisons if row.benchmark == ALL_BENCHMARKS]
        assert len(rows) == 7
        single += any(row.p_value is not None and row.p_value <= 0.05 for row in rows)
        verdicts += any(row.verdict is not Verdict.NOT_DISTINGUISHABLE for row in rows)
    assert verdicts <= 0.05 * studies
    assert single > 0.15 * studies


def test_holm_keeps_the_rate_of_independent_uniform_p_values() -> None:
    adjusted = holm(np.random.default_rng(8).random((100_000, 6)))
    assert 0.045 <= (adjusted <= 0.05).any(axis=1).mean() <= 0.055


def test_pooled_benchmarks_keep_the_level_and_gain_power() -> None:
    study = SimulatedStudy(9, 0.5, 0.5)
    rates = {}
    for effect in (0.0, 0.06):
        seeds = [study.seed_effects(3, 0.01) for _ in range(2)]
        treatments, controls = [], []
        for _ in range(4):
            study.difficulty = study.generator.normal(0.0, 1.5, size=study.difficulty.shape)
            treatments.append(study.method(seeds[0], effect))
            controls.append(study.method(seeds[1]))
        rates[effect] = [
            float(
                (
                    estimate_difference(
                        treatments[:count], controls[:count], samples=([SAMPLES] * count, [SAMPLES] * count)
                    ).p_values()
                    <= 0.05
                ).mean()
            )
            for count in (1, 4)
        ]
    assert max(rates[0.0]) <= 0.06
    assert rates[0.06][1] > rates[0.06][0] + 0.2


def test_an_effect_of_the_minimum_detectable_size_is_found_four_times_in_five() -> None:
    study = SimulatedStudy(10, 0.5, 0.5)
    one, other = (study.method(study.seed_effects(1, 0.0)) for _ in range(2))
    fixed = {"treatment_is_fixed": True, "control_is_fixed": True}
    some = estimate_difference([one[:200]], [other[:200]], **fixed)  # the effect of one takes milliseconds
    effect = float(np.median(minimum_detectable_effect(some)))
    better = study.method(study.seed_effects(1, 0.0), effect)
    difference = estimate_difference([better], [other], **fixed)
    assert 0.75 <= (p_values(better, other, difference) <= 0.05).mean() <= 0.85
