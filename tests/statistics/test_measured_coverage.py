"""The simulation that measures how often intervals cover: its populations, its counts, and the figures in the docs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import logit

from evals.core.errors import UserError
from evals.statistics import coverage
from evals.statistics.coverage import Counts, Population, coverage_table, measure_coverage, populations

DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"
HEAD = "| population | accuracy | given | ours | t | Wilson | Hall |"


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_command_prints_the_documented_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every eighth of them: a row takes seconds."""
    lines = DOCUMENTED.read_text().splitlines()
    start = lines.index(HEAD)
    rows = lines[start + 2 : start + lines[start:].index("")][::8]
    wanted = {tuple(cells(row)[:2]) for row in rows}
    chosen = [
        each
        for each in populations()
        if (f"{each.family} {'∞' if each.spread == 1e6 else f'{each.spread:g}'}", f"{each.accuracy:g}") in wanted
    ]
    assert len(chosen) == len(rows)
    monkeypatch.setattr(coverage, "populations", lambda: chosen)
    printed = list(coverage_table())
    assert printed[:-1] == [*lines[start : start + 2], *rows]
    ours = [float(cells(row)[3].strip("*")) for row in rows]
    assert printed[-1].startswith(f"\n{len(rows)} populations: ours covers {min(ours)} to {max(ours)} %, ")


def moments(population: Population) -> tuple[float, float]:
    """Mean and variance of a population's accuracies; of the logits where these are normal."""
    m, s = population.accuracy, population.spread
    variances = {
        "beta": m * (1 - m) / (s + 1),
        "two": (s * min(m, 1 - m)) ** 2,
        "impossible": m * (s - m),  # a part m / s of the problems at s
        "normal": s**2,
    }
    return m, variances[population.family]


@pytest.mark.parametrize(
    "population",
    [
        Population("beta", 2.0, 0.2),
        Population("beta", 0.3, 0.7),
        Population("normal", 1.5, 0.3),
        Population("two", 0.7, 0.2),
        Population("two", 0.5, 0.9),
        Population("impossible", 0.5, 0.1),
    ],
    ids=str,
)
def test_drawn_problems_have_the_populations_mean_and_spread(population: Population) -> None:
    samples = 1_000_000
    counts = population.draw(20, samples, 2_000, np.random.default_rng(1))
    assert counts.shape == (2_000, 20)
    accuracies = counts / samples
    mean, variance = moments(population)
    assert accuracies.mean() == pytest.approx(mean, abs=0.01)
    values = logit(accuracies) if population.family == "normal" else accuracies
    assert values.var() == pytest.approx(variance, rel=0.03)


def test_every_listed_population_can_be_drawn_and_has_its_mean() -> None:
    listed = populations()
    assert len(set(listed)) == len(listed) == 291
    table = DOCUMENTED.read_text().partition(HEAD)[2].partition("\n\n")[0].splitlines()[2:]
    named = {
        (f"{each.family} {'∞' if each.spread == 1e6 else f'{each.spread:g}'}", f"{each.accuracy:g}") for each in listed
    }
    assert table and {tuple(cells(row)[:2]) for row in table} <= named
    for population in listed:
        counts = population.draw(200, 100, 50, np.random.default_rng(2))
        assert counts.mean() / 100 == pytest.approx(population.accuracy, abs=0.025)
    with pytest.raises(ValueError, match="family"):
        Population("gamma", 1.0, 0.5).draw(2, 1, 1, np.random.default_rng(0))


@pytest.mark.filterwarnings("error")
def test_an_interval_covers_with_its_ends_and_counts_where_it_is_given() -> None:
    """Four kinds of intervals in turn: to the truth, from the truth, beside it, none; and none at all."""
    low, high = np.array([0.0, 0.25, 0.3, np.nan]), np.array([0.25, 0.5, 0.5, 0.9])
    seen: list[Counts] = []

    def intervals(counts: Counts, samples: int) -> tuple[np.ndarray, np.ndarray]:
        assert counts.shape == (4, 7) and 1 < counts.max() <= samples == 3
        seen.append(counts)
        return low, high

    population = Population("beta", 1.0, 0.25)
    sizes = {"problems": 7, "samples": 3, "benchmarks": 4}
    measured = measure_coverage(population, intervals, **sizes)
    assert measured.given == 0.75 and measured.covered == pytest.approx(2 / 3)
    low, high = high, low  # a missing upper end is none either
    assert measure_coverage(population, intervals, **sizes).given == 0.75
    low = np.full(4, np.nan)
    measured = measure_coverage(population, intervals, **sizes, seed=1)
    assert measured.given == 0.0 and np.isnan(measured.covered)
    assert np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[0], seen[2])


