"""A named study's own table: its methods against its reference, corrected for their number, and what papers report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from evals.core.records import ALL_BENCHMARKS, BASE, Condition
from evals.results import Results
from evals.statistics.resampling import holm
from evals.tables import numbers
from evals.tables.layout import Table
from evals.tables.published import Published

_SIGNIFICANCE = 0.05


def paper_frame(results: Results) -> pd.DataFrame:
    """One row per method in full precision; fractions of one."""
    rows = [_row(results, condition) for condition in results.conditions]
    compared = [row for row in rows if row["p_value"] is not None]
    corrected = holm([row["p_value"] for row in compared]) if compared else np.array([])
    for row, p_value in zip(compared, corrected, strict=True):
        row["p_value_holm_over_methods"] = float(p_value)
        decided = row["verdict"] in ("better", "worse") and float(p_value) > _SIGNIFICANCE
        row["verdict"] = f"{row['verdict']}, but not after Holm" if decided else row["verdict"]
    return pd.DataFrame(rows).astype({"p_value": object, "p_value_holm_over_methods": object})


def _row(results: Results, condition: Condition) -> dict[str, Any]:
    average = results.average(condition)
    against = results.comparison(condition, results.reference_method, ALL_BENCHMARKS)
    low, high = average.confidence_interval or (None, None)
    difference_low, difference_high = (against.confidence_interval if against else None) or (None, None)
    largest = max((k for k in _pass_levels(results) if k < results.samples_per_problem), default=1)
    reference = condition.method == results.reference_method
    return {
        "model": condition.model,
        "method": condition.method,
        "title": condition.title,
        "seeds": len(condition.seeds),
        "average": average.value,
        "confidence_low": low,
        "confidence_high": high,
        "pass_level": largest,
        "pass": _mean(results, condition, largest),
        "difference": against.difference if against else None,
        "difference_low": difference_low,
        "difference_high": difference_high,
        "p_value": against.p_value if against and condition.method != BASE else None,
        "p_value_holm_over_methods": None,
        "minimum_detectable_effect": against.minimum_detectable_effect if against else None,
        "verdict": "reference" if reference else (against.verdict if against else None),
    }


def _pass_levels(results: Results) -> list[int]:
    return [int(k) for k in next(iter(results.scores.values())).pass_at_k]


def _mean(results: Results, condition: Condition, k: int) -> float:
    """pass@k, over seeds and benchmarks."""
    values = [results.scores[run.run, name].pass_at_k[str(k)] for run in condition.runs for name in results.benchmarks]
    return float(np.mean(values))


def paper_tables(results: Results, published: Sequence[Published], title: str, notes: Sequence[str]) -> list[Table]:
    """The study's table, and the published numbers of its methods beside it.

    Args:
        results: runs, scores and comparisons.
        published: every published number.
        title: of the study.
        notes: sentences on what it asks and what the numbers are evidence of.
    """
    frame = paper_frame(results)
    beside = _published(results, frame, published)
    return [_own(results, frame, title, notes), *([beside] if beside.rows else [])]


def _own(results: Results, frame: pd.DataFrame, title: str, notes: Sequence[str]) -> Table:
    level, reference = round(100 * results.confidence), results.reference_title
    header = (
        "Method",
        f"avg@{results.samples_per_problem} (%)",
        f"pass@{frame['pass_level'].iloc[0]} (%)",
        f"Versus {reference} (pp)",
        "p",
        "p (Holm)",
        "MDE (pp)",
        f"Verdict versus {reference}",
    )
    rows = tuple(
        (
            str(row["title"]),
            numbers.percent_with_interval(row["average"], _pair(row, "confidence_low", "confidence_high")),
            numbers.percent(row["pass"]),
            numbers.NOTHING
            if _missing(row["difference"])
            else numbers.points_with_interval(row["difference"], _pair(row, "difference_low", "difference_high")),
            numbers.p_value(_value(row["p_value"])),
            numbers.p_value(_value(row["p_value_holm_over_methods"])),
            numbers.percent(_value(row["minimum_detectable_effect"])),
            numbers.NOTHING if _missing(row["verdict"]) else str(row["verdict"]),
        )
        for row in frame.to_dict("records")
    )
    compared = int(frame["p_value"].notna().sum())
    explanation = (
        f"Means over {len(results.benchmarks)} benchmarks and all seeds; brackets: {level} % intervals over problems "
        f"and seeds, paired by problem for differences. {numbers.NO_INTERVAL_NOTE} "
        f"p (Holm) is corrected over the study's {compared} comparisons "
        f"with {reference}; MDE is the smallest true difference that one comparison finds in 80 % of studies."
    )
    return Table("paper", title, header, rows, (*notes, explanation))


def _published(results: Results, frame: pd.DataFrame, published: Sequence[Published]) -> Table:
    """Published averages, or benchmarks where a paper gives no average, with the difference to its own reference.

    The base model and the reference are in every paper: they are listed where the paper trained the same model with
    another method of the study too.
    """
    header = ("Method", "Published (%)", "Versus their reference (pp)", "Ours, versus our reference (pp)", "Source")
    ours = {row["method"]: row for row in frame.to_dict("records")}
    averaged = {(row.arxiv, row.table, row.model) for row in published if row.is_average}
    own = set(ours) - {BASE, results.reference_method}
    about = {(row.arxiv, row.model) for row in published if row.method in own}
    rows = []
    for condition in results.conditions:
        for row in published:
            if row.method != condition.method or (row.arxiv, row.model) not in about:
                continue
            if (row.arxiv, row.table, row.model) in averaged and not row.is_average:
                continue
            reference = _reference_of(row, published, results.reference_method)
            difference = None if reference is None or reference is row else (row.value - reference.value) / 100
            rows.append(
                (
                    condition.title,
                    f"{row.value:g} {row.metric}, {row.benchmark}, {row.model}",
                    numbers.points(difference),
                    numbers.points(_value(ours[row.method]["difference"])),
                    f"{row.citation}, row {row.row}",
                )
            )
    note = (
        "The scales differ: models of 1.7 to 80 billion parameters on competition problems there, generated problems "
        "and a tiny model made from scratch here. Published differences are of single training runs unless a "
        "paper says otherwise, and have no intervals."
    )
    return Table("published", "What papers report of these methods", header, tuple(rows), (note,))


def _reference_of(row: Published, published: Sequence[Published], reference: str) -> Published | None:
    """The reference method's number in the same paper, model, benchmark and metric; in the same table if it is there.

    Several tables that repeat one number count as one; if they differ, there is none.
    """
    key = (row.arxiv, row.model, row.benchmark, row.metric)
    same = [
        other
        for other in published
        if other.method == reference and (other.arxiv, other.model, other.benchmark, other.metric) == key
    ]
    in_table = [other for other in same if other.table == row.table]
    if in_table:
        return in_table[0]
    return same[0] if len({other.value for other in same}) == 1 else None


def _missing(value: object) -> bool:
    return value is None or value != value


def _value(value: Any) -> float | None:
    return None if _missing(value) else float(value)


def _pair(row: dict[Any, Any], low: str, high: str) -> tuple[float, float] | None:
    return None if _missing(row[low]) or _missing(row[high]) else (float(row[low]), float(row[high]))
