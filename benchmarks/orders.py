"""Measures how often the order of methods on two models is called another: ``python benchmarks/orders.py OUT.json``.

Simulated are studies of seven methods whose scores vary over problems and seeds: how often a study lies below what
95 % of its repetitions exceed though nothing differs, an inversion is called where there is none, and a planted one is
found, beside the difference that the table says is found four times in five.
"""

import json
import sys
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import binomtest

from evals.statistics.difference import Arm, Difference, estimate_difference
from evals.statistics.ranks import Means, inversions, kendall_tau, repeated_tau, smallest_inversion

TRUTH = np.array([0.50, 0.51, 0.46, 0.50, 0.40, 0.49, 0.43])
SAMPLES, STUDIES = 16, int(sys.argv[2]) if len(sys.argv) > 2 else 300
CASES = ((4, 120, 0.0), (8, 30, 0.0), (4, 120, 0.05), (4, 120, 0.1), (4, 120, 0.2), (8, 120, 0.05), (8, 120, 0.1))
"""Seeds, problems, planted difference."""
PAIRS = list(combinations(range(len(TRUTH)), 2))


def accuracies(generator: np.random.Generator, truth: np.ndarray, seeds: int, problems: int) -> list[np.ndarray]:
    """The scores [S, N] of every method: seeds vary by 1.5 points, problems by 10 to the methods' own taste."""
    shape = len(truth), 1, problems
    difficulty = generator.uniform(-0.25, 0.25, (1, 1, problems)) + generator.uniform(-0.17, 0.17, shape)
    by_seed = generator.normal(0.0, 0.015, (len(truth), seeds, 1))
    rates = np.clip(truth[:, None, None] + difficulty + by_seed, 0.0, 1.0)
    return list(generator.binomial(SAMPLES, rates) / SAMPLES)


def differences(methods: list[np.ndarray]) -> list[Difference]:
    """The differences of all pairs of methods."""
    arms = [Arm([method], [SAMPLES]) for method in methods]
    return [estimate_difference(arms[a], arms[b]) for a, b in PAIRS]


def share(hits: list[bool]) -> dict[str, float]:
    """A share with its exact 95 % interval."""
    low, high = binomtest(sum(map(bool, hits)), len(hits)).proportion_ci()
    return {"share": float(np.mean(hits)), "low": float(low), "high": float(high), "studies": len(hits)}


def repeated(seeds: int) -> dict[str, float]:
    """Measure how often a study lies below what 95 % of its repetitions exceed: two draws of seeds of one truth."""
    generator, below = np.random.default_rng([1, seeds]), []
    for _ in range(STUDIES):
        spread = generator.uniform(0.01, 0.02, len(TRUTH))[:, None]
        noise = generator.standard_normal((2, len(TRUTH), seeds))
        one, again = (Means.of(list(TRUTH[:, None] + spread * of_study)) for of_study in noise)
        below.append(bool(kendall_tau(one.means, again.means) < repeated_tau(one, generator, 1000)[1]))
    return share(below)


def called(seeds: int, problems: int, planted: float) -> dict[str, Any]:
    """Measure how often two models are said to invert methods, the first two of which differ by ``planted``."""
    generator, found, others, smallest = np.random.default_rng([2, seeds, problems]), [], [], []
    for _ in range(STUDIES):
        truths = TRUTH.copy(), TRUTH.copy()
        for truth, sign in zip(truths, (1, -1), strict=True):
            truth[:2] = 0.5 + sign * planted / 2, 0.5 - sign * planted / 2
        studies = [differences(accuracies(generator, truth, seeds, problems)) for truth in truths]
        p_values = inversions(studies)
        found.append(p_values[0, 1, 0] <= 0.05)
        planted_methods = {0, 1} if planted else set()
        others.append(any(p <= 0.05 for (*_, pair), p in p_values.items() if not planted_methods & {*PAIRS[pair]}))
        smallest.append(smallest_inversion(studies[0][0], studies[1][0], len(p_values)))
    return {"found": share(found), "false": share(others), "median_mde": float(median(smallest))}


def main() -> None:
    """Simulate every row and write the file."""
    rows: dict[str, Any] = {f"repeated, {seeds} seeds": repeated(seeds) for seeds in (4, 8, 16)}
    for seeds, problems, planted in CASES:
        rows[f"inversion by {planted:g}, {seeds} seeds, {problems} problems"] = called(seeds, problems, planted)
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
