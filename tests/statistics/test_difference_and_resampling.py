"""The comparison's arithmetic against scipy, against written-out definitions, and at its edges."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evals.statistics.power import Design, minimum_detectable_effect, problems_needed, samples_needed
from evals.statistics.resampling import choice_variance, draw_problems, holm, sign_flip_p_values
from tests.statistics.arms import bootstrap_differences, estimate_difference

FIXED = {"treatment_is_fixed": True, "control_is_fixed": True}


def accuracies(key: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(key).binomial(32, 0.5, shape) / 32


def test_checkpoints_on_one_benchmark_agree_with_scipys_paired_t_test() -> None:
    one, other = accuracies(1, 1, 30), accuracies(2, 1, 30)
    difference = estimate_difference([one], [other], **FIXED)
    expected = stats.ttest_rel(one[0], other[0])
    assert difference.p_values() == pytest.approx(expected.pvalue, rel=1e-9)
    assert difference.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert difference.seed_variance == 0.0 and difference.seed_freedom == 2.0


def test_seed_part_alone_agrees_with_scipys_welch_test() -> None:
    # Methods whose seeds differ but whose problems all differ alike: the problems' part vanishes.
    seeds = [np.array([0.42, 0.50, 0.55]), np.array([0.30, 0.31, 0.36, 0.29])]
    one, other = (values[:, None] + np.linspace(-0.2, 0.2, 30) for values in seeds)
    difference = estimate_difference([one], [other])
    expected = stats.ttest_ind(*seeds, equal_var=False)
    assert difference.p_values() == pytest.approx(expected.pvalue, rel=1e-6)
    assert difference.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-6)


@given(st.integers(0, 10_000), st.integers(2, 4), st.floats(0.5, 0.999))
@settings(max_examples=40)
def test_p_value_and_interval_say_the_same(key: int, seeds: int, confidence: float) -> None:
    difference = estimate_difference([accuracies(key, seeds, 12)], [accuracies(key + 1, seeds, 12)])
    p_value = float(difference.p_values())
    low, high = difference.interval(confidence)
    assert bool(low <= 0.0 <= high) == (p_value >= 1.0 - confidence - 1e-9)
    if 1e-6 < p_value < 1.0 - 1e-6:
        edge = difference.interval(1.0 - p_value)
        assert min(abs(edge[0]), abs(edge[1])) == pytest.approx(0.0, abs=1e-8)


def test_tiny_p_values_of_fractional_degrees_of_freedom_are_solved() -> None:
    one = 0.9 + np.array([0.0, 0.001, 0.0005])[:, None] + 1e-3 * accuracies(3, 3, 30)
    other = 0.1 + np.array([0.0, 0.002, 0.0005])[:, None] + 1e-3 * accuracies(4, 3, 30)
    assert 0.0 < float(estimate_difference([one], [other]).p_values()) < 1e-5


def test_benchmarks_count_alike_whatever_their_size() -> None:
    one, other = [accuracies(5, 3, 30), accuracies(6, 3, 300)], [accuracies(7, 3, 30), accuracies(8, 3, 300)]
    separate = [estimate_difference([a], [b]) for a, b in zip(one, other, strict=True)]
    pooled = estimate_difference(one, other)
    assert pooled.estimate == pytest.approx(np.mean([part.estimate for part in separate]))
    assert pooled.problem_variance == pytest.approx(sum(part.problem_variance for part in separate) / 4)


def test_one_seed_leaves_a_method_unknown_and_says_so() -> None:
    one, other = accuracies(9, 1, 30), accuracies(10, 3, 30)
    difference = estimate_difference([one], [other])
    assert np.isnan(difference.standard_error)
    assert np.isnan(difference.p_values())
    assert np.isnan(difference.interval()).all()
    assert np.isfinite(estimate_difference([one], [other], **FIXED).p_values())


def test_equal_results_have_p_value_one_and_constant_differences_do_not_divide_by_zero() -> None:
    same = accuracies(11, 3, 30)
    assert estimate_difference([same], [same], **FIXED).p_values() == 1.0
    assert estimate_difference([same * 0 + 1], [same * 0]).p_values() < 1e-9


def test_batches_equal_single_calls() -> None:
    one, other = accuracies(12, 5, 3, 30), accuracies(13, 5, 3, 30)
    batch = estimate_difference([one], [other]).p_values()
    assert batch == pytest.approx(
        [float(estimate_difference([a], [b]).p_values()) for a, b in zip(one, other, strict=True)]
    )
    assert estimate_difference([one], [other], **FIXED).seed_variance.shape == (5,)
    alone = estimate_difference([one[:, :1]], [other[:, :1]])
    assert alone.seed_variance.shape == (5,) and np.isnan(alone.seed_variance).all()
    with pytest.raises(ValueError, match="30 and 29 problems"):
        estimate_difference([one], [other[..., 1:]])


def test_methods_on_different_problems_are_refused() -> None:
    with pytest.raises(ValueError, match="30 and 29 problems"):
        estimate_difference([accuracies(1, 3, 30)], [accuracies(1, 3, 29)])
    with pytest.raises(ValueError, match="2 and 1 benchmarks"):
        estimate_difference([accuracies(1, 3, 30)] * 2, [accuracies(1, 3, 30)])


@pytest.mark.parametrize("problems", [2, 6, 11])
def test_exact_sign_flips_agree_with_scipy(problems: int) -> None:
    values = np.random.default_rng(problems).normal(0.4, 1.0, problems)
    expected = stats.permutation_test((values,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
    assert sign_flip_p_values(values, np.random.default_rng(0), 1) == pytest.approx(expected)


def test_problems_without_a_difference_carry_no_information() -> None:
    values = np.random.default_rng(1).normal(0.4, 1.0, 10)
    padded = np.concatenate([values, np.zeros(40)])
    assert sign_flip_p_values(padded, np.random.default_rng(0), 10) == sign_flip_p_values(
        values, np.random.default_rng(0), 10
    )


def test_monte_carlo_sign_flips_approach_the_exact_distribution_and_are_never_zero() -> None:
    # 24 differences of 1/32 each: the flipped sum is a scaled binomial, which gives the exact answer.
    values = np.array([1.0] * 17 + [-1.0] * 7) / 32
    exact = stats.binomtest(17, 24).pvalue
    assert sign_flip_p_values(values, np.random.default_rng(2), 100_000) == pytest.approx(exact, abs=0.005)
    assert sign_flip_p_values(np.ones(24), np.random.default_rng(2), 999) == pytest.approx(0.001)


def test_a_row_does_not_depend_on_the_rows_tested_with_it() -> None:
    values = np.random.default_rng(3).normal(0.2, 1.0, (4, 30))
    together = sign_flip_p_values(values, np.random.default_rng(4), 5_000)
    assert sign_flip_p_values(values[2], np.random.default_rng(4), 5_000) == together[2]


def test_bootstrap_over_problems_agrees_with_scipy() -> None:
    one, other = accuracies(14, 1, 40), accuracies(15, 1, 40)
    generator = np.random.default_rng(5)
    ours = bootstrap_differences([one], [other], [draw_problems(40, generator, 20_000)], generator, **FIXED)
    theirs = stats.bootstrap(
        ((one - other)[0],), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(6)
    )
    assert ours.std() == pytest.approx(theirs.standard_error, rel=0.03)
    assert np.quantile(ours, [0.025, 0.975]) == pytest.approx(list(theirs.confidence_interval), abs=0.003)


def test_bootstrap_variance_is_the_sum_of_its_levels() -> None:
    seeds, problems, samples = 3, 40, 8
    one = np.random.default_rng(7).binomial(samples, 0.5, (seeds, problems)) / samples
    one[0] = np.minimum(one[0] + 0.3, 1.0)
    zero = np.zeros((1, problems))
    generator = np.random.default_rng(8)
    draws = [draw_problems(problems, generator, 40_000)]
    with_seeds = bootstrap_differences([one], [zero], draws, generator, control_is_fixed=True)
    seed_variance = one.mean(axis=1).var() / seeds
    problem_variance = one.mean(axis=0).var() / problems
    residual = one - one.mean(axis=0) - one.mean(axis=1, keepdims=True) + one.mean()
    expected = seed_variance + problem_variance + residual.var() / (seeds * problems)
    assert with_seeds.var() == pytest.approx(expected, rel=0.05)
    with_samples = bootstrap_differences([one], [zero], draws, generator, control_is_fixed=True, samples=[samples])
    expected += (one * (1.0 - one)).mean() / (samples * seeds * problems) * (1 + (seeds - 1) / seeds)
    assert with_samples.var() == pytest.approx(expected, rel=0.15)
    assert with_samples.var() > with_seeds.var()


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_holm_equals_its_definition(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    ordered = sorted(p_values)
    for value, result in zip(p_values, adjusted, strict=True):
        ranks = range(ordered.index(value) + ordered.count(value))
        assert result == pytest.approx(max(min(1.0, (len(ordered) - rank) * ordered[rank]) for rank in ranks))


def test_holm_refuses_what_is_no_p_value() -> None:
    for wrong in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            holm([0.5, wrong])


def test_minimum_detectable_effect_is_2_8_standard_errors_with_many_problems() -> None:
    one, other = accuracies(16, 1, 2_000), accuracies(17, 1, 2_000)
    difference = estimate_difference([one], [other], **FIXED)
    assert minimum_detectable_effect(difference) == pytest.approx(2.802 * difference.standard_error, rel=2e-3)


def test_numbers_needed_are_the_smallest_that_detect() -> None:
    design = Design(effect_sd=0.15, sampling_variance=0.3)
    for effect, samples in itertools.product((0.03, 0.08), (4, 32)):
        needed = problems_needed(design, effect, samples)
        assert needed is not None
        assert minimum_detectable_effect(design.expected_difference(needed, samples), planned=True) <= effect
        assert minimum_detectable_effect(design.expected_difference(needed - 1, samples), planned=True) > effect
    needed = samples_needed(design, 0.09, 30)
    assert needed is not None
    assert minimum_detectable_effect(design.expected_difference(30, needed), planned=True) <= 0.09
    assert minimum_detectable_effect(design.expected_difference(30, needed - 1), planned=True) > 0.09


def test_some_effects_no_number_of_samples_or_problems_can_show() -> None:
    assert samples_needed(Design(effect_sd=0.15, sampling_variance=0.3), 0.05, problems=30) is None
    assert problems_needed(Design(0.15, 0.3, seed_sd=0.03, seeds=3), 0.05, samples=32) is None


def test_a_design_is_recovered_from_a_pilot() -> None:
    generator = np.random.default_rng(18)
    one = generator.beta(2.0, 2.0, 20_000)
    other = np.clip(one + generator.normal(0.0, 0.1, 20_000), 0.0, 1.0)
    pilot = [generator.binomial(32, rate) / 32 for rate in (one, other)]
    design = Design.from_accuracies(pilot[0], pilot[1], samples=32)
    assert design.effect_sd == pytest.approx((one - other).std(), rel=0.05)
    assert design.sampling_variance == pytest.approx((one * (1 - one) + other * (1 - other)).mean(), rel=0.02)


def test_a_choice_varies_where_other_seeds_and_problems_would_choose_otherwise() -> None:
    generator, means = np.random.default_rng(19), [0.5, 0.7]
    alike = generator.binomial(2, 0.8, (2, 8, 64))
    clear = alike + np.array([0, 1])[:, None, None]
    assert choice_variance(clear, means, generator) < 1e-20 and choice_variance(alike[:1], means[:1], generator) < 1e-20
    found, chosen = choice_variance(alike, means, generator), list[int]()
    for _ in range(2_000):
        seeds, problems = generator.integers(8, size=8), generator.integers(64, size=64)
        chosen.append(int(alike[:, seeds][:, :, problems].mean(axis=(1, 2)).argmax()))
    share = float(np.mean(chosen))
    assert found == pytest.approx(0.04 * share * (1.0 - share), rel=0.15)
