"""Measures what the degrees of freedom of the first look cost and save: ``first_look.py OUT.json [STUDIES]``.

Simulated are the scores of runs; a method or the reference has seeds that vary by an amount of its own. Welch's degrees
of freedom are taken at all looks, or at the first one those of the method that has fewer, as the project does.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from evals.statistics.sequential import nominal_levels

MARGIN, PROBLEM_SD, PROBLEM_FREEDOM = 2.0, 0.12, 476.0
DEFAULT = [-0.6, 0.1, -4.2, -0.2, -8.0, 0.0, -0.3, -6.7, -67.0]
CASES = {
    "null": ([1.14] * 10, [0.0] * 9),
    "methods vary 2.5 times as much": ([1.18] + [2.58] * 8, [0.0] * 8),
    "seeds vary by 3 to 20": ([3.0, 3.0, 5.0, 8.0, 12.0, 16.0, 20.0], [0.0] * 6),
    "2 either side": ([1.14] * 9, [-2.0, 2.0] * 4),
    "the default study": ([1.14] * 10, DEFAULT),
}
Array = np.ndarray[Any, Any]


def quantile(freedom: Any, level: float) -> Array:
    """Student's two-sided quantile."""
    return np.asarray(-stdtrit(freedom, level / 2))


def simulate(sds: list[float], effects: list[float], bases: int, studies: int) -> dict[str, dict[str, float]]:
    """The rates of both rules, in per cent; ``sds`` are of the reference and then of the methods, in points."""
    looks, methods = (4, 6, 8, 11, 16) if bases == 1 else (6, 9, 12, 15), len(effects)
    generator = np.random.default_rng([9, len(looks), int(100 * sum(sds))])
    runs = np.stack([sd * generator.standard_normal((studies, looks[-1])) for sd in sds])
    of_problems = PROBLEM_SD * generator.standard_normal((methods, studies))
    levels, truth = nominal_levels(looks, looks[-1], 0.05 / methods), np.array(effects)[:, None]
    result = {}
    for rule in ("Welch at all looks", "the fewer at the first look"):
        verdicts, seeds = np.full((methods, studies), "open", dtype="<U10"), np.full((methods, studies), looks[-1])
        for look, level in zip(looks, levels, strict=True):
            seen, freedom = runs[:, :, :look], float(look - bases)
            parts = seen.reshape(methods + 1, studies, look // bases, bases).var(axis=2, ddof=1).mean(axis=-1) / look
            for method in range(methods):
                one, other = parts[method + 1], parts[0]
                fewer = rule != "Welch at all looks" and look == looks[0]
                welch = (one + other) ** 2 / ((one**2 + other**2) / freedom)
                weighted = (one + other) * quantile(np.full_like(welch, freedom) if fewer else welch, level)
                weighted = weighted + PROBLEM_SD**2 * quantile(PROBLEM_FREEDOM, level)
                reach = weighted / np.sqrt(one + other + PROBLEM_SD**2)
                difference = seen[method + 1].mean(axis=1) - seen[0].mean(axis=1)
                difference = effects[method] + difference + of_problems[method]
                low, high = difference - reach, difference + reach
                says = np.where(low > 0, "better", np.where(high < 0, "worse", "open"))
                says = np.where((low > -MARGIN) & (high < MARGIN), "equivalent", says)
                ends = (verdicts[method] == "open") & (says != "open")
                verdicts[method][ends], seeds[method][ends] = says[ends], look
        false = (verdicts == "equivalent") & (np.abs(truth) >= MARGIN)
        false |= ((verdicts == "better") & (truth <= 0)) | ((verdicts == "worse") & (truth >= 0))
        rates = {verdict: 100 * float((verdicts == verdict).mean()) for verdict in ("equivalent", "open")}
        result[rule] = {"false": 100 * float(false.any(axis=0).mean()), "seeds": float(seeds.mean()), **rates}
    return result


def main() -> None:
    """Simulate every case, with one base model and with three, and write the file."""
    out, studies = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    rows = {
        f"{name}, {bases} base models": simulate(sds, effects, bases, studies)
        for bases in (1, 3)
        for name, (sds, effects) in CASES.items()
    }
    out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
