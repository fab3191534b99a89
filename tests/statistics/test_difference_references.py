"""Differences with weights and unequal seeds, their power, and the bootstrap against loops from their definitions."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from evals.statistics.difference import Difference, pooled
from evals.statistics.power import Design, minimum_detectable_effect, problems_needed, samples_needed
from evals.statistics.resampling import draw_problems, holm, holm_of_known, sign_flip_p_values
from tests.statistics.arms import bootstrap_differences, estimate_difference

WEIGHTS = [1.0, 3.0]


def suite(key: int, seeds: int) -> list[np.ndarray]:
    """Accuracies [S, N] of two benchmarks of 12 and 20 problems."""
    generator = np.random.default_rng(key)
    return [generator.binomial(8, generator.beta(2, 2, (seeds, size))) / 8 for size in (12, 20)]


def welch(parts: list[tuple[float, int]]) -> tuple[float, float]:
    """The sum of variances and its degrees of freedom."""
    total = sum(variance for variance, _ in parts)
    return total, total**2 / sum(variance**2 / freedom for variance, freedom in parts)


def sampling_noise(samples: list[np.ndarray], shares: list[float]) -> float:
    """The variance of a method's mean that other samples cause, from right and wrong samples [S, N, k], one by one."""
    noise = 0.0
    for share, benchmark in zip(shares, samples, strict=True):
        seeds, problems, count = benchmark.shape
        for seed in benchmark.tolist():
            for drawn in seed:
                mean = math.fsum(drawn) / count
                of_one = math.fsum((value - mean) ** 2 for value in drawn) / (count - 1)
                noise += (share / (seeds * problems)) ** 2 * of_one / count
    return noise


