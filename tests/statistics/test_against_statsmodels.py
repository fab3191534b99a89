"""Our statistics against statsmodels' and scipy's wherever both can compute the same thing."""

from unittest import mock

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint

from evals.statistics.accuracy import clustered_standard_error
from evals.statistics.power import Design, minimum_detectable_effect, problems_needed
from evals.statistics.resampling import draw_problems, holm, sign_flip_p_values
from tests.statistics.arms import bootstrap_differences, estimate_difference
from tests.statistics.populations import wilson_interval

FIXED = {"treatment_is_fixed": True, "control_is_fixed": True}


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm(p_values: list[float]) -> None:
    with mock.patch("gc.collect"):  # each call of statsmodels collects the garbage of the whole process
        assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])


@pytest.mark.parametrize(("problems", "samples"), [(12, 3), (30, 32), (200, 4)])
def test_clustered_standard_errors(problems: int, samples: int) -> None:
    """Problems as the clusters of 0/1 samples, as an econometrician would ask for them."""
    generator = np.random.default_rng(problems)
    verdicts = generator.random((problems, samples)) < generator.beta(1.0, 1.0, (problems, 1))
    groups = np.repeat(np.arange(problems), samples)
    fitted = sm.OLS(verdicts.ravel().astype(float), np.ones(problems * samples)).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False}, use_t=True
    )
    # Without correction the sum of squares is divided by N^2, not by N (N - 1).
    expected = fitted.bse[0] * np.sqrt(problems / (problems - 1))
    assert clustered_standard_error(verdicts.mean(axis=1)) == pytest.approx(expected)


def test_wilson_intervals() -> None:
    # Many problems that are all or nothing: effective sample size N - 1 and Student's quantile are then the textbook's.
    solved = np.array([1.0] * 3_000 + [0.0] * 17_000)
    expected = proportion_confint(3_000, 20_000, method="wilson")
    assert wilson_interval(solved, 1) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("problems", [12, 30, 183])
@pytest.mark.parametrize("power", [0.8, 0.9])
def test_minimum_detectable_effects(problems: int, power: float) -> None:
    """statsmodels inverts the noncentral t distribution; ours is the mean over possible estimates."""
    sd = 0.17
    difference = Design(effect_sd=sd, sampling_variance=0.0).expected_difference(problems, 32)
    expected = sd * TTestPower().solve_power(nobs=problems, alpha=0.05, power=power)
    assert minimum_detectable_effect(difference, 0.05, power, planned=True) == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize("effect", [0.04, 0.1])
def test_numbers_of_problems(effect: float) -> None:
    sd = np.sqrt(0.15**2 + 0.3 / 32)
    expected = TTestPower().solve_power(effect_size=effect / sd, alpha=0.05, power=0.8)
    assert problems_needed(Design(0.15, 0.3), effect, samples=32) == pytest.approx(expected, abs=1.5)


@pytest.mark.parametrize("problems", [8, 40])
def test_sign_flips(problems: int) -> None:
    """Exact for few problems, Monte-Carlo for many."""
    differences = np.random.default_rng(problems).normal(0.1, 0.25, problems)
    expected = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=50_000, rng=np.random.default_rng(1)
    ).pvalue
    ours = sign_flip_p_values(differences, np.random.default_rng(2), 50_000)
    assert ours == pytest.approx(expected, abs=1e-12 if problems < 20 else 0.006)


def test_paired_t_intervals_and_the_bootstrap_of_two_benchmarks() -> None:
    generator = np.random.default_rng(5)
    one, other = ([generator.beta(2.0, 2.0, (1, size)) for size in (40, 90)] for _ in range(2))
    single = estimate_difference(one[:1], other[:1], **FIXED)
    expected = sm.stats.DescrStatsW(one[0][0] - other[0][0]).tconfint_mean()
    assert single.interval() == pytest.approx(expected)
    draws = [draw_problems(size, generator, 20_000) for size in (40, 90)]
    resampled = bootstrap_differences(one, other, draws, generator, **FIXED)
    per_benchmark = [
        stats.bootstrap(((a - b)[0],), np.mean, n_resamples=20_000, rng=np.random.default_rng(6)).standard_error
        for a, b in zip(one, other, strict=True)
    ]
    assert resampled.std() == pytest.approx(np.sqrt(sum(error**2 for error in per_benchmark)) / 2, rel=0.03)
