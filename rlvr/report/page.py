"""The report as one HTML file that needs nothing else: no script, no font, no file beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from evals.results import Results
from evals.tables.audit import Audits, audit_tables
from evals.tables.by_seed import by_seed_tables
from evals.tables.costs import cost_files
from evals.tables.layout import Table
from evals.tables.main import main_tables, read_costs
from evals.tables.paper import paper_tables
from evals.tables.published import Published
from rlvr.page_template import page_template
from rlvr.report.embedded_figure import EmbeddedFigure
from rlvr.report.examples import example_files, read_examples
from rlvr.report.provenance import Currency, read_problem_sets, read_runs_provenance, run_manifest_path
from rlvr.report.summary import findings
from rlvr.report.timing import timing_table


@dataclass(frozen=True)
class NamedStudy:
    """What the report of a named study shows beside what every report shows.

    Attributes:
        title: its heading.
        published: every published number; those of its methods are shown.
        figures: names of the figures that only it has.
    """

    title: str
    published: Sequence[Published]
    figures: tuple[str, ...] = ()


_FIGURES = {
    "scores": (
        "Scores of every method on every benchmark with intervals",
        "Scores. Point: mean over seeds; line: {level} % interval over problems and seeds; small ticks: the seeds; "
        "dashed line and grey band: the base model and its interval.",
    ),
    "differences": (
        "Paired differences of every method to the reference method with intervals",
        "Paired differences to {reference}. Line: {level} % interval; a method is called better or worse only where "
        "its test says so after Holm over the benchmarks.",
    ),
    "training_curves": (
        "Training curves of every method",
        "Training. Line: mean over seeds at each rollout step; band: from the smallest to the largest seed; grey: the "
        "other methods' means. No smoothing.",
    ),
}
_FIGURES_OF_NAMED_STUDIES = {
    "reward_curves": (
        "Reward during training, a panel for every method",
        "Reward during training. Line: mean over seeds; band: smallest to largest seed; black: {reference}.",
    ),
    "score_curves": (
        "Scores of every method along its training",
        "Scores along the training. Line: mean over seeds; band: smallest to largest seed; dashed: the base model.",
    ),
}


def render(
    study: Mapping[str, Any],
    results: Results,
    audits: Audits,
    directory: Path,
    figures: Path,
    status: Sequence[Currency],
    notes: Sequence[str],
    named: NamedStudy | None = None,
) -> str:
    """The page.

    Args:
        study: the resolved study; ``study`` is its name, all of it is shown as settings.
        results: runs, scores and comparisons.
        audits: of their grades.
        directory: results/, with runs, base, problems, samples, grades and costs.
        figures: directory of the study's figures.
        status: currency of every result.
        notes: what the numbers are evidence of.
        named: of a named study, its title and what papers report.

    Raises:
        UserError: a file that the page shows is missing or malformed.
    """
    own = {name: _FIGURES_OF_NAMED_STUDIES[name] for name in (named.figures if named else ())}
    runs = read_runs_provenance(results.runs, directory)
    audit, *audit_by_benchmark = audit_tables(audits)
    summary, *by_benchmark = main_tables(results, read_costs(results, directory / "costs", directory / "runs"), notes)
    return page_template("report.html.jinja", "rlvr.report").render(
        title=named.title if named else study["study"],
        settings=json.dumps(study, indent=2, ensure_ascii=False, sort_keys=True),
        style=resources.files("rlvr.report").joinpath("templates/report.css").read_text(encoding="utf-8"),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        findings=findings(results),
        notes=notes,
        paper_tables=paper_tables(results, named.published, named.title, []) if named else [],
        main_table=Table(summary.name, summary.title, summary.header, summary.rows, summary.notes[len(notes) :]),
        benchmark_tables=by_benchmark,
        seed_tables=by_seed_tables(results),
        audit_table=audit,
        audit_tables=audit_by_benchmark,
        timing_table=timing_table(results, directory / "runs"),
        figures=[_figure(results, name, figures, texts) for name, texts in {**own, **_FIGURES}.items()],
        examples=read_examples(results, directory),
        stale=[row for row in status if not row.current],
        status={row.result: row for row in status},
        runs=runs,
        others=[row for row in status if row.result not in {run.result for run in runs}],
        problem_sets=read_problem_sets(directory),
    )


def page_files(results: Results, directory: Path, figures: Path, named: NamedStudy | None = None) -> list[Path]:
    """The files under results/ that :func:`render` reads, runs, scores and comparisons aside, each once."""
    files = [figures / f"{name}.svg" for name in (*(named.figures if named else ()), *_FIGURES)]
    for run in results.runs:
        files.append(run_manifest_path(run, directory))
        files += cost_files(run, results.benchmarks, directory / "costs", directory / "runs")
    return list(dict.fromkeys([*files, *example_files(results, directory)]))


def _figure(results: Results, name: str, directory: Path, texts: tuple[str, str]) -> EmbeddedFigure:
    alternative, caption = texts
    filled = caption.format(level=round(100 * results.confidence), reference=results.drawn_against[1])
    return EmbeddedFigure.read(directory / f"{name}.svg", alternative, filled)
