"""The report and the figures of the training curves as files, with a manifest beside each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json, write_text
from evals.core.records import BASE, read_runs
from evals.figures.style import ENDINGS, house_style, save
from evals.tables.audit import read_audits
from evals.tables.manifests import write_output_manifest
from evals.tables.published import read_published
from evals.tables.write import ResultFiles
from rlvr.report.curves import draw_curves, read_metrics
from rlvr.report.page import NamedStudy, page_files, render
from rlvr.report.provenance import read_status
from rlvr.report.reward_curves import draw_rewards
from rlvr.report.score_curves import draw_score_curves, read_averages


@dataclass(frozen=True)
class ReportFiles:
    """The files that a report is made from, beside the scores.

    Attributes:
        study: the resolved study.
        audits: one file for each benchmark.
        results: the directory results/, for everything else that is shown.
        figures: directory whose SVG files are embedded.
        status: what is current.
        reference: config/reference, for a named study; else None.
    """

    study: Path
    audits: Sequence[Path]
    results: Path
    figures: Path
    status: Path
    reference: Path | None


def write_report(
    files: ResultFiles,
    more: ReportFiles,
    notes: Sequence[str],
    title: str | None,
    own_figures: Sequence[str],
    out: Path,
) -> None:
    """Write the report, one self-contained HTML file.

    Args:
        files: run sheet, scores and comparisons.
        more: everything else.
        notes: sentences on what the numbers are evidence of.
        title: of a named study, whose table in the shape of the papers' is then shown; else None.
        own_figures: of a named study: names of its figures.
        out: the HTML file.

    Raises:
        UserError: an input is missing or malformed, or the output cannot be written.
    """
    study = read_json(more.study)
    if not isinstance(study, dict) or "study" not in study:
        raise UserError(f"{more.study}: must be an object with study")
    results = files.read()
    audits = read_audits(more.audits, results.runs)
    named, published = None, []
    if title is not None:
        if more.reference is None:
            raise UserError("--reference: is missing; accepted: config/reference, since there is a --title")
        published = [more.reference / "published.csv"]
        named = NamedStudy(title, read_published(published[0]), tuple(own_figures))
    status = read_status(more.status)
    page = render(study, results, audits, more.results, more.figures, status, notes, named)
    write_text(out, page)
    inputs = [more.study, files.runs, *files.scores, *more.audits, files.comparisons, more.status]
    inputs += [*page_files(results, more.results, more.figures, named), *published]
    write_output_manifest("report", out.with_suffix(""), [out.suffix], inputs, {"notes": notes})


def write_training_curves(sheet: Path, training: Path, out: Path) -> None:
    """Draw the training curves of a study's runs; ``training`` is the runs' directory, ``out`` lacks the ending."""
    runs = read_runs(sheet)
    trained = [run.run for run in runs if run.method != BASE]
    metrics = {run: read_metrics(run, training) for run in trained}
    with house_style():
        save(draw_curves(runs, metrics), out)
    inputs = [sheet, *(training / run / "metrics.parquet" for run in trained)]
    write_output_manifest("figure", out, ENDINGS, inputs, {"figure": "training_curves"})


def write_reward_curves(
    sheets: Sequence[Path], titles: Sequence[str], reference_method: str, training: Path, out: Path
) -> None:
    """Draw the reward curves of many methods, or of two studies side by side.

    Raises:
        UserError: there is not one title for each run sheet, or a file is missing or malformed.
    """
    if len(titles) != len(sheets):
        raise UserError(f"--titles: are {len(titles)}; accepted: one for each of --runs, {len(sheets)}")
    read = [read_runs(path) for path in sheets]
    trained = [run.run for runs in read for run in runs if run.method != BASE]
    metrics = {run: read_metrics(run, training) for run in trained}
    with house_style():
        save(draw_rewards(read, titles, metrics, reference_method), out)
    inputs = [*sheets, *(training / run / "metrics.parquet" for run in metrics)]
    write_output_manifest("figure", out, ENDINGS, inputs, {"figure": "reward_curves"})


def write_score_curves(sheets: Sequence[Path], scores: Sequence[Path], points_json: str, out: Path) -> None:
    """Draw scores along the training.

    Args:
        sheets: run sheets; the first is the study's own.
        scores: of all those runs.
        points_json: method -> list of steps and the name it is scored under.
        out: path of the figure without its ending.
    """
    read = [read_runs(path) for path in sheets]
    averages, k = read_averages([run for runs in read for run in runs], scores)
    points = {
        method: [(int(step), str(name)) for step, name in scored] for method, scored in json.loads(points_json).items()
    }
    with house_style():
        save(draw_score_curves(read[0], points, averages, k), out)
    write_output_manifest("figure", out, ENDINGS, [*sheets, *scores], {"figure": "score_curves", "points": points})
