"""The main table, with a row for each method, its uncertainty and its cost; the averages by benchmark beside it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evals.core.errors import counted
from evals.core.records import ALL_BENCHMARKS, BASE, Condition
from evals.results import Results, read_results
from evals.tables import layout, numbers
from evals.tables.costs import Cost, condition_cost, cost_files
from evals.tables.differences import (
    average_text,
    between_models_table,
    by_look,
    compared_columns,
    corrected_note,
    difference_text,
    differences_table,
)
from evals.tables.families import signal_note
from evals.tables.layout import METHOD, Column, Table, interval_columns, make_table
from evals.tables.notes import (
    arithmetic_note,
    contrast_note,
    controls_note,
    decodings_note,
    early_stop_note,
    near_copies_note,
)
from evals.tables.robust import falls_note, falls_of

Costs = Mapping[Condition, Cost]
_ANGLES = ("degrees", "floor_degrees", "slope_degrees")
_COMPARED = ("difference", "standard_error", "p_value", "p_value_holm", "minimum_detectable_effect", "verdict")
_STOPPED = ("falls_p_value", "falls_p_value_holm", "falls", "median_unbiased", "undecided")


def responses_of(benchmark: str, condition: Condition) -> str:
    """The address of a method's responses to a benchmark."""
    return layout.responses_page(benchmark, column=f"{condition.model}-{condition.method}")


def main_columns(
    results: Results, costs: Costs, decoded: Mapping[str, Results] = MappingProxyType({})
) -> list[Column[Condition]]:
    """The columns of the main table over all benchmarks, and of main.csv, which has every benchmark too.

    ``decoded`` are the results by further decodings, by their names.
    """
    *compared, verdict = compared_columns(results)
    falls = {} if results.fallen is None else falls_of(results)
    # A mean over several leads to these, below it on the page.
    several = len(results.benchmarks) > 1

    def cost(header: str, name: str, text: Callable[[Any], str]) -> Column[Condition]:
        return Column(header, lambda row: getattr(costs[row], name), text, name)

    return [
        *METHOD,
        Column("", lambda row: " ".join(map(str, row.seeds)), csv="seeds"),
        Column("", lambda row: " ".join(run.run for run in row.runs), csv="runs"),
        Column("", lambda row: results.k, csv="samples_per_problem"),
        Column("", lambda row: results.confidence, csv="confidence"),
        Column(
            f"avg@{results.k} (%)",
            lambda row: row,
            lambda row: average_text(results.average(row)),
            partial(_average_cells, results),
            (lambda row: "#benchmarks") if several else partial(responses_of, results.benchmarks[0]),
        ),
        *_pass_at_k(results),
        *(_decoded_column(name, by_name) for name, by_name in decoded.items()),
        Column("Fell", falls.get, lambda fallen: fallen.text if fallen else numbers.NOTHING),
        Column("Gain over base (pp)", lambda row: results.comparison(row, BASE), difference_text),
        Column("", lambda row: row, csv=partial(_comparison_cells, results)),
        *compared,
        Column(
            "Contrast (°)",
            results.contrast,
            lambda contrast: numbers.decimal(getattr(contrast, "degrees", None)),
            lambda contrast: {f"contrast_{name}": getattr(contrast, name, None) for name in _ANGLES},
        ),
        verdict,
        Column("Seeds", lambda row: len(row.seeds) or numbers.NOTHING),
        cost("Tokens", "tokens_generated", numbers.count),
        cost("Updates", "optimizer_steps", numbers.whole),
        cost("Train (s)", "training_seconds", numbers.seconds),
        cost("CPU (s)", "training_cpu_seconds", numbers.seconds),
        cost("Eval (s)", "evaluation_seconds", numbers.seconds),
        cost("Memory (MiB)", "peak_memory_mebibytes", numbers.whole),
        Column("", falls.get, csv=lambda fallen: {"fell": len(fallen.runs) if fallen else None}),
    ]


