"""Measures what verdicts are worth in studies of three base models: ``base_models.py OUT.json [STUDIES]``.

Training seed s of every method starts from base model (s - 1) mod 3 + 1. What a base model adds to all methods cancels;
what it adds to one method more than to the reference (the interaction) does not, and has three levels. Rules of
inference are simulated on the scores of runs; studies have nine methods and looks after 6, 9, 12 and 15 seeds. The rule
that was chosen, "these base models", is simulated through the project's own code in ``benchmarks/stopping.py``.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit
from scipy.stats import binomtest

from evals.statistics.sequential import nominal_levels

LOOKS, METHODS, BASES, MARGIN = (6, 9, 12, 15), 9, 3, 2.0
SEED_SD, PROBLEM_SD, PROBLEM_FREEDOM = 1.14, 0.12, 476.0
"""In points: of a run's score around its base model's mean, and of a difference by other problems (default study)."""
Array = np.ndarray[Any, Any]


def share(hits: int, of: int) -> dict[str, float]:
    """A share in per cent with its exact 95 % interval."""
    low, high = binomtest(hits, of).proportion_ci()
    return {"percent": round(100 * hits / of, 2), "low": round(100 * low, 2), "high": round(100 * high, 2)}


def quantile(freedom: Any, level: float) -> Array:
    """Student's two-sided quantile."""
    return np.asarray(-stdtrit(freedom, level / 2))


def welch(variances: Array, freedom: int, is_first: bool) -> Array:
    """The degrees of freedom of the sum of two methods' variances [2, R]; at the first look those of one method."""
    if is_first:
        return np.full(variances.shape[1], float(freedom))
    return np.asarray(variances.sum(axis=0) ** 2 / ((variances**2).sum(axis=0) / freedom))


def reach(rule: str, one: Array, other: Array, problems: Array, level: float, is_first: bool) -> Array:
    """Half of the length of a rule's intervals [R], of scores [R, B, S / B] and the problems' variance [R]."""
    (_, bases, of_base), both = one.shape, np.stack([one, other])
    seeds = bases * of_base
    within = both.var(axis=3, ddof=1).mean(axis=2) / seeds  # [2, R], of each method's mean
    freedom = welch(within, seeds - bases, is_first)
    differences = (one - other).mean(axis=2).var(axis=1, ddof=1) / bases
    within = within.sum(axis=0)
    if rule == "no base models":
        apart = both.reshape(2, -1, seeds).var(axis=2, ddof=1) / seeds
        parts = [(apart.sum(axis=0), welch(apart, seeds - 1, is_first))]
    elif rule == "three parts":
        parts = [(within, freedom), (np.maximum(differences - within, 0.0), bases - 1.0)]
    elif rule == "these base models":
        parts = [(within, freedom)]
    else:
        parts = [(differences, bases - 1.0)]
    parts.append((problems, PROBLEM_FREEDOM))
    total = sum(variance for variance, _ in parts)
    weighted = sum(variance * quantile(freedom, level) for variance, freedom in parts)
    return np.asarray(weighted / np.sqrt(total))


RULES = ("no base models", "three parts", "these base models", "over base models")


def simulate(interaction_sd: float, effect: float, studies: int) -> dict[str, Any]:
    """The rates of each rule, of methods that differ from the reference by ``effect`` in the mean over base models.

    ``interaction_sd`` is of the difference of two methods over base models. A verdict is false about base models that
    there could be, where the effect says so, or about these, where the mean of these three says so.
    """
    generator = np.random.default_rng([6, round(100 * interaction_sd), round(100 * effect)])
    of_base = LOOKS[-1] // BASES
    drawn = interaction_sd / np.sqrt(2) * generator.standard_normal((METHODS + 1, studies, BASES))
    runs = SEED_SD * generator.standard_normal((METHODS + 1, studies, BASES, of_base)) + drawn[..., None]
    levels = nominal_levels(LOOKS, LOOKS[-1], 0.05 / METHODS)
    alone = nominal_levels(LOOKS, LOOKS[-1], 0.05)
    of_problems = PROBLEM_SD * generator.standard_normal((METHODS, studies))
    problems = PROBLEM_SD**2 * generator.chisquare(PROBLEM_FREEDOM, (METHODS, studies)) / PROBLEM_FREEDOM
    result: dict[str, Any] = {}
    for rule in RULES:
        seeds, verdicts = np.full((METHODS, studies), LOOKS[-1]), np.full((METHODS, studies), "", dtype="<U10")
        covered = {"base models": 0, "these base models": 0}
        truths = {"base models": np.full((METHODS, studies), effect)}
        truths["these base models"] = effect + (drawn[1:] - drawn[0]).mean(axis=2)
        for look, level, level_alone in zip(LOOKS, levels, alone, strict=True):
            for method in range(METHODS):
                one, other = (runs[place][..., : look // BASES] for place in (method + 1, 0))
                estimate = effect + (one - other).mean(axis=(1, 2)) + of_problems[method]
                half = reach(rule, one, other, problems[method], level, look == LOOKS[0])
                low, high = estimate - half, estimate + half
                says = np.where((low > -MARGIN) & (high < MARGIN), "equivalent", "")
                says = np.where((says == "") & (low > 0), "better", says)
                says = np.where((says == "") & (high < 0), "worse", says)
                is_open = verdicts[method] == ""
                ends = is_open & ((says != "") | (look == LOOKS[-1]))
                seeds[method][ends], verdicts[method][ends] = look, np.where(says[ends] == "", "open", says[ends])
                half = reach(rule, one, other, problems[method], level_alone, False)
                for kind, truth in truths.items():
                    covered[kind] += int((ends & (np.abs(truth[method] - estimate) <= half)).sum())
        row: dict[str, Any] = {"seeds": round(float(seeds.mean()), 1)}
        for kind, truth in truths.items():
            false = (verdicts == "equivalent") & (np.abs(truth) >= MARGIN)
            false |= ((verdicts == "better") & (truth <= 0)) | ((verdicts == "worse") & (truth >= 0))
            row[f"studies with a false verdict about {kind}"] = share(int(false.any(axis=0).sum()), studies)
            row[f"intervals that cover the difference on {kind}"] = share(covered[kind], METHODS * studies)
        for verdict in ("better", "worse", "equivalent", "open"):
            row[verdict] = round(100 * float((verdicts == verdict).mean()), 1)
        result[rule] = row
    return result


def main() -> None:
    """Simulate every truth and write the file."""
    out, studies = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    calls: dict[str, Callable[[], dict[str, Any]]] = {
        f"interaction {sd:g}, true {effect:g}": partial(simulate, sd, effect, studies)
        for sd in (0.0, 0.5, 1.0, 2.0)
        for effect in (0.0, 2.0, 4.0, 10.0)
    }
    rows = {name: call() for name, call in calls.items()}
    out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