@pytest.mark.parametrize("fixed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("apart", [0.0, 0.2])
def test_the_noise_in_both_parts_is_taken_out_of_the_problems(fixed: tuple[bool, bool], apart: float) -> None:
    """Never more than the seeds' part of its method has, where seeds are alike, and nothing of given policies."""
    generator, shares = np.random.default_rng(11), [0.25, 0.75]
    arms = []
    for seeds in (4, 3):
        levels = 0.5 + apart * generator.uniform(-1.0, 1.0, (seeds, 1, 1))
        arms.append([generator.random((seeds, size, 8)) < levels for size in (12, 20)])
    accuracies = [[drawn.mean(axis=2) for drawn in arm] for arm in arms]
    flags = {"treatment_is_fixed": fixed[0], "control_is_fixed": fixed[1]}
    plain = estimate_difference(*accuracies, weights=WEIGHTS, **flags)
    found = estimate_difference(*accuracies, weights=WEIGHTS, samples=([8, 8], [[8] * 3, 8]), **flags)
    expected = 0.0
    for arm, known, is_fixed in zip(arms, accuracies, fixed, strict=True):
        by_seed = (known[0].mean(axis=1) + 3 * known[1].mean(axis=1)) / 4
        expected += 0.0 if is_fixed else min(sampling_noise(arm, shares), float(by_seed.var(ddof=1)) / len(by_seed))
    assert found.noise == pytest.approx(expected, rel=1e-12)
    assert found.problem_variance == pytest.approx(float(plain.problem_variance) - expected, rel=1e-12)
    assert found.seed_variance == plain.seed_variance and found.problem_freedom == plain.problem_freedom


def test_one_sample_a_problem_says_nothing_of_its_noise() -> None:
    arms = [[(np.random.default_rng(key).random((3, 30)) < 0.5).astype(float)] for key in (1, 2)]
    plain = estimate_difference(*arms)
    for samples in (1, [4, 1, 4]):
        assert estimate_difference(*arms, samples=([samples], [samples])).standard_error == plain.standard_error


def test_noise_does_not_know_of_clusters_and_is_no_larger_than_the_problems_part() -> None:
    pairs = np.repeat(np.arange(15), 2)
    arms = [[np.random.default_rng(key).binomial(8, 0.5, (4, 30)) / 8] for key in (1, 2)]
    samples = ([8], [8])
    plain, clustered = (estimate_difference(*arms, samples=samples, clusters=known) for known in (None, [pairs]))
    assert clustered.noise == pytest.approx(plain.noise)
    half = np.full((2, 12), 0.5)
    alike = estimate_difference([half + np.array([[0.1], [-0.1]])], [half], samples=samples)
    assert alike.problem_variance == 0.0 and alike.noise == 0.0


@pytest.mark.parametrize("fixed", [(False, False), (True, False), (False, True), (True, True)])
def test_weighted_differences_of_unequal_seeds_equal_their_definition(fixed: tuple[bool, bool]) -> None:
    arms = suite(1, 4), suite(2, 3)
    found = estimate_difference(*arms, treatment_is_fixed=fixed[0], control_is_fixed=fixed[1], weights=WEIGHTS)
    means = [[values.mean(axis=0) for values in arm] for arm in arms]
    differences = [one - other for one, other in zip(*means, strict=True)]
    assert found.estimate == pytest.approx((differences[0].mean() + 3 * differences[1].mean()) / 4)
    parts = [((w / 4) ** 2 * d.var(ddof=1) / len(d), len(d) - 1) for w, d in zip(WEIGHTS, differences, strict=True)]
    assert (found.problem_variance, found.problem_freedom) == pytest.approx(welch(parts))
    by_seed = [(arm[0].mean(axis=1) + 3 * arm[1].mean(axis=1)) / 4 for arm in arms]
    seeds = [(0.0 if f else v.var(ddof=1) / len(v), len(v) - 1) for v, f in zip(by_seed, fixed, strict=True)]
    if not all(fixed):
        assert (found.seed_variance, found.seed_freedom) == pytest.approx(welch(seeds))
    else:
        assert found.seed_variance == 0.0 and found.seed_freedom == 5
    share = float(found.seed_variance / (found.seed_variance + found.problem_variance))
    quantiles = [stats.t.isf(0.05, freedom) for freedom in (found.problem_freedom, found.seed_freedom)]
    assert found.critical_value(0.05) == pytest.approx((1 - share) * quantiles[0] + share * quantiles[1])
    reach = float(found.critical_value(0.05) * math.sqrt(found.seed_variance + found.problem_variance))
    assert found.interval(0.9) == pytest.approx((found.estimate - reach, found.estimate + reach))


def test_without_any_variance_the_freedom_is_the_sum() -> None:
    assert pooled([np.zeros(2), np.zeros(2)], [3, 4])[1].tolist() == [7.0, 7.0]
    with pytest.raises(ValueError, match="zip"):
        pooled([np.zeros(2)], [3, 4])


@pytest.mark.filterwarnings("error")
def test_degenerate_differences_give_numbers_and_no_warning() -> None:
    """No difference; a constant one; one of infinite precision beside an uncertain one; one seed alone."""
    same, shifted = np.full((2, 9), 0.5), np.full((2, 9), 0.75)
    assert estimate_difference([same], [same]).p_values() == 1.0
    constant = estimate_difference([shifted], [same])
    assert constant.p_values() == pytest.approx(math.exp(-80), rel=1e-9, abs=0)
    assert constant.critical_value(0.025) == stats.t.isf(0.025, 8)
    assert [float(end) for end in constant.interval()] == [0.25, 0.25]
    batch = estimate_difference([np.stack([same, suite(3, 2)[0][:, :9]])], [np.stack([same, same])])
    assert batch.p_values()[0] == 1.0 and 0.0 < batch.p_values()[1] < 1.0
    assert np.isnan(estimate_difference([same[:1]], [shifted]).p_values())


@pytest.mark.parametrize(("one", "other"), [([], []), ([np.zeros((1, 1))], [np.zeros((1, 1))])])
def test_comparisons_of_nothing_are_refused(one: list[Any], other: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"0 benchmarks|1 and 1 problems"):
        estimate_difference(one, other)
    assert np.isfinite(estimate_difference([np.eye(2)], [np.zeros((1, 2))], control_is_fixed=True).estimate)


def test_an_expected_difference_has_the_designs_variances() -> None:
    policies = Design(effect_sd=0.1, sampling_variance=0.4).expected_difference(problems=50, samples=4)
    assert policies.problem_variance == pytest.approx(0.01 / 50 + 0.4 / (4 * 50)) and policies.problem_freedom == 49
    assert (policies.estimate, policies.seed_variance, policies.seed_freedom) == (0.0, 0.0, 1.0)
    trained = Design(0.1, 0.4, seed_sd=0.02, seeds=3).expected_difference(problems=50, samples=4)
    noise = 0.4 / (4 * 50 * 3)
    assert trained.problem_variance == pytest.approx(0.01 / 50)  # the noise is counted once, with the seeds
    one_sample = Design(0.1, 0.4, seed_sd=0.02, seeds=3).expected_difference(problems=50, samples=1)
    assert one_sample.problem_variance == pytest.approx(0.01 / 50 + 4 * noise)
    assert trained.seed_variance == pytest.approx(2 * 0.02**2 / 3 + noise) and trained.seed_freedom == 4
    assert [(part.item(), freedom) for part, freedom in trained.arms] == [(trained.seed_variance.item() / 2, 2)] * 2


def test_a_pilots_variances_are_those_of_its_accuracies() -> None:
    one, other = np.array([0.5, 0.75, 1.0, 0.0]), np.array([0.25, 0.5, 0.75, 0.5])
    design = Design.from_accuracies(one, other, samples=4, seed_sd=0.1, seeds=2)
    sampling = 4 / 3 * float((one * (1 - one) + other * (1 - other)).mean())
    assert design.sampling_variance == pytest.approx(sampling)
    assert design.effect_sd == pytest.approx(math.sqrt(max(np.var(one - other, ddof=1) - sampling / 4, 0.0)))
    assert (design.seed_sd, design.seeds) == (0.1, 2)
    same = Design.from_accuracies(one, one, samples=2)
    assert (same.effect_sd, same.seed_sd, same.seeds) == (0.0, 0.0, 0)


@pytest.mark.parametrize("wrong", [(-0.1, 0.1), (0.1, -0.1), (0.1, 0.1, -0.1), (0.1, 0.1, 0.1, -1), (0.1, 0.1, 0.1, 1)])
def test_designs_that_cannot_be_are_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"negative|one seed"):
        Design(*wrong)
    assert Design(0.0, 0.0, 0.0, 0).seeds == 0


