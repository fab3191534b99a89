"""The table of a named study: its methods against its reference, and what papers report."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from evals.core.records import BASE, Condition
from evals.results import Results
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, write_table
from evals.tables.main import average_text, compared_columns, corrected_note
from evals.tables.published import Published, read_published


def pass_level(results: Results) -> int:
    """The k of the pass@k that is shown: the largest below the number of samples."""
    levels = map(int, next(iter(results.scores.values())).pass_at_k)
    return max((k for k in levels if k < results.samples_per_problem), default=1)


def pass_rate(results: Results, condition: Condition) -> float:
    """Return pass@k of a condition, the mean over its seeds and the benchmarks."""
    level = str(pass_level(results))
    return results.mean_score(condition, lambda score: score.pass_at_k[level])


def paper_frame(results: Results) -> pd.DataFrame:
    """One row per method in full precision; fractions of one, over all benchmarks and seeds."""
    rows = []
    for condition in results.conditions:
        average, against = results.average(condition), results.comparison(condition, results.reference_method)
        low, high = (against and against.confidence_interval) or (None, None)
        rows.append(
            {
                "model": condition.model,
                "method": condition.method,
                "title": condition.title,
                "seeds": len(condition.seeds),
                "average": average.value,
                **interval_columns(average.confidence_interval),
                "pass_level": pass_level(results),
                "pass": pass_rate(results, condition),
                "difference": against and against.difference,
                "difference_low": low,
                "difference_high": high,
                "p_value": against and against.p_value,
                "p_value_holm_over_methods": against and against.p_value_holm,
                "minimum_detectable_effect": against and against.minimum_detectable_effect,
                "verdict": results.verdict(condition),
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
    k, level = results.samples_per_problem, round(100 * results.confidence)
    columns: list[Column[Condition]] = [
        Column("Method", lambda row: row.title),
        Column(f"avg@{k} (%)", results.average, average_text),
        Column(f"pass@{pass_level(results)} (%)", partial(pass_rate, results), numbers.percent),
        *compared_columns(results),
    ]
    explanation = (
        f"{results.mean_text.capitalize()}, and over all seeds; brackets: {level} % intervals over problems "
        f"and seeds, paired by problem for differences. {numbers.NO_INTERVAL_NOTE} "
        f"{corrected_note(results)} "
        "MDE is the smallest true difference that one comparison finds in 80 % of studies, before Holm."
    )
    own = make_table("paper", title, columns, results.conditions, [*notes, explanation])
    beside = _published(results, published)
    return [own, beside] if beside.rows else [own]


def _published(results: Results, published: Sequence[Published]) -> Table:
    """Published averages, or benchmarks where a paper gives no average, with the difference to its own reference.

    The base model and the reference are in every paper: they are listed where the paper trained the same model with
    another method of the study too.
    """
    averaged = {(row.arxiv, row.table, row.model) for row in published if row.is_average}
    others = {condition.method for condition in results.conditions} - {BASE, results.reference_method}
    about = {(row.arxiv, row.model) for row in published if row.method in others}
    shown = [
        (condition, row)
        for condition in results.conditions
        for row in published
        if row.method == condition.method
        and (row.arxiv, row.model) in about
        and (row.is_average or (row.arxiv, row.table, row.model) not in averaged)
    ]

    def ours(pair: tuple[Condition, Published]) -> float | None:
        return getattr(results.comparison(pair[0], results.reference_method), "difference", None)

    def difference(row: Published) -> float | None:
        reference = _reference_of(row, published, results.reference_method)
        return None if reference is None or reference is row else (row.value - reference.value) / 100

    columns: list[Column[tuple[Condition, Published]]] = [
        Column("Method", lambda pair: pair[0].title),
        Column("Published (%)", lambda pair: f"{pair[1].measured}, {pair[1].model}"),
        Column("Versus their reference (pp)", lambda pair: difference(pair[1]), numbers.points),
        Column("Ours, versus our reference (pp)", ours, numbers.points),
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
