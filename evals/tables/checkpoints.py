"""The table of the last and of the best policy of every training, where a study chooses the best on a benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from evals.core.comparisons import Comparison
from evals.core.errors import UserError
from evals.core.records import ALL_BENCHMARKS, BASE, Chosen, Condition
from evals.results import Results, read_results
from evals.tables import numbers
from evals.tables.layout import Column, Table, field_of, interval_columns, make_table, table_frame, write_table
from evals.tables.main import average_text, difference_text


@dataclass(frozen=True)
class Checkpoints:
    """One row: the last or the best policies of a method's training runs, of the results ``results``."""

    condition: Condition
    results: Results
    choices: tuple[Chosen, ...] = ()  # of each seed; none for the last policies

    @property
    def kind(self) -> str:
        """The policies that the row shows: last or best; nothing of a base model."""
        return numbers.NOTHING if self.condition.method == BASE else "best" if self.choices else "last"

    def comparison(self) -> Comparison | None:
        return self.results.comparison(self.condition, self.results.reference_method)


def write_checkpoints_table(
    results: Results,
    best_scores: Sequence[Path],
    best_comparisons: Path,
    best_runs: Path,
    choices: Sequence[Path],
    out: Path,
) -> None:
    """Write the scores of the last and of the best policies of every method.

    Args:
        best_scores: those of the best policies.
        best_comparisons: of the best policies with one another.
        best_runs: the run sheet of the best policies.
        choices: runs/{run}/chosen.json of every best policy.
    """
    best = read_results(best_runs, best_scores, best_comparisons)
    chosen = {path.parent.name: Chosen.read(path) for path in choices}
    if lacking := [run.run for run in best.runs if run.method != BASE and run.run not in chosen]:
        raise UserError(f"choices: lack that of {lacking[0]}")
    tables, frame = checkpoint_tables(_rows(results, best, chosen))
    write_table(out, tables, frame, [*results.sources, *best.sources, *choices])


def _rows(last: Results, best: Results, chosen: Mapping[str, Chosen]) -> list[Checkpoints]:
    """The last and the best policies of each method, one after the other; the base model first."""
    rows = []
    for condition in last.conditions:
        rows.append(Checkpoints(condition, last))
        if condition.method != BASE:
            other = best.condition(condition.method, condition.model)
            assert other is not None, "the best policies are of every method"
            rows.append(Checkpoints(other, best, tuple(chosen[run.run] for run in other.runs)))
    return rows


def checkpoint_tables(rows: Sequence[Checkpoints]) -> tuple[list[Table], pd.DataFrame]:
    """Lay out the averages with their comparisons, and the benchmarks one by one; and the CSV file of both."""
    last, best = rows[0].results, next(row for row in rows if row.choices)
    selected, k = best.choices[0].benchmark, best.choices[0].samples_per_problem
    among = sorted({len(choice.averages) for row in rows for choice in row.choices})
    others, versus = [name for name in last.benchmarks if name != selected], Checkpoints.comparison
    number = " to ".join(map(str, dict.fromkeys([among[0], among[-1]])))  # fewer where a training stopped early

    def average(row: Checkpoints, name: str = ALL_BENCHMARKS) -> str:
        mark, of_row = " †" if row.choices and name in (selected, ALL_BENCHMARKS) else "", row.results.average
        value = of_row(row.condition, name)
        return (average_text(value) if name == ALL_BENCHMARKS else numbers.percent(value.value)) + mark

    def on_all(row: Checkpoints) -> dict[str, Any]:
        average = row.results.average(row.condition)
        return {"average": average.value, **interval_columns(average.confidence_interval)}

    def on_each(row: Checkpoints) -> dict[str, Any]:
        of_choice = {"selected_on": row.choices[0].benchmark if row.choices else None, "chosen_average": chosen(row)}
        names = row.results.benchmarks
        return of_choice | {name: row.results.average(row.condition, name).value for name in names}

    def chosen(row: Checkpoints) -> float | None:
        """The mean over seeds of the averages by which the policies were chosen."""
        return fmean(choice.averages[str(choice.step)] for choice in row.choices) if row.choices else None

    without = Column[Checkpoints](
        f"Without {selected} (%)", lambda row: average_text(row.results.average_over(row.condition, others))
    )
    of_policy: list[Column[Checkpoints]] = [
        Column("Method", lambda row: row.condition.title),
        Column(
            "Checkpoint", lambda row: row.kind, csv=lambda kind: {"checkpoint": kind.replace(numbers.NOTHING, BASE)}
        ),
    ]
    columns: list[Column[Checkpoints]] = [
        Column("", lambda row: row.condition.model, csv="model"),
        Column("", lambda row: row.condition.method, csv="method"),
        *of_policy,
        Column(
            "After step",
            lambda row: " ".join(str(choice.step) for choice in row.choices),
            lambda steps: steps or numbers.NOTHING,
            "steps",
        ),
        Column(f"avg@{last.k} (%)", lambda row: row, average, on_all),
        *([without] if others else []),
        Column(f"Versus {last.reference_title} (pp)", versus, difference_text),
        Column("", field_of(versus, "difference"), csv="difference"),
        Column("p (Holm)", field_of(versus, "p_value_holm"), numbers.p_value, "p_value_holm"),
        Column(
            f"Verdict versus {last.reference_title}", lambda row: row.results.verdict(row.condition) or numbers.NOTHING
        ),
        Column("", field_of(versus, "verdict"), csv="verdict"),
        Column("", lambda row: row, csv=on_each),
        Column(f"{selected}, choice (%)", chosen, numbers.percent),
        Column(f"{selected}, scored (%)", partial(average, name=selected)),
    ]
    note = (
        f"best: of {number} policies along each training, the last among them, the one with the highest avg@{k} on "
        f"{selected}, of equals the earliest. †: selected on. The largest of so many numbers is also the luckiest: the "
        f"policy's score in that choice is too high, and its score on other samples of the same problems ({selected}, "
        "scored), which the mean over benchmarks contains, is too high for other problems"
        f"{f'; the mean without {selected} is not selected on' if others else ''}. Best policies are compared with "
        "best ones, last with last. After step: of each seed."
    )
    by_benchmark = [*of_policy, *(Column(name, partial(average, name=name)) for name in last.benchmarks)]
    title, notes = "The last and the best policy of every training", [note, last.extraction_note]
    title_by_benchmark, marked = f"avg@{last.k} by benchmark (%)", ["†: selected on.", last.extraction_note]
    tables = [
        make_table("checkpoints", title, columns, rows, notes),
        make_table("checkpoints_by_benchmark", title_by_benchmark, by_benchmark, rows, marked),
    ]
    return tables, table_frame(columns, rows)