def test_numbers_that_no_design_has_are_refused() -> None:
    design = Design(0.1, 0.1)
    for problems, samples in ((1, 4), (2, 0)):
        with pytest.raises(ValueError, match="at least 2 problems"):
            design.expected_difference(problems, samples)
    assert design.expected_difference(2, 1).problem_freedom == 1
    for effect in (0.0, -0.1):
        with pytest.raises(ValueError, match="positive"):
            problems_needed(design, effect, 4)
    with pytest.raises(ValueError, match="two samples"):
        Design.from_accuracies([0.5, 0.5], [0.5, 0.25], samples=1)


def test_the_fewest_are_two_problems_or_one_sample_and_the_level_and_power_count() -> None:
    certain = Design(effect_sd=1e-6, sampling_variance=1e-6)
    assert problems_needed(certain, 0.5, 4) == 2 and samples_needed(certain, 0.5, 30) == 1
    design = Design(effect_sd=0.15, sampling_variance=0.3)
    for problems in (50, 51, 97):
        found = problems_needed(
            design, float(minimum_detectable_effect(design.expected_difference(problems, 8), planned=True)), 8
        )
        assert found == problems and isinstance(found, int)
    for alpha, power in ((0.05, 0.8), (0.01, 0.8), (0.05, 0.95)):
        for needed, expected in (
            (problems_needed(design, 0.05, 8, alpha, power), lambda n: design.expected_difference(n, 8)),
            (samples_needed(design, 0.12, 30, alpha, power), lambda n: design.expected_difference(30, n)),
        ):
            assert needed is not None and needed > 1
            assert minimum_detectable_effect(expected(needed), alpha, power, planned=True) <= 0.12
            assert minimum_detectable_effect(expected(needed - 1), alpha, power, planned=True) > 0.05


def test_a_bootstrap_is_the_weighted_mean_of_the_problems_drawn() -> None:
    """With fixed policies nothing is random but the draws, which are given; the two sides share them."""
    generator = np.random.default_rng(5)
    arms = suite(6, 2), suite(7, 1)
    draws = [draw_problems(size, generator, 6) for size in (12, 20)]
    assert all(drawn.sum(axis=1).tolist() == [size] * 6 for drawn, size in zip(draws, (12, 20), strict=True))
    found = bootstrap_differences(
        *arms, draws, generator, treatment_is_fixed=True, control_is_fixed=True, weights=WEIGHTS
    )
    expected = np.zeros(6)
    for weight, one, other, drawn in zip(WEIGHTS, *arms, draws, strict=True):
        expected += weight / 4 * (drawn @ (one.mean(axis=0) - other.mean(axis=0))) / drawn.sum(axis=1)
    assert found == pytest.approx(expected)