def _pass_at_k(results: Results) -> list[Column[Condition]]:
    """The column of the chance that one of k responses is right, where there are several and methods."""
    name, names = f"pass@{results.k}", results.benchmarks
    if not results.has_methods or (value := results.by_problem(name)) is None:
        return []
    average = partial(results.average_over, names=names, of_problem=value)
    return [Column(f"{name} (%)", lambda row: average(row).value, numbers.percent, name.replace("@", "_at_"))]


def _decoded_column(name: str, results: Results) -> Column[Condition]:
    """The column of the scores by a further decoding; the CSV has their comparison with the reference method, too."""

    def average(condition: Condition) -> float:
        same = results.condition(condition.method, condition.model)
        assert same is not None, "further decodings have every method"
        return results.average(same).value

    def cells(condition: Condition) -> dict[str, Any]:
        compared = results.comparison(condition, results.reference_method)
        values = {key: getattr(compared, key, None) for key in ("difference", "p_value_holm", "verdict")}
        values |= interval_columns(compared.confidence_interval if compared else None, "")
        return {f"{name}_average": average(condition)} | {f"{name}_{key}": value for key, value in values.items()}

    return Column(f"{name.capitalize()} (%)", lambda row: row, lambda row: numbers.percent(average(row)), cells)


def _average_cells(results: Results, condition: Condition) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name in (ALL_BENCHMARKS, *results.benchmarks):
        average = results.average(condition, name)
        cells |= {f"{name}_avg_at_{results.k}": average.value, f"{name}_standard_error": average.standard_error}
        cells |= interval_columns(average.confidence_interval, f"{name}_")
    return cells


def _comparison_cells(results: Results, condition: Condition) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for against in (results.reference_method, BASE):
        for name in (ALL_BENCHMARKS, *results.benchmarks):
            comparison, prefix = results.comparison(condition, against, name), f"{name}_versus_{against}_"
            is_decisive = (against, name) == (results.reference_method, ALL_BENCHMARKS)
            keys = (*_COMPARED, *_STOPPED) if is_decisive else _COMPARED
            cells |= {f"{prefix}{key}": getattr(comparison, key, None) for key in keys}
            cells |= interval_columns(comparison.confidence_interval if comparison else None, prefix)
    return cells


def read_costs(results: Results, costs: Path, training: Path) -> Costs:
    """Read what one seed of each method cost, from results/costs and results/runs."""
    return {row: condition_cost(row, results.benchmarks, costs, training) for row in results.conditions}


def write_main_table(
    results: Results,
    costs: Path,
    training: Path,
    notes: Sequence[str],
    out: Path,
    decodings: Sequence[str] = (),
    decoded: Sequence[Path] = (),
) -> None:
    """Write a row per method: scores, comparisons, cost; and the columns that a paper needs.

    ``decoded`` are for each of the further ``decodings`` the files of scores, and that of comparisons.
    """
    measured = read_costs(results, costs, training)
    of_each = zip(decodings, zip(*[iter(decoded)] * (len(results.benchmarks) + 1), strict=True), strict=True)
    by_name = {name: read_results(results.runs, files[:-1], files[-1]) for name, files in of_each}
    columns = main_columns(results, measured, by_name)
    made = {f"base/{run.base_model}" for run in results.runs} | {f"runs/{run.run}" for run in results.runs}
    made |= {f"samples/{run.run}/{name}" for run in results.runs for name in results.benchmarks}
    manifests = (training.parent / name / "manifest.json" for name in made)
    computed = sorted(filter(Path.is_file, manifests), key=lambda path: path.parent)
    copies, compared = near_copies_note(results, training.parent / "problems")
    said = [*notes, *copies, *early_stop_note(computed), *arithmetic_note(computed, results.conditions)]
    tables, short = main_tables(results, measured, said, by_name), short_table(results, columns)
    frame = layout.table_frame(columns, results.conditions)
    read = [file for one in (results, *by_name.values()) for file in one.sources]
    read += [file for run in results.runs for file in cost_files(run, results.benchmarks, costs, training)]
    layout.write_table(out, tables, frame, [*read, *computed, *compared], {"notes": notes}, short)


