"""Comparisons of methods whose seeds start from several base models, against loops and simulations."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean, variance

import numpy as np
import pytest

from evals.core.comparisons import Claim
from evals.core.records import ALL_BENCHMARKS, BASE
from evals.scores.comparison import BenchmarkCounts, Settings, compare
from evals.statistics.average import estimate_average
from evals.statistics.difference import estimate_difference
from evals.statistics.sequential import Repetitions, StoppingRule, nominal_levels

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
