"""Problems that are near copies of one another: slow references, what they reduce to, and simulated studies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import statsmodels.api as sm

from evals.statistics.average import estimate_average
from evals.statistics.clusters import cluster_sums, cluster_values, joined, label
from evals.statistics.difference import estimate_difference
from evals.statistics.interval import score_intervals
from evals.statistics.resampling import bootstrap_differences, draw_problems, sign_flip_p_values

STUDIES = 1_500
FIXED = {"treatment_is_fixed": True, "control_is_fixed": True}


def test_problems_are_labelled_by_their_groups() -> None:
    assert label(["a", "b", "c"], []) is None
    assert label(["a", "b"], [["a", "b"]]) is None  # one cluster leaves no error to estimate
    labels = label([3, 1, 2, "x"], [["2", "3"]])
    assert labels is not None and labels[0] == labels[2] and len(set(labels.tolist())) == 3
    assert sorted(set(labels.tolist())) == [0, 1, 2]
    both = joined([None, labels], [2, 4])
    assert both is not None and len(set(both.tolist())) == 5 and both[2] == both[4]
    assert joined([None, None], [2, 4]) is None


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 2, 3), (5, 1, 1, 2), (4, 4)])
def test_the_variance_is_the_cluster_robust_one(sizes: tuple[int, ...]) -> None:
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    values = np.random.default_rng(sum(sizes)).random(len(clusters))
    transformed = cluster_values(values, clusters)
    assert transformed.mean() == pytest.approx(values.mean())
    mean, squares = sum(values.tolist()) / len(values), 0.0  # Cameron and Miller 2015, with G / (G - 1)
    for group in range(len(sizes)):
        squares += sum(value - mean for value, of in zip(values.tolist(), clusters, strict=True) if of == group) ** 2
    expected = len(sizes) / (len(sizes) - 1) * squares / len(values) ** 2
    assert transformed.var(ddof=1) / len(sizes) == pytest.approx(expected)
    fitted = sm.OLS(values, np.ones(len(values))).fit(
        cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": True}, use_t=True
    )
    assert fitted.bse[0] ** 2 == pytest.approx(expected)


def test_clusters_of_one_problem_change_nothing() -> None:
    generator = np.random.default_rng(0)
    counts, alone = generator.integers(0, 9, (3, 40)), generator.permutation(40)
    assert cluster_values(counts, None) is not counts and (cluster_values(counts, None) == counts).all()
    for one, other in zip(score_intervals(counts, 8), score_intervals(counts, 8, clusters=alone), strict=True):
        assert one == pytest.approx(other)
    average, same = (estimate_average([counts / 8], [8], is_fixed=False, clusters=each) for each in (None, [alone]))
    assert average.confidence_interval == pytest.approx(same.confidence_interval)
    assert average.standard_error == pytest.approx(same.standard_error) and average.by_seed == same.by_seed


def test_a_problem_that_is_there_twice_tells_nothing_new() -> None:
    counts = np.random.default_rng(1).integers(0, 9, 40)
    twice, pairs = np.repeat(counts, 2), np.repeat(np.arange(40), 2)
    for once, clustered in zip(score_intervals(counts, 8), score_intervals(twice, 8, clusters=pairs), strict=True):
        assert once == pytest.approx(clustered, abs=1e-9)
    signs = np.random.default_rng(2).normal(size=12)
    generator = np.random.default_rng(0)
    sums = cluster_sums(np.repeat(signs, 2) / 2, np.repeat(np.arange(12), 2))
    assert sign_flip_p_values(sums, generator, 100) == pytest.approx(sign_flip_p_values(signs, generator, 100))
    nothing = np.zeros((1, 40))
    draws = draw_problems(80, np.random.default_rng(3), 4_000, pairs)
    of_twice = bootstrap_differences([twice[None] / 8], [np.zeros((1, 80))], [draws], generator, **FIXED)
    plain = draw_problems(40, np.random.default_rng(3), 4_000)
    assert of_twice == pytest.approx(bootstrap_differences([counts[None] / 8], [nothing], [plain], generator, **FIXED))


def _templates(generator: np.random.Generator, spread: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The clusters of a benchmark, 40 templates with 1 to 8 problems each, and the level [N] of each one's template."""
    sizes = generator.choice([1, 2, 4, 8], 40)
    clusters = np.repeat(np.arange(40), sizes)
    return clusters, generator.normal(0.0, spread, 40)[clusters]


def test_intervals_cover_where_templates_repeat_and_those_over_problems_do_not() -> None:
    generator, covered = np.random.default_rng(7), {"clusters": 0, "problems": 0}
    logistic = generator.normal(0.0, np.hypot(1.5, 0.3), 400_000)
    truth = float((1.0 / (1.0 + np.exp(-logistic))).mean())
    for _ in range(STUDIES):
        clusters, levels = _templates(generator, 1.5)
        rates = 1.0 / (1.0 + np.exp(-(levels + generator.normal(0.0, 0.3, len(levels)))))
        counts = generator.binomial(8, rates)
        for name, known in {"clusters": clusters, "problems": None}.items():
            low, high = score_intervals(counts, 8, clusters=known)
            covered[name] += bool(low <= truth <= high)
    shares = {name: count / STUDIES for name, count in covered.items()}
    assert 0.92 <= shares["clusters"] <= 0.97 and shares["problems"] < 0.85, shares


def test_tests_keep_their_level_where_templates_repeat_and_those_over_problems_do_not() -> None:
    """Two policies, alike over the population of templates, of which some suit one and some the other."""
    generator, rejected = np.random.default_rng(8), {"clusters": 0, "problems": 0}
    for _ in range(STUDIES // 3):
        clusters, levels = _templates(generator, 0.8)
        policies = [generator.binomial(8, 1.0 / (1.0 + np.exp(sign * levels / 2)))[None] / 8 for sign in (1.0, -1.0)]
        for name, known in {"clusters": clusters, "problems": None}.items():
            sides = [[cluster_values(side, known)] for side in policies]
            by_t = float(estimate_difference(*sides, **FIXED).p_values())
            shares = cluster_sums((policies[0] - policies[1]).mean(axis=0) / len(levels), known)
            by_flips = float(sign_flip_p_values(shares, generator, 500))
            rejected[name] += max(by_t, by_flips) <= 0.05
    rates = {name: count / (STUDIES // 3) for name, count in rejected.items()}
    assert rates["clusters"] <= 0.075 and rates["problems"] > 0.12, rates
