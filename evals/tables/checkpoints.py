"""The table of the last and of the best policy of every training, where a study chooses the best on a benchmark."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from evals.core.errors import UserError
from evals.core.records import BASE, Chosen
from evals.results import Results, read_results
from evals.tables import numbers
from evals.tables.differences import average_text, difference_text
from evals.tables.layout import Cells, Table, Texts, estimate_columns, table_of_texts, write_table


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
    tables, cells = checkpoint_tables(results, best, chosen)
    write_table(out, tables, cells, [*results.sources, *best.sources, *choices])


def checkpoint_tables(last: Results, best: Results, chosen: Mapping[str, Chosen]) -> tuple[list[Table], Cells]:
    """Lay out the averages with their comparisons, and the benchmarks one by one; and the CSV file of both.

    The last and the best policies of each method, one after the other, are rows; the base model is the first.
    """
    first, among = next(iter(chosen.values())), sorted({len(choice.averages) for choice in chosen.values()})
    selected, k = first.benchmark, first.samples_per_problem
    others = [name for name in last.benchmarks if name != selected]
    number = " to ".join(map(str, dict.fromkeys([among[0], among[-1]])))  # fewer where a run stopped early
    shown, on_each, written = Texts(), Texts(), Cells()
    for row, (kind, results) in product(last.conditions, (("last", last), ("best", best))):
        is_base = row.method == BASE
        if is_base and kind == "best":
            continue
        condition = results.condition(row.method, row.model)
        assert condition is not None, "the best policies are of every method"
        choices, mark = ([chosen[run.run] for run in condition.runs], " †") if kind == "best" else ([], "")
        average, versus = results.average(condition), results.comparison(condition, results.reference_method)
        by_name = {name: results.average(condition, name).value for name in results.benchmarks}
        texts = {name: numbers.percent(value) + mark * (name == selected) for name, value in by_name.items()}
        # The mean over seeds of the averages by which the policies were chosen.
        of_choice = fmean(choice.averages[str(choice.step)] for choice in choices) if choices else None
        steps = " ".join(str(choice.step) for choice in choices)
        policy = {"Method": condition.title, "Checkpoint": numbers.NOTHING if is_base else kind}
        alone = {f"Without {selected} (%)": average_text(results.average_over(condition, others))} if others else {}
        shown[row, kind] = {
            **policy,
            "After step": steps or numbers.NOTHING,
            f"avg@{last.k} (%)": average_text(average) + mark,
            **alone,
            f"Versus {last.reference_title} (pp)": difference_text(versus),
            "p (Holm)": numbers.p_value(getattr(versus, "p_value_holm", None)),
            f"Verdict versus {last.reference_title}": results.verdict(condition) or numbers.NOTHING,
            f"{selected}, choice (%)": numbers.percent(of_choice),
            f"{selected}, scored (%)": texts[selected],
        }
        on_each[row, kind] = {**policy, **texts}
        cells: dict[str, Any] = {"model": row.model, "method": row.method}
        cells |= {"checkpoint": BASE if is_base else kind, "steps": steps}
        cells |= estimate_columns("average", (average.value, average.confidence_interval), "")
        cells |= {name: getattr(versus, name, None) for name in ("difference", "p_value_holm", "verdict")}
        cells["selected_on"] = selected if choices else None
        written[row, kind] = {**cells, "chosen_average": of_choice, **by_name}
    note = (
        f"best: of {number} checkpoints along each run, the last among them, the one with the highest avg@{k} on "
        f"{selected}, of equals the earliest. †: selected on. The largest of so many numbers is also the luckiest: the "
        f"policy's score in that choice is too high, and its score on other samples of the same problems ({selected}, "
        "scored), which the mean over benchmarks contains, is too high for other problems"
        f"{f'; the mean without {selected} is not selected on' if others else ''}. Best policies are compared with "
        "best ones, last with last. After step: of each seed."
    )
    title, title_of_each = "The last and the best policy of every training", f"avg@{last.k} by benchmark (%)"
    notes, notes_of_each = [note, last.extraction_note], ["†: selected on.", last.extraction_note]
    tables = [
        table_of_texts("checkpoints", title, shown, notes),
        table_of_texts("checkpoints_by_benchmark", title_of_each, on_each, notes_of_each),
    ]
    return tables, written