def test_the_random_numbers_are_those_of_the_documented_table() -> None:
    """Keyed by seed, accuracy in 1/10,000, spread in 1/100 and family; 10,000 benchmarks of 30 problems, 32 samples."""
    seen: list[Counts] = []

    def intervals(counts: Counts, samples: int) -> tuple[np.ndarray, np.ndarray]:
        assert samples == 32
        seen.append(counts)
        return np.zeros(len(counts)), np.ones(len(counts))

    population = Population("two", 0.7, 0.995)
    measure_coverage(population, intervals)
    measure_coverage(population, intervals, benchmarks=2, seed=5)
    for seed, benchmarks, counts in ((0, 10_000, seen[0]), (5, 2, seen[1])):
        generator = np.random.default_rng([seed, 9950, 70, *b"two"])
        assert np.array_equal(counts, population.draw(30, 32, benchmarks, generator))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"problems": 7}, "problems"),
        ({"samples": 0}, "samples"),
        ({"benchmarks": 99}, "benchmarks"),
        ({"seed": -1}, "seed"),
    ],
)
def test_sizes_that_measure_nothing_are_refused(options: dict[str, int], name: str) -> None:
    with pytest.raises(UserError, match=f"--{name}"):
        next(coverage_table(**options))  # type: ignore[arg-type]


def test_the_table_marks_what_is_outside_the_band_and_leaves_out_what_gets_no_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Populations of accuracy a, given to this share and covered to that one by ours; Hall's is never given."""
    shares = {0.1: (0.1, 0.93), 0.2: (0.09, 0.95), 0.3: (1.0, 0.97), 0.4: (1.0, 0.929), 0.5: (1.0, 0.971)}
    spreads = dict(zip(shares, (0.5, 0.5, 1e6, 2.0, 999_999.0), strict=True))
    monkeypatch.setattr(coverage, "populations", lambda: [Population("two", spreads[mean], mean) for mean in shares])
    sizes: list[dict[str, int]] = []

    def measure(population: Population, intervals: coverage.Intervals, **given: int) -> coverage.Coverage:
        sizes.append(given)
        kind = next(name for name, each in coverage.INTERVALS.items() if each is intervals)
        by_kind = {"ours": shares[population.accuracy], "t": (1.0, 0.5), "Wilson": (0.5, 0.25), "Hall": (0.0, 0.0)}
        return coverage.Coverage(*by_kind[kind])

    monkeypatch.setattr(coverage, "measure_coverage", measure)
    printed = list(coverage_table(problems=8, samples=1, benchmarks=100, seed=0))
    assert printed == [
        HEAD,
        "|---|---|---|---|---|---|---|",
        "| two 0.5 | 0.1 | 10 % | 93.0 | 50.0 | 25.0 | – |",
        "| two ∞ | 0.3 | 100 % | 97.0 | 50.0 | 25.0 | – |",
        "| two 2 | 0.4 | 100 % | **92.9** | 50.0 | 25.0 | – |",
        "| two 999999 | 0.5 | 100 % | **97.1** | 50.0 | 25.0 | – |",
        "\n4 populations: ours covers 92.9 to 97.1 %, 2 of them within 93 to 97 %",
    ]
    assert sizes == [{"problems": 8, "samples": 1, "benchmarks": 100, "seed": 0}] * 20
    with pytest.raises(UserError, match="--least-given"):
        list(coverage_table(least_given=1.5))
    assert sizes[-1] == {"problems": 30, "samples": 32, "benchmarks": 10_000, "seed": 0}  # as documented
