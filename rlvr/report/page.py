"""The report of a study as one HTML file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput
from evals.core.records import BASE, ProblemFile, rows_in
from evals.results import Results
from evals.tables import audit, efficiency, main, robust
from evals.tables.by_seed import by_seed_tables
from evals.tables.costs import cost_files
from evals.tables.layout import Table
from evals.tables.notes import near_copies_note
from rlvr.report.charts import charts
from rlvr.report.examples import first_responses
from rlvr.report.html import embedded, write_page
from rlvr.report.provenance import component_files, read_run_manifest, read_study, run_directory
from rlvr.report.run_tables import recorded_table, settings_table, timing_table
from rlvr.report.summary import alternatives, answer, best_condition, findings, headline, question

_FIGURES = ("differences", "scores", "pass_at_k", "profiles", "cost_curves", "compute_performance", "training_curves")
_MAIN = ("Method", "avg@", "pass@", "Greedy", "Versus ", "Verdict", "MDE", "Contrast", "Seeds", "Fell", "Tokens")


def write_report(
    study: Path,
    results: Results,
    directory: Path,
    figures: Path,
    notes: Sequence[str],
    out: Path,
    title: str | None = None,
    own_figures: Sequence[str] = (),
    rollouts: str = "",
) -> None:
    """Write the report, one self-contained HTML file.

    Args:
        study: the resolved study, an object with study, its name.
        title: of a named study.
        own_figures: of a named study: names of its figures.
        rollouts: address of the page of rollouts, from the report; default: none.
    """
    settings = read_study(study)
    absent = set() if "validation" in settings else {"compute_performance"}
    absent |= set() if results.samples_per_problem > 1 else {"pass_at_k"}
    names = [figure for figure in (*own_figures, *_FIGURES) if figure not in absent]
    names += ["validation_curves"] if isinstance(settings.get("checkpoint"), dict) else []
    drawn = [figures / f"{figure}.svg" for figure in names]
    content, inputs = report_content(study, settings, results, directory, drawn, notes, title)
    write_page("report.html.jinja", out, inputs, notes, rollouts=rollouts, **content)


def report_content(
    study: Path,
    settings: Mapping[str, Any],
    results: Results,
    directory: Path,
    drawn: Sequence[Path],
    notes: Sequence[str],
    title: str | None,
) -> tuple[dict[str, Any], list[Path]]:
    """Gather the template's variables but for ``notes`` and ``rollouts``, and the files behind them (write_report)."""
    audited_runs = audit.read_audits(directory, results.benchmarks, results.runs)
    audited, *audited_by_benchmark = audit.audit_tables(audited_runs)
    costs = main.read_costs(results, directory / "costs", directory / "runs")
    falls = robust.falls_of(results)
    copies, compared = near_copies_note(results, directory / "problems")
    summary, *by_benchmark = main.main_tables(results, costs, [*notes, *copies])
    shown, number_shown = _first_columns(summary)
    summaries, curves = {row: robust.summarise(results, row) for row in falls}, charts(results, directory / "runs")
    robust_table, _ = robust.robust_table(results, falls, summaries)
    efficiency_tables, _ = efficiency.efficiency_tables(results, directory / "runs")
    examples, read = _read_examples(results, directory)
    inputs = [study, *results.sources, *audited_runs.files, *drawn, *compared]
    for run in results.runs:
        inputs.append(run_directory(run, directory) / "manifest.json")
        inputs += cost_files(run, results.benchmarks, directory / "costs", directory / "runs")
    components = dict(component_files([read_run_manifest(run, directory) for run in results.runs], directory))
    inputs += [*read, *components.values()]
    shown_on_page = {
        "title": title or settings["study"],
        "question": title or question(results),
        "answer": answer(results, costs),
        "components": {name: file.read_text("utf-8", "replace") for name, file in components.items()},
        "headline": headline(results),
        "alternatives": alternatives(results, curves, summaries),
        "settings": json.dumps(settings, indent=2, ensure_ascii=False, sort_keys=True),
        "findings": findings(results),
        "main_table": replace(shown, notes=shown.notes[len(notes) :]),
        "main_columns": number_shown,
        "tables_of_seeds": [robust_table, *efficiency_tables] if falls else [],
        "benchmark_tables": by_benchmark,
        "seed_tables": by_seed_tables(results),
        "audit_sentence": audit.sentence(audited_runs),
        "audit_table": audited,
        "audit_tables": audited_by_benchmark,
        "timing_table": timing_table(results, directory / "runs"),
        "recorded_table": recorded_table(results, directory / "runs"),
        "settings_table": settings_table(results, directory),
        "level": round(100 * results.confidence),
        "reference": results.drawn_against[1],
        "has_looks": bool(results.looks),
        "figures": {path.stem: embedded(path) for path in drawn},
        "charts": curves,
        "examples": examples,
        "runs": [(run, read_run_manifest(run, directory)) for run in results.runs],
        "problem_sets": [
            ProblemFile.of(path.parent)
            for kind in ("problems", "solutions")
            for path in sorted((directory / kind).glob("*/manifest.json"))
        ],
    }
    return shown_on_page, list(dict.fromkeys(inputs))


def _first_columns(table: Table) -> tuple[Table, int]:
    """The main table with the columns first that are looked at, and how many these are; the page folds the others."""
    first = [column for begin in _MAIN for column, name in enumerate(table.header) if name.startswith(begin)]
    order = [*first, *(column for column in range(len(table.header)) if column not in first)]
    header, *rows = (tuple(row[column] for column in order) for row in (table.header, *table.rows))
    links = tuple(tuple(row[column] for column in order) for row in table.links)
    return replace(table, header=header, rows=tuple(rows), links=links), len(first)


def _read_examples(results: Results, directory: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Each benchmark's first problem and the first sample that the base model and the best method's first seed gave it.

    Both are those of the first model; ``directory`` is results/, with problems, samples and grades. The second value is
    the files that were read.
    """
    model = results.runs[0].model
    chosen = [condition for condition in results.conditions if (condition.model, condition.method) == (model, BASE)]
    chosen = list(dict.fromkeys([*chosen, best_condition(results, model)]))
    examples, files = list[dict[str, Any]](), list[Path]()
    for benchmark in results.benchmarks:
        files.append(directory / "problems" / benchmark / "problems.jsonl")
        rollouts = list[dict[str, Any]]()
        for condition in chosen:
            run = condition.runs[0].run
            files += [rows_in(directory / kind / run / benchmark, kind) for kind in ("samples", "grades")]
            rows = first_responses(run, benchmark, directory, 1)
            if rows.empty:
                raise InvalidInput(str(files[-2]), "", f"has no response to the first problem of {benchmark}")
            row = {str(key): value for key, value in rows.iloc[0].items()}
            rollouts.append({**row, "title": condition.title, "run": run})
        examples.append(rollouts[0] | {"rollouts": rollouts})
    return examples, files