def test_bootstrapped_seeds_are_the_same_in_all_benchmarks() -> None:
    """Seeds of one and of zero: a replicate's mean is a multiple of a third, whatever the problems."""
    arm = [np.repeat([[1.0], [0.0], [0.0]], size, axis=1) for size in (12, 20)]
    zero = [np.zeros((1, size)) for size in (12, 20)]
    generator = np.random.default_rng(8)
    draws = [draw_problems(size, generator, 300) for size in (12, 20)]
    for one, other, sign, fixed in ((arm, zero, 3, "control_is_fixed"), (zero, arm, -3, "treatment_is_fixed")):
        thirds = sign * bootstrap_differences(one, other, draws, generator, **{fixed: True})
        assert thirds == pytest.approx(np.round(thirds)) and set(np.round(thirds)) == {0.0, 1.0, 2.0, 3.0}


def test_a_bootstrap_of_one_replicate_and_of_too_few_numbers_of_samples() -> None:
    arms, generator = (suite(6, 2), suite(7, 3)), np.random.default_rng(8)
    draws = [draw_problems(size, generator, 1) for size in (12, 20)]
    assert bootstrap_differences(*arms, draws, generator).shape == (1,)
    with pytest.raises(ValueError, match="zip"):
        bootstrap_differences(*arms, draws, generator, samples=[8])
    with pytest.raises(ValueError, match="zip"):
        estimate_difference(*arms, weights=[1.0])


def test_bootstrapped_samples_are_as_many_as_there_were() -> None:
    """One problem of accuracy one half and two samples, drawn twice: quarters of four samples."""
    half, zero = [np.full((1, 2), 0.5)], [np.zeros((1, 2))]
    generator = np.random.default_rng(9)
    draws = [np.array([[2, 0], [1, 1], [0, 2]] * 200)]
    fixed = {"treatment_is_fixed": True, "control_is_fixed": True}
    found = bootstrap_differences(half, zero, draws, generator, samples=[2], **fixed)  # type: ignore[arg-type]
    assert set(found.tolist()) == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert found.var() == pytest.approx(1 / 16, rel=0.2)


def test_sign_flips_of_many_rows_are_exact_up_to_twenty_problems_and_drawn_beyond() -> None:
    """Differences all alike: 2 of 2^20 assignments reach the sum exactly; of 999 drawn ones none does."""
    rows = np.zeros((2, 1, 25))
    rows[0, 0, :20], rows[1, 0, :21] = 1.0, 1.0
    found = sign_flip_p_values(rows, np.random.default_rng(0), 999)
    assert found.tolist() == [[2 / 2**20], [1 / 1000]]
    assert sign_flip_p_values(np.zeros(3), np.random.default_rng(0), 10) == 1.0
    assert sign_flip_p_values([0.1, 0.2, -0.3], np.random.default_rng(0), 10) == 1.0  # 0.1 + 0.2 is not 0.3
    for scale in (1e-6, 1.0, 1e6):
        assert sign_flip_p_values(scale * np.array([1.0, 2.0, 4.0]), np.random.default_rng(0), 10) == 0.25
    single = np.array([1.0, 1e-8, 1e-8], dtype=np.float32)  # whose sum float32 rounds to 1
    assert sign_flip_p_values(single, np.random.default_rng(0), 10) == 0.25


def test_drawn_sign_flips_are_as_many_as_asked_and_each_row_has_its_own_threshold() -> None:
    """Of a sum of 0 every flip is as large; 3,001 need more than one matrix of flips."""
    assert sign_flip_p_values([1.0] * 11 + [-1.0] * 11, np.random.default_rng(0), 3_001) == 1.0
    row = np.random.default_rng(1).normal(0.3, 1.0, 30)
    found = sign_flip_p_values([row, 1e12 * row[::-1]], np.random.default_rng(2), 500)
    assert found[0] == sign_flip_p_values(row, np.random.default_rng(2), 500) < 1.0


def test_known_p_values_are_corrected_among_themselves_in_their_order() -> None:
    assert holm_of_known([0.04, None, 0.01, None, 0.5]) == [pytest.approx(0.08), None, pytest.approx(0.03), None, 0.5]
    assert holm([[0.01, 0.04], [0.9, 0.6]]) == pytest.approx(np.array([[0.02, 0.04], [1.0, 1.0]]))
    assert holm([0.0, 1.0]).tolist() == [0.0, 1.0]


def test_p_values_of_a_batch_know_their_own_variance() -> None:
    parts = [np.array(values) for values in ([0.1, 0.2], [0.01, 0.02], [9.0, 19.0], [0.0, 0.0], [1.0, 1.0])]
    statistic = parts[0] / np.sqrt(parts[1])
    assert Difference(*parts).p_values() == pytest.approx(2 * stats.t.sf(statistic, parts[2]))