def short_table(results: Results, columns: Sequence[Column[Condition]]) -> Table:
    """Lay out the columns of the main table that a paper needs."""
    shown = ("Method", "Seeds", "avg@", "Versus ", "MDE", "Verdict")
    chosen = [column for name in shown for column in columns if column.header.startswith(name)]
    title = f"Average over {counted(len(results.benchmarks), 'benchmark')}"
    return make_table("main_short", title, chosen, results.conditions, caption=_caption(results))


def _caption(results: Results) -> str:
    said = f"Brackets: {round(100 * results.confidence)} % intervals over problems"
    if not results.has_methods:
        return f"{said}. "
    decided = "each method was trained until its verdict is certain" if results.looks else "verdicts follow p (Holm)"
    return f"{said} and seeds. MDE: the smallest true difference that is found in 80 % of repetitions; {decided}."


def main_tables(
    results: Results, costs: Costs, notes: Sequence[str], decoded: Mapping[str, Results] = MappingProxyType({})
) -> list[Table]:
    """Lay out the summary with costs, averages by benchmark, and differences to the reference and to the base model."""
    k, level = results.k, round(100 * results.confidence)
    explanation = (
        f"avg@{k}: {results.mean_text}, and over training seeds; {k} samples a problem. "
        f"Brackets: {level} % intervals over problems and seeds; differences are paired by problem. "
        f"{numbers.ONE_SAMPLE_NOTE if k == '1' else ''}{numbers.NO_INTERVAL_NOTE} "
        f"{falls_note(results)} "
        f"{corrected_note(results)} "
        f"{contrast_note(results)}"
        "Costs: of one seed, mean over seeds; Updates: optimizer steps; Train and Eval are wall time, to which other "
        "jobs of the machine add; CPU is the training's own; memory is the largest resident set of any job."
    )
    if not results.has_methods:
        explanation = (
            f"avg@{k}: {results.mean_text}; {k} samples a problem. Brackets: {level} % intervals over problems; "
            f"{numbers.NO_INTERVAL}: none is to be trusted, for a handful of problems decides. Eval is wall time, to "
            "which other jobs of the machine add; memory is the largest resident set of any job."
        )
    title = f"Main results: average over {counted(len(results.benchmarks), 'benchmark')}, and cost"
    columns = main_columns(results, costs, decoded)
    if not results.has_methods:  # then half of them have nothing to say

        def says(column: Column[Condition]) -> bool:
            return any(column.text(column.value(row)) != numbers.NOTHING for row in results.conditions)

        columns = list(filter(says, columns))
    said = [*notes, controls_note(results), decodings_note(results, decoded), signal_note(results)]
    said += [results.clusters_note, results.extraction_note, explanation]
    summary = make_table("main", title, columns, results.conditions, said, _caption(results))
    tables = [differences_table(results, results.reference_method, results.reference_title)]
    tables += [differences_table(results, BASE, "the base model"), by_look(results), between_models_table(results)]
    return [summary, by_benchmark_table(results), *(table for table in tables if table.rows)]


def by_benchmark_table(results: Results) -> Table:
    """Lay out the average of every method on every benchmark."""

    def column(name: str) -> Column[Condition]:
        title = f"{name} (k = {results.samples[name]})" if results.k == "k" else name
        value = partial(results.average, benchmark=name)
        return Column(title, value, average_text, link=partial(responses_of, name))

    over, few = ("problems and seeds", "a single seed, or ") if results.has_methods else ("problems", "")
    note = (
        f"Brackets: {round(100 * results.confidence)} % intervals over {over} (problems are the clusters of their "
        f"{results.k} samples); {numbers.NO_INTERVAL}: {few}a handful of problems decides."
    )
    title = f"avg@{results.k} by benchmark (%)"
    columns = [*METHOD, *map(column, results.benchmarks)]
    return make_table("by_benchmark", title, columns, results.conditions, [note, results.extraction_note])
