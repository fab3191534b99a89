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
from evals.core.records import BASE, Chosen, Condition
from evals.results import Results, read_results
from evals.statistics.average import Average
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, write_table
from evals.tables.main import average_text, difference_text

_MARK = " †"


@dataclass(frozen=True)
class Checkpoints:
    """One row: the last or the best policies of a method's trainings, of the results ``results``."""

    condition: Condition
    results: Results
    choices: tuple[Chosen, ...]  # of each seed; none for the last policies

    @property
    def kind(self) -> str:
        if self.condition.method == BASE:
            return numbers.NOTHING
        return "best" if self.choices else "last"

    @property
    def steps(self) -> str:
        """The steps of the chosen policies, a seed each."""
        return " ".join(str(choice.step) for choice in self.choices)

    @property
    def chosen_average(self) -> float | None:
        """The mean over seeds of the averages by which the policies were chosen."""
        return fmean(choice.averages[str(choice.step)] for choice in self.choices) if self.choices else None

    def average(self, names: Sequence[str]) -> Average | None:
        return self.results.average_over(self.condition, names) if names else None

    @property
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
        raise UserError(f"--choices: lack that of {lacking[0]}")
    rows = _rows(results, best, chosen)
    frame = pd.DataFrame([_numbers(row) for row in rows])
    write_table(out, checkpoint_tables(rows), frame, [*results.sources, *best.sources, *choices])


def _rows(last: Results, best: Results, chosen: Mapping[str, Chosen]) -> list[Checkpoints]:
    """The last and the best policies of each method, one after the other; the base model first."""
    best_conditions = {(condition.model, condition.method): condition for condition in best.conditions}
    rows = []
    for condition in last.conditions:
        rows.append(Checkpoints(condition, last, ()))
        if condition.method != BASE:
            other = best_conditions[condition.model, condition.method]
            rows.append(Checkpoints(other, best, tuple(chosen[run.run] for run in other.runs)))
    return rows


def checkpoint_tables(rows: Sequence[Checkpoints]) -> list[Table]:
    """Lay out the averages with their comparisons, and the benchmarks one by one."""
    last, best = rows[0].results, next(row for row in rows if row.choices)
    selected, k, among = (
        best.choices[0].benchmark,
        best.choices[0].samples_per_problem,
        sorted({len(choice.averages) for row in rows for choice in row.choices}),
    )
    others = [name for name in last.benchmarks if name != selected]

    def score(row: Checkpoints, name: str) -> str:
        return numbers.percent(row.results.average(row.condition, name).value) + _marked(row, name == selected)

    def on(name: str) -> Column[Checkpoints]:
        return Column(name, partial(score, name=name))

    beginning: list[Column[Checkpoints]] = [
        Column("Method", lambda row: row.condition.title),
        Column("Checkpoint", lambda row: row.kind),
    ]
    without: list[Column[Checkpoints]] = [
        Column(f"Without {selected} (%)", lambda row: row.average(others), _mean_text)
    ]
    columns: list[Column[Checkpoints]] = [
        *beginning,
        Column("After step", lambda row: row.steps or numbers.NOTHING),
        Column(
            f"avg@{last.k} (%)",
            lambda row: average_text(row.results.average(row.condition)) + _marked(row, selected=True),
        ),
        *(without if others else []),
        Column(f"Versus {last.reference_title} (pp)", lambda row: row.comparison, difference_text),
        Column("p (Holm)", lambda row: getattr(row.comparison, "p_value_holm", None), numbers.p_value),
        Column(
            f"Verdict versus {last.reference_title}", lambda row: row.results.verdict(row.condition) or numbers.NOTHING
        ),
        Column(f"{selected}, choice (%)", lambda row: row.chosen_average, numbers.percent),
        Column(f"{selected}, scored (%)", partial(score, name=selected)),
    ]
    number = " to ".join(map(str, dict.fromkeys([among[0], among[-1]])))  # fewer where a training stopped early
    note = (
        f"best: of {number} policies along each training, the last among them, the one with the highest avg@{k} on "
        f"{selected}, of equals the earliest. †: selected on. The largest of so many numbers is also the luckiest: the "
        f"policy's score in that choice is too high, and its score on other samples of the same problems ({selected}, "
        "scored), which the mean over benchmarks contains, is too high for other problems"
        f"{f'; the mean without {selected} is not selected on' if others else ''}. Best policies are compared with "
        "best ones, last with last. After step: of each seed."
    )
    by_benchmark = [*beginning, *map(on, last.benchmarks)]
    return [
        make_table(
            "checkpoints", "The last and the best policy of every training", columns, rows, [note, last.extraction_note]
        ),
        make_table(
            "checkpoints_by_benchmark",
            f"avg@{last.k} by benchmark (%)",
            by_benchmark,
            rows,
            ["†: selected on.", last.extraction_note],
        ),
    ]


def _marked(row: Checkpoints, selected: bool) -> str:
    return _MARK if row.choices and selected else ""


def _mean_text(average: Average | None) -> str:
    return numbers.NOTHING if average is None else average_text(average)


def _numbers(row: Checkpoints) -> dict[str, Any]:
    """A row of the CSV file, in full precision."""
    average, compared = row.results.average(row.condition), row.comparison
    by_name = {name: row.results.average(row.condition, name).value for name in row.results.benchmarks}
    return {
        "model": row.condition.model,
        "method": row.condition.method,
        "checkpoint": row.kind if row.condition.method != BASE else "base",
        "steps": row.steps,
        "average": average.value,
        **interval_columns(average.confidence_interval),
        "difference": compared.difference if compared else None,
        "p_value_holm": compared.p_value_holm if compared else None,
        "verdict": compared.verdict.value if compared else None,
        "selected_on": row.choices[0].benchmark if row.choices else None,
        "chosen_average": row.chosen_average,
        **by_name,
    }
