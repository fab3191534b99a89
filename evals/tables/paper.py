"""The table of a named study: its methods against its reference, corrected for their number, and what papers report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from evals.core.records import BASE, Comparison, Condition, Verdict
from evals.results import Average, Results
from evals.statistics.resampling import holm
from evals.tables import numbers
from evals.tables.layout import Column, Table, make_table, write_table
from evals.tables.main import average_text, comparison_verdict, difference_text, interval_columns
from evals.tables.published import Published, read_published

_SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class PaperRow:
    """A method in a named study's table; fractions of one, over all benchmarks and seeds.

    Attributes:
        against: the comparison with the reference method; None for the reference itself.
        pass_level: the k of ``pass_rate``, the largest below the number of samples.
        pass_rate: pass@k.
        p_value: of the comparison; None for the base model.
        p_value_holm: corrected over the methods.
        verdict: in words, after the correction; None where nothing was compared.
    """

    condition: Condition
    average: Average
    against: Comparison | None
    pass_level: int
    pass_rate: float
    p_value: float | None
    p_value_holm: float | None
    verdict: str | None


def paper_rows(results: Results) -> list[PaperRow]:
    """Compare every method with the reference, with Holm's correction over the methods."""
    against = [results.comparison(condition, results.reference_method) for condition in results.conditions]
    p_values = [
        comparison.p_value if comparison and condition.method != BASE else None
        for condition, comparison in zip(results.conditions, against, strict=True)
    ]
    known = [p_value for p_value in p_values if p_value is not None]
    corrected = iter(holm(known).tolist() if known else [])
    levels = [int(k) for k in next(iter(results.scores.values())).pass_at_k]
    level = max((k for k in levels if k < results.samples_per_problem), default=1)
    rows = []
    for condition, comparison, p_value in zip(results.conditions, against, p_values, strict=True):
        p_value_holm = None if p_value is None else next(corrected)
        verdict: str | None = comparison_verdict(comparison) if comparison else None
        if condition.method == results.reference_method:
            verdict = "reference"
        elif p_value_holm is not None and verdict != Verdict.NOT_DISTINGUISHABLE and p_value_holm > _SIGNIFICANCE:
            verdict = f"{verdict}, but not after Holm"
        passes = [results.scores[run.run, name].pass_at_k[str(level)]
                  for run in condition.runs for name in results.benchmarks]  # fmt: skip
        average, rate = results.average(condition), float(np.mean(passes))
        rows.append(PaperRow(condition, average, comparison, level, rate, p_value, p_value_holm, verdict))
    return rows


def paper_frame(results: Results) -> pd.DataFrame:
    """One row per method in full precision; fractions of one."""
    rows = []
    for row in paper_rows(results):
        low, high = (row.against.confidence_interval if row.against else None) or (None, None)
        rows.append(
            {
                "model": row.condition.model,
                "method": row.condition.method,
                "title": row.condition.title,
                "seeds": len(row.condition.seeds),
                "average": row.average.value,
                **interval_columns(row.average.confidence_interval),
                "pass_level": row.pass_level,
                "pass": row.pass_rate,
                "difference": row.against.difference if row.against else None,
                "difference_low": low,
                "difference_high": high,
                "p_value": row.p_value,
                "p_value_holm_over_methods": row.p_value_holm,
                "minimum_detectable_effect": row.against.minimum_detectable_effect if row.against else None,
                "verdict": row.verdict,
            }
        )
    return pd.DataFrame(rows).astype({"p_value": object, "p_value_holm_over_methods": object})


def write_paper_table(results: Results, reference: Path, title: str, notes: Sequence[str], out: Path) -> None:
    """Write a named study's table as Markdown and CSV, with its manifest.

    Args:
        results: runs, scores and comparisons.
        reference: config/reference, with the published numbers.
        title: of the study.
        notes: sentences on what it asks and what the numbers are evidence of.
        out: path without an ending.

    Raises:
        UserError: an input is missing or malformed, or a file cannot be written.
    """
    path = reference / "published.csv"
    tables = paper_tables(results, read_published(path), title, notes)
    write_table(out, tables, paper_frame(results), [*results.sources, path], {"title": title, "notes": notes})


def paper_tables(results: Results, published: Sequence[Published], title: str, notes: Sequence[str]) -> list[Table]:
    """Lay out the study's table, and the published numbers of its methods beside it.

    Args:
        results: runs, scores and comparisons.
        published: every published number.
        title: of the study.
        notes: sentences on what it asks and what the numbers are evidence of.
    """
    rows = paper_rows(results)
    beside = _published(results, rows, published)
    return [_own(results, rows, title, notes), *([beside] if beside.rows else [])]


def _own(results: Results, rows: Sequence[PaperRow], title: str, notes: Sequence[str]) -> Table:
    k, level, reference = results.samples_per_problem, round(100 * results.confidence), results.reference_title
    columns: list[Column[PaperRow]] = [
        Column("Method", lambda row: row.condition.title),
        Column(f"avg@{k} (%)", lambda row: row.average, average_text),
        Column(f"pass@{rows[0].pass_level} (%)", lambda row: row.pass_rate, numbers.percent),
        Column(f"Versus {reference} (pp)", lambda row: row.against, difference_text),
        Column("p", lambda row: row.p_value, numbers.p_value),
        Column("p (Holm)", lambda row: row.p_value_holm, numbers.p_value),
        Column("MDE (pp)", lambda row: row.against and row.against.minimum_detectable_effect, numbers.percent),
        Column(f"Verdict versus {reference}", lambda row: row.verdict or numbers.NOTHING),
    ]
    compared = sum(row.p_value is not None for row in rows)
    explanation = (
        f"Means over {len(results.benchmarks)} benchmarks and all seeds; brackets: {level} % intervals over problems "
        f"and seeds, paired by problem for differences. {numbers.NO_INTERVAL_NOTE} "
        f"p (Holm) is corrected over the study's {compared} comparisons "
        f"with {reference}; MDE is the smallest true difference that one comparison finds in 80 % of studies."
    )
    return make_table("paper", title, columns, rows, [*notes, explanation])


def _published(results: Results, own: Sequence[PaperRow], published: Sequence[Published]) -> Table:
    """Published averages, or benchmarks where a paper gives no average, with the difference to its own reference.

    The base model and the reference are in every paper: they are listed where the paper trained the same model with
    another method of the study too.
    """
    header = ("Method", "Published (%)", "Versus their reference (pp)", "Ours, versus our reference (pp)", "Source")
    ours = {row.condition.method: row.against.difference if row.against else None for row in own}
    averaged = {(row.arxiv, row.table, row.model) for row in published if row.is_average}
    others = set(ours) - {BASE, results.reference_method}
    about = {(row.arxiv, row.model) for row in published if row.method in others}
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
                    numbers.points(ours[row.method]),
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
