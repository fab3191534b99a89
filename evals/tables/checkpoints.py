"""The table of the last and of the best policy of every training, where a study chooses the best on a benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from evals.core.errors import UserError
from evals.core.records import BASE, Chosen, Condition
from evals.results import Results, read_results
from evals.tables import numbers
from evals.tables.layout import Cells, Table, Texts, estimate_columns, frame_of, table_of_texts, write_table
from evals.tables.main import average_text, difference_text


@dataclass(frozen=True)
class Checkpoints:
    """One row: the last or the best policies of a method's training runs, of the results ``results``."""

    condition: Condition
    results: Results
    choices: tuple[Chosen, ...] = ()  # of each seed; none for the last policies

    @property
    def kind(self) -> str:
        """The policies that the row shows: base, last or best."""
        return BASE if self.condition.method == BASE else "best" if self.choices else "last"


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
    others = [name for name in last.benchmarks if name != selected]
    number = " to ".join(map(str, dict.fromkeys([among[0], among[-1]])))  # fewer where a training stopped early
    shown, on_each, written = Texts(), Texts(), Cells()
    for row in rows:
        results, condition, mark = row.results, row.condition, " †" if row.choices else ""
        average, versus = results.average(condition), results.comparison(condition, results.reference_method)
        by_name = {name: results.average(condition, name).value for name in results.benchmarks}
        texts = {name: numbers.percent(value) + mark * (name == selected) for name, value in by_name.items()}
        # The mean over seeds of the averages by which the policies were chosen.
        chosen = fmean(choice.averages[str(choice.step)] for choice in row.choices) if row.choices else None
        steps, policy = " ".join(str(choice.step) for choice in row.choices), {"Method": condition.title}
        policy["Checkpoint"] = numbers.NOTHING if condition.method == BASE else row.kind
        alone = {f"Without {selected} (%)": average_text(results.average_over(condition, others))} if others else {}
        shown[row.condition, row.kind] = {
            **policy,
            "After step": steps or numbers.NOTHING,
            f"avg@{last.k} (%)": average_text(average) + mark,
            **alone,
            f"Versus {last.reference_title} (pp)": difference_text(versus),
            "p (Holm)": numbers.p_value(getattr(versus, "p_value_holm", None)),
            f"Verdict versus {last.reference_title}": results.verdict(condition) or numbers.NOTHING,
            f"{selected}, choice (%)": numbers.percent(chosen),
            f"{selected}, scored (%)": texts[selected],
        }
        on_each[row.condition, row.kind] = {**policy, **texts}
        cells: dict[str, Any] = {
            "model": condition.model,
            "method": condition.method,
            "checkpoint": row.kind,
            "steps": steps,
        }
        cells |= estimate_columns("average", (average.value, average.confidence_interval), "")
        cells |= {name: getattr(versus, name, None) for name in ("difference", "p_value_holm", "verdict")}
        cells["selected_on"] = selected if row.choices else None
        written[row.condition, row.kind] = {**cells, "chosen_average": chosen, **by_name}
    note = (
        f"best: of {number} policies along each training, the last among them, the one with the highest avg@{k} on "
        f"{selected}, of equals the earliest. †: selected on. The largest of so many numbers is also the luckiest: the "
        f"policy's score in that choice is too high, and its score on other samples of the same problems ({selected}, "
        "scored), which the mean over benchmarks contains, is too high for other problems"
        f"{f'; the mean without {selected} is not selected on' if others else ''}. Best policies are compared with "
        "best ones, last with last. After step: of each seed."
    )
    tables = [
        table_of_texts(
            "checkpoints", "The last and the best policy of every training", shown, [note, last.extraction_note]
        ),
        table_of_texts(
            "checkpoints_by_benchmark",
            f"avg@{last.k} by benchmark (%)",
            on_each,
            ["†: selected on.", last.extraction_note],
        ),
    ]
    return tables, frame_of(written)
