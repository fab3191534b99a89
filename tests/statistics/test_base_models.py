"""Comparisons of methods whose seeds start from several base models, against loops and simulations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean, variance

import numpy as np
import numpy.typing as npt
import pytest
import statsmodels.api as sm

from evals.core.comparisons import Claim
from evals.core.records import ALL_BENCHMARKS, BASE
from evals.scores.comparison import BenchmarkCounts, Settings, compare
from evals.statistics.interval import score_intervals
from evals.statistics.resampling import draw_problems, sign_flip_p_values
from evals.statistics.sequential import Repetitions, StoppingRule, nominal_levels
from evals.statistics.suite import cluster_sums, cluster_values, label
from tests.statistics.arms import bootstrap_differences, estimate_average, estimate_difference

BASES = ([1, 2, 3, 1, 2, 3, 1], [1, 2, 3, 1, 2, 3, 1, 3])  # the reference's fifth to last seeds lack one
SAMPLES, PROBLEMS = 8, 40


def accuracies(seed: int, *bases: list[int]) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.binomial(SAMPLES, 0.5, (len(labels), PROBLEMS)) / SAMPLES for labels in bases]


def test_every_base_model_has_the_same_weight_and_seeds_vary_around_its_mean() -> None:
    one, other = accuracies(1, *BASES)
    found = estimate_difference([one], [other], samples=([SAMPLES], [SAMPLES]), bases=BASES)
    differences, parts = dict[int, float](), list[tuple[float, int]]()
    for base in (1, 2, 3):
        sides = [
            fmean(float(row.mean()) for row, label in zip(arm, labels, strict=True) if label == base)
            for arm, labels in zip((one, other), BASES, strict=True)
        ]
        differences[base] = sides[0] - sides[1]
    for arm, labels in zip((one, other), BASES, strict=True):
        of_seeds = [(float(row.mean()), label) for row, label in zip(arm, labels, strict=True)]
        rows = [[mean for mean, label in of_seeds if label == base] for base in (1, 2, 3)]
        squares = sum((len(row) - 1) * variance(row) for row in rows)
        freedom = len(labels) - 3
        parts.append((squares / freedom * sum(1 / len(row) for row in rows) / 9, freedom))
    total = sum(part for part, _ in parts)
    assert float(found.estimate) == pytest.approx(fmean(differences.values()))
    assert float(found.seed_variance) == pytest.approx(total)
    assert float(found.seed_freedom) == pytest.approx(total**2 / sum(part**2 / freedom for part, freedom in parts))
    assert found.base_variance is not None
    assert float(found.base_variance) == pytest.approx(variance(differences.values()) / 3)
    over = found.over_base_models()
    assert over is not None and float(over.seed_freedom) == 2.0 and float(over.estimate) == float(found.estimate)
    shares = found.variance_shares()
    assert list(shares) == ["problems", "samples", "seeds", "base_models"]
    assert sum(shares.values()) == pytest.approx(1.0)


def test_what_a_base_model_adds_to_both_methods_cancels_though_seeds_are_missing() -> None:
    one, other = accuracies(2, *BASES)
    plain = estimate_difference([one], [other], bases=BASES)
    added = {1: 0.0, 2: 0.5, 3: -0.7}
    of_seeds = [np.array([added[base] for base in labels])[:, None] for labels in BASES]
    sides = [one + of_seeds[0], other + of_seeds[1]]
    moved = estimate_difference([sides[0]], [sides[1]], bases=BASES)
    for name in ("estimate", "problem_variance", "seed_variance", "seed_freedom", "base_variance"):
        assert float(getattr(moved, name)) == pytest.approx(float(getattr(plain, name)))
    assert float(estimate_difference([sides[0]], [sides[1]]).estimate) != pytest.approx(float(plain.estimate), abs=0.01)


def test_one_base_model_is_none() -> None:
    one, other = accuracies(3, *BASES)
    counts = [SAMPLES], [SAMPLES]
    plain = estimate_difference([one], [other], samples=counts)
    alone = estimate_difference([one], [other], samples=counts, bases=([1] * len(one), [1] * len(other)))
    assert alone.interval() == plain.interval() and alone.base_variance is None and alone.over_base_models() is None
    assert list(plain.variance_shares()) == ["problems", "samples", "seeds"]
    averages = [estimate_average([one], [SAMPLES], is_fixed=False, bases=labels) for labels in (None, [1] * len(one))]
    assert averages[0] == averages[1]


def test_one_seed_of_each_base_model_varies_with_it_and_other_base_models_tell_nothing() -> None:
    one, other = accuracies(4, [1, 2, 3], [1, 2, 3])
    found = estimate_difference([one], [other], bases=([1, 2, 3], [1, 2, 3]))
    assert found.seed_variance == found.base_variance and float(found.seed_freedom) == pytest.approx(2.0)
    assert np.isnan(estimate_difference([one], [other], bases=([1, 2, 3], [1, 2, 4])).standard_error)


def test_intervals_hold_for_these_base_models_and_beside_them_for_others() -> None:
    generator, studies, labels = np.random.default_rng(5), 2_000, [1, 2, 3] * 4
    of_base = 0.02 * generator.standard_normal((2, studies, 3))
    rates = 0.5 + np.tile(of_base, 4) + 0.0114 * generator.standard_normal((2, studies, 12))
    arms = rates[..., None] + 0.02 * generator.standard_normal((2, studies, 1, 30))
    found = estimate_difference([arms[0]], [arms[1]], bases=(labels, labels))
    these = (of_base[0] - of_base[1]).mean(axis=1)

    def covered(interval: tuple[np.ndarray, np.ndarray], truth: np.ndarray | float) -> float:
        return float(((interval[0] <= truth) & (truth <= interval[1])).mean())

    over = found.over_base_models()
    assert over is not None
    assert covered(found.interval(), these) > 0.94 and covered(found.interval(), 0.0) < 0.7
    assert covered(over.interval(), 0.0) > 0.94


def counts(seeds: int, bases: int = 3) -> BenchmarkCounts:
    generator = np.random.default_rng(6)
    runs = {f"tiny-{BASE}-{base}": (BASE, base) for base in range(1, bases + 1)}
    for method in ("dapo", "mine"):
        runs |= {f"tiny-{method}-s{seed}": (method, (seed - 1) % bases + 1) for seed in range(1, seeds + 1)}
    rate = {BASE: 0.3, "dapo": 0.5, "mine": 0.6}
    drawn = {
        run: generator.binomial(SAMPLES, rate[method] + 0.05 * base, PROBLEMS).tolist()
        for run, (method, base) in runs.items()
    }
    methods = {run: ("tiny", method) for run, (method, _) in runs.items()}
    of_run = {run: base for run, (_, base) in runs.items()}
    return BenchmarkCounts(Path("worded.json"), "worded", dict.fromkeys(runs, SAMPLES), methods, drawn, bases=of_run)


def test_a_run_is_compared_with_its_own_base_model() -> None:
    settings = Settings("dapo", bootstrap_resamples=500, permutations=500)
    benchmark = counts(6)
    rows = {(row.method, row.against): row for row in compare([benchmark], settings).comparisons}
    row = rows["mine", BASE]
    assert (row.bases, row.seeds, row.against_seeds) == (3, 6, 3)
    assert row.variance_shares is not None and sum(row.variance_shares.values()) == pytest.approx(1.0)
    assert row.interval_over_bases is not None and row.confidence_interval is not None
    assert row.interval_over_bases[0] <= row.confidence_interval[0] < row.confidence_interval[1] < 1.0
    fallen = replace(benchmark, fallen=frozenset({"tiny-mine-s2", "tiny-mine-s5"}))  # all runs of base model 2
    row = {(row.method, row.against): row for row in compare([fallen], settings).comparisons}["mine", BASE]
    means = [fmean(np.array(benchmark.counts[f"tiny-{BASE}-{base}"]) / SAMPLES) for base in (1, 3)]
    assert row.bases == 2 and row.against_average == pytest.approx(fmean(means))
    gone = frozenset({"tiny-mine-s1", "tiny-mine-s2", "tiny-mine-s4", "tiny-mine-s5", "tiny-dapo-s3", "tiny-dapo-s6"})
    row = {(row.method, row.against): row for row in compare([replace(benchmark, fallen=gone)], settings).comparisons}[
        "mine", "dapo"
    ]
    assert (row.bases, row.confidence_interval, row.p_value) == (None, None, None)


def test_base_models_of_two_models_are_seeds_of_each() -> None:
    both = [replace(counts(0, bases=3), methods={}) for _ in range(2)]
    names = [f"{model}-{run}" for model in ("a", "b") for run in both[0].counts]
    methods = {name: (name[0], BASE) for name in names}
    drawn = {name: both[0].counts[name[2:]] for name in names}
    bases = {name: int(name[-1]) for name in names}
    alone = replace(both[0], methods=methods, counts=drawn, samples=dict.fromkeys(names, SAMPLES), bases=bases)
    row = compare([alone], Settings(BASE, bootstrap_resamples=500, permutations=500)).comparisons[-1]
    fixed = compare([alone], Settings(BASE, Claim.CHECKPOINTS, bootstrap_resamples=500, permutations=500))
    assert row.benchmark == ALL_BENCHMARKS and row.bases is None and row.seeds == 3
    assert row.standard_error is not None and (error := fixed.comparisons[-1].standard_error) is not None
    assert row.standard_error > 1.1 * error  # where claims are about these policies, they are no sample


def test_a_repetition_of_a_study_with_base_models_has_their_degrees_of_freedom() -> None:
    one, other = accuracies(7, [1, 2, 3] * 5, [1, 2, 3] * 5)
    labels = [1, 2, 3] * 5
    looks = (6, 9, 12, 15)
    rule = StoppingRule(looks, nominal_levels(looks, 15, 0.05 / 9), 0.02)
    found = estimate_difference([one], [other], bases=(labels, labels))
    effects = [
        Repetitions.draw(
            replace(found, bases=bases), (15, 15), rule, np.random.default_rng(1), np.random.default_rng(2)
        ).detectable()
        for bases in (1, 3)
    ]
    assert effects[1] > effects[0]


# Problems that are near copies of one another: slow references, what they reduce to, and simulated studies.

STUDIES = 1_500
FIXED = {"treatment_is_fixed": True, "control_is_fixed": True}


def test_problems_are_labelled_by_their_groups() -> None:
    assert label(["a", "b", "c"], []) is None
    assert label(["a", "b"], [["a", "b"]]) is None  # one cluster leaves no error to estimate
    labels = label([3, 1, 2, "x"], [["2", "3"]])
    assert labels is not None and labels[0] == labels[2] and len(set(labels.tolist())) == 3
    assert sorted(set(labels.tolist())) == [0, 1, 2]


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
