"""The table of a named study: its methods against its reference, and what papers report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from evals.core.comparisons import Comparison
from evals.core.records import BASE, Condition
from evals.results import Results
from evals.statistics.average import Average
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, write_table
from evals.tables.main import average_text, corrected_note, difference_text
from evals.tables.published import Published, read_published


@dataclass(frozen=True)
class PaperRow:
    """A method in a named study's table; fractions of one, over all benchmarks and seeds."""

    condition: Condition
    average: Average
    against: Comparison | None  # with the reference method; None for the reference itself
    pass_level: int  # the k of pass@k, the largest below the number of samples
    pass_rate: float
    verdict: str | None  # None where nothing was compared


def paper_rows(results: Results) -> list[PaperRow]:
    """Average every method over all benchmarks and seeds, beside its comparison with the reference."""
    levels = [int(k) for k in next(iter(results.scores.values())).pass_at_k]
    level = max((k for k in levels if k < results.samples_per_problem), default=1)
    rows = []
    for condition in results.conditions:
        comparison = results.comparison(condition, results.reference_method)
        verdict = comparison.verdict.value if comparison else None
        if condition.method == results.reference_method:
            verdict = "reference"
        average = results.average(condition)
        pass_rate = results.mean_score(condition, lambda score: score.pass_at_k[str(level)])
        rows.append(PaperRow(condition, average, comparison, level, pass_rate, verdict))
    return rows


def paper_frame(results: Results) -> pd.DataFrame:
    """One row per method in full precision; fractions of one."""
    rows = []
    for row in paper_rows(results):
        against = row.against
        low, high = (against and against.confidence_interval) or (None, None)
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
                "difference": against and against.difference,
                "difference_low": low,
                "difference_high": high,
                "p_value": against and against.p_value,
                "p_value_holm_over_methods": against and against.p_value_holm,
                "minimum_detectable_effect": against and against.minimum_detectable_effect,
                "verdict": row.verdict,
            }
        )
    return pd.DataFrame(rows).astype({"p_value": object, "p_value_holm_over_methods": object})


def write_paper_table(results: Results, reference: Path, title: str, notes: Sequence[str], out: Path) -> None:
    """Write a named study's own table, with what papers report beside it."""
    path = reference / "published.csv"
    tables = paper_tables(results, read_published(path), title, notes)
    write_table(out, tables, paper_frame(results), [*results.sources, path], {"title": title, "notes": notes})


def paper_tables(results: Results, published: Sequence[Published], title: str, notes: Sequence[str]) -> list[Table]:
    """Lay out the study's table, and the published numbers of its methods beside it."""
    rows = paper_rows(results)
    k, level, reference = results.samples_per_problem, round(100 * results.confidence), results.reference_title
    columns: list[Column[PaperRow]] = [
        Column("Method", lambda row: row.condition.title),
        Column(f"avg@{k} (%)", lambda row: row.average, average_text),
        Column(f"pass@{rows[0].pass_level} (%)", lambda row: row.pass_rate, numbers.percent),
        Column(f"Versus {reference} (pp)", lambda row: row.against, difference_text),
        Column("p", lambda row: row.against and row.against.p_value, numbers.p_value),
        Column("p (Holm)", lambda row: row.against and row.against.p_value_holm, numbers.p_value),
        Column("MDE (pp)", lambda row: row.against and row.against.minimum_detectable_effect, numbers.percent),
        Column(f"Verdict versus {reference}", lambda row: row.verdict or numbers.NOTHING),
    ]
    explanation = (
        f"{results.mean_text.capitalize()}, and over all seeds; brackets: {level} % intervals over problems "
        f"and seeds, paired by problem for differences. {numbers.NO_INTERVAL_NOTE} "
        f"{corrected_note(results)} "
        "MDE is the smallest true difference that one comparison finds in 80 % of studies, before Holm."
    )
    own = make_table("paper", title, columns, rows, [*notes, explanation])
    beside = _published(results, rows, published)
    return [own, beside] if beside.rows else [own]


def _published(results: Results, own: Sequence[PaperRow], published: Sequence[Published]) -> Table:
    """Published averages, or benchmarks where a paper gives no average, with the difference to its own reference.

    The base model and the reference are in every paper: they are listed where the paper trained the same model with
    another method of the study too.
    """
    ours = {row.condition: row.against.difference if row.against else None for row in own}
    averaged = {(row.arxiv, row.table, row.model) for row in published if row.is_average}
    others = {condition.method for condition in ours} - {BASE, results.reference_method}
    about = {(row.arxiv, row.model) for row in published if row.method in others}
    shown = [
        (condition, row)
        for condition in results.conditions
        for row in published
        if row.method == condition.method
        and (row.arxiv, row.model) in about
        and (row.is_average or (row.arxiv, row.table, row.model) not in averaged)
    ]

    def difference(row: Published) -> float | None:
        reference = _reference_of(row, published, results.reference_method)
        return None if reference is None or reference is row else (row.value - reference.value) / 100

    columns: list[Column[tuple[Condition, Published]]] = [
        Column("Method", lambda pair: pair[0].title),
        Column("Published (%)", lambda pair: f"{pair[1].measured}, {pair[1].model}"),
        Column("Versus their reference (pp)", lambda pair: difference(pair[1]), numbers.points),
        Column("Ours, versus our reference (pp)", lambda pair: ours[pair[0]], numbers.points),
        Column("Source", lambda pair: pair[1].citation),
    ]
    note = (
        "The scales differ: models of 1.7 to 80 billion parameters on competition problems there, generated problems "
        "and a tiny model made from scratch here. Published differences are of single training runs unless a "
        "paper says otherwise, and have no intervals."
    )
    return make_table("published", "What papers report of these methods", columns, shown, [note])


def _reference_of(row: Published, published: Sequence[Published], reference: str) -> Published | None:
    """The reference method's number in the same paper, model, benchmark and metric; in the same table if it is there.

    Several tables that repeat one number count as one; if they differ, there is none.
    """
    key = (row.arxiv, row.model, row.benchmark, row.metric)
    of_reference = [other for other in published if other.method == reference]
    same = [other for other in of_reference if (other.arxiv, other.model, other.benchmark, other.metric) == key]
    if in_table := [other for other in same if other.table == row.table]:
        return in_table[0]
    return same[0] if len({other.value for other in same}) == 1 else None
