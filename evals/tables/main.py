"""The main table: one row per method and one for the base model, each with its uncertainty and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.records import ALL_BENCHMARKS, BASE, Comparison, Condition
from evals.results import Results
from evals.tables import numbers
from evals.tables.costs import Cost, condition_cost
from evals.tables.layout import Table

Costs = Mapping[tuple[str, str], Cost]
_COMPARED = (
    "difference",
    "standard_error",
    "confidence_interval",
    "p_value",
    "p_value_holm",
    "minimum_detectable_effect",
    "verdict",
)


def read_costs(results: Results, costs: Path, training: Path) -> Costs:
    """(model, method) -> cost of one seed.

    Raises:
        UserError: a cost or metrics file is missing or malformed.
    """
    return {
        (row.model, row.method): condition_cost(row, results.benchmarks, costs, training) for row in results.conditions
    }


def main_tables(results: Results, costs: Costs, notes: Sequence[str]) -> list[Table]:
    """Summary with costs, averages by benchmark, and differences by benchmark to the reference and to the base model.

    Args:
        results: runs, scores and comparisons.
        costs: from :func:`read_costs`.
        notes: sentences on what the numbers are evidence of; they stand under the first table.
    """
    differences = [
        _differences(results, results.reference_method, results.reference_title),
        _differences(results, BASE, "the base model"),
    ]
    return [_summary(results, costs, notes), _by_benchmark(results), *(table for table in differences if table.rows)]


def _summary(results: Results, costs: Costs, notes: Sequence[str]) -> Table:
    k, level, reference = results.samples_per_problem, round(100 * results.confidence), results.reference_title
    header = (
        "Method",
        f"avg@{k} (%)",
        "Gain over base (pp)",
        f"Versus {reference} (pp)",
        "p",
        "MDE (pp)",
        f"Verdict versus {reference}",
        "Seeds",
        "Tokens",
        "Steps",
        "Train (s)",
        "Eval (s)",
        "Memory (MiB)",
    )
    rows = []
    for condition in results.conditions:
        average = results.average(condition)
        against = results.comparison(condition, results.reference_method, ALL_BENCHMARKS)
        cost = costs[condition.model, condition.method]
        rows.append(
            (
                condition.title,
                numbers.percent_with_interval(average.value, average.confidence_interval),
                _difference(results.comparison(condition, BASE, ALL_BENCHMARKS)),
                _difference(against),
                numbers.p_value(against.p_value if against else None),
                numbers.percent(against.minimum_detectable_effect if against else None),
                _verdict(results, condition, against),
                str(len(condition.seeds) or numbers.NOTHING),
                numbers.count(cost.tokens_generated),
                numbers.whole(cost.optimizer_steps),
                numbers.seconds(cost.training_seconds),
                numbers.seconds(cost.evaluation_seconds),
                numbers.whole(cost.peak_memory_mebibytes),
            )
        )
    explanation = (
        f"avg@{k}: mean over {len(results.benchmarks)} benchmarks and all training seeds, {k} samples a problem. "
        f"Brackets: {level} % intervals over problems and seeds; differences are paired by problem. "
        f"{numbers.NO_INTERVAL_NOTE} "
        "p is that of one comparison: nothing corrects it for how many methods are compared. "
        "MDE: the smallest true difference that this comparison finds in 80 % of studies. "
        "Costs: of one seed, mean over seeds; memory is the largest resident set of any job."
    )
    return Table("main", f"Main results: average over {len(results.benchmarks)} benchmarks, and cost", header,
                 tuple(rows), (*notes, explanation))  # fmt: skip


def _by_benchmark(results: Results) -> Table:
    rows = []
    for condition in results.conditions:
        averages = [results.average(condition, benchmark) for benchmark in results.benchmarks]
        # Without a single success the error is 0 too, which would look like certainty.
        errors = [None if average.confidence_interval is None else average.standard_error for average in averages]
        cells = [
            numbers.percent_with_error(average.value, error) for average, error in zip(averages, errors, strict=True)
        ]
        rows.append((condition.title, *cells))
    note = (
        "Mean over seeds, ± one standard error over problems and seeds (problems are the clusters of their "
        f"{results.samples_per_problem} samples); without one: a single seed, or a handful of problems decides."
    )
    title = f"avg@{results.samples_per_problem} by benchmark (%)"
    return Table("by_benchmark", title, ("Method", *results.benchmarks), tuple(rows), (note,))


def _differences(results: Results, against: str, against_title: str) -> Table:
    rows = []
    for condition in results.conditions:
        if condition.method in (BASE, against):
            continue
        compared = [
            results.comparison(condition, against, benchmark) for benchmark in (*results.benchmarks, ALL_BENCHMARKS)
        ]
        rows.append((condition.title, *(_difference_with_p(comparison) for comparison in compared)))
    note = (
        f"Paired differences to {against_title} in percentage points, p in parentheses, after Holm over the "
        "benchmarks; all: mean over the benchmarks, p as it is. "
        "An asterisk marks a verdict of better or worse; anything else is not distinguishable at this size."
    )
    header = ("Method", *results.benchmarks, ALL_BENCHMARKS)
    return Table(f"differences_to_{against}", f"Differences to {against_title} (pp)", header, tuple(rows), (note,))


def _difference(comparison: Comparison | None) -> str:
    if comparison is None:
        return numbers.NOTHING
    return numbers.points_with_interval(comparison.difference, comparison.confidence_interval)


def _difference_with_p(comparison: Comparison | None) -> str:
    if comparison is None:
        return numbers.NOTHING
    mark = "*" if comparison.verdict in ("better", "worse") else ""
    return f"{numbers.points(comparison.difference)}{mark} ({numbers.p_value(comparison.p_value_holm)})"


def _verdict(results: Results, condition: Condition, against: Comparison | None) -> str:
    if condition.method == results.reference_method:
        return "reference"
    return against.verdict if against else numbers.NOTHING


def main_frame(results: Results, costs: Costs) -> pd.DataFrame:
    """The same rows in full precision: fractions of one, seconds, mebibytes; empty where there is no value."""
    return pd.DataFrame([_frame_row(results, condition, costs) for condition in results.conditions])


def _frame_row(results: Results, condition: Condition, costs: Costs) -> dict[str, Any]:
    k = results.samples_per_problem
    row: dict[str, Any] = {
        "model": condition.model,
        "method": condition.method,
        "title": condition.title,
        "seeds": " ".join(map(str, condition.seeds)),
        "runs": " ".join(run.run for run in condition.runs),
        "samples_per_problem": k,
        "confidence": results.confidence,
    }
    for name in (ALL_BENCHMARKS, *results.benchmarks):
        average = results.average(condition, name)
        row[f"{name}_avg_at_{k}"] = average.value
        row[f"{name}_standard_error"] = average.standard_error
        row |= _bounds(name, average.confidence_interval)
    for against in (results.reference_method, BASE):
        for name in (ALL_BENCHMARKS, *results.benchmarks):
            comparison = results.comparison(condition, against, name)
            values = dict(comparison) if comparison else dict.fromkeys(_COMPARED)
            prefix = f"{name}_versus_{against}"
            row |= {f"{prefix}_{key}": values[key] for key in _COMPARED if key != "confidence_interval"}
            row |= _bounds(prefix, values["confidence_interval"])
    return row | asdict(costs[condition.model, condition.method])


def _bounds(prefix: str, interval: tuple[float, float] | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f"{prefix}_confidence_low": low, f"{prefix}_confidence_high": high}
