"""``python -m rlvr.report COMMAND``: the figures of the training curves, the report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json, write_text
from evals.core.records import BASE, read_runs
from evals.figures.style import ENDINGS, house_style, save
from evals.results import read_results
from evals.tables.audit import read_audits
from evals.tables.manifests import write_output_manifest
from evals.tables.published import read_published
from rlvr.report.curves import draw_curves, read_metrics
from rlvr.report.page import NamedStudy, page_files, render
from rlvr.report.provenance import read_status
from rlvr.report.reward_curves import draw_rewards
from rlvr.report.score_curves import draw_score_curves, read_averages


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rlvr.report", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    curves = commands.add_parser("curves", help="training curves as PNG and SVG")
    curves.add_argument("--runs", type=Path, required=True, help="list of run, model, method, seed, title")
    curves.add_argument("--training", type=Path, required=True, help="results/runs")
    curves.add_argument("--out", type=Path, required=True, help="path of the figure without its ending")
    rewards = commands.add_parser("rewards", help="reward curves of many methods, or of two studies side by side")
    rewards.add_argument("--runs", type=Path, nargs="+", required=True, help="run sheets of one study or of two")
    rewards.add_argument("--titles", nargs="+", required=True, help="of those studies")
    rewards.add_argument("--reference-method", required=True, help="method that every panel shows in black")
    rewards.add_argument("--training", type=Path, required=True, help="results/runs")
    rewards.add_argument("--out", type=Path, required=True, help="path of the figure without its ending")
    along = commands.add_parser("score-curves", help="scores along the training")
    along.add_argument("--runs", type=Path, nargs="+", required=True, help="run sheets; the first is the study's own")
    along.add_argument("--scores", type=Path, nargs="+", required=True, help="scores of all those runs")
    along.add_argument("--points", required=True, help="JSON: method -> list of steps and the name it is scored under")
    along.add_argument("--out", type=Path, required=True, help="path of the figure without its ending")
    html = commands.add_parser("html", help="the report, one self-contained file")
    html.add_argument("--study", type=Path, required=True, help="the resolved study, an object with study, its name")
    html.add_argument("--runs", type=Path, required=True, help="list of run, model, method, seed, title")
    html.add_argument("--scores", type=Path, nargs="+", required=True, help="results/scores/*.json")
    html.add_argument("--comparisons", type=Path, required=True, help="results/comparisons.json")
    html.add_argument("--audits", type=Path, nargs="+", required=True, help="results/audits/*.json")
    html.add_argument("--results", type=Path, required=True, help="results/, for everything else that is shown")
    html.add_argument("--figures", type=Path, required=True, help="results/figures, whose SVG files are embedded")
    html.add_argument("--status", type=Path, required=True, help="list of result, current, reasons, code_edited_since")
    html.add_argument(
        "--title", help="of a named study; its table in the shape of the papers' is shown, with --reference"
    )
    html.add_argument("--own-figures", nargs="*", default=[], help="of a named study: names of its figures")
    html.add_argument("--reference", type=Path, help="config/reference, for what papers report")
    html.add_argument("--note", nargs="+", required=True, help="sentences on what the numbers are evidence of")
    html.add_argument("--out", type=Path, required=True, help="results/report.html")
    return parser


def _write_html(arguments: argparse.Namespace) -> None:
    study = read_json(arguments.study)
    if not isinstance(study, dict) or "study" not in study:
        raise UserError(f"{arguments.study}: must be an object with study")
    results = read_results(arguments.runs, arguments.scores, arguments.comparisons)
    audits = read_audits(arguments.audits, results.runs)
    status = read_status(arguments.status)
    named = None
    if arguments.title is not None:
        if arguments.reference is None:
            raise UserError("--reference: is missing; accepted: config/reference, since there is a --title")
        published = arguments.reference / "published.csv"
        named = NamedStudy(arguments.title, read_published(published), tuple(arguments.own_figures))
    page = render(study, results, audits, arguments.results, arguments.figures, status, arguments.note, named)
    write_text(arguments.out, page)
    inputs = [arguments.study, arguments.runs, *arguments.scores, *arguments.audits]
    inputs += [arguments.comparisons, arguments.status]
    inputs += page_files(results, arguments.results, arguments.figures, named)
    inputs += [published] if named else []
    ending = arguments.out.suffix
    write_output_manifest("report", arguments.out.with_suffix(""), [ending], inputs, {"notes": arguments.note})


def _write_curves(arguments: argparse.Namespace) -> None:
    runs = read_runs(arguments.runs)
    trained = [run.run for run in runs if run.method != BASE]
    metrics = {run: read_metrics(run, arguments.training) for run in trained}
    with house_style():
        save(draw_curves(runs, metrics), arguments.out)
    inputs = [arguments.runs, *(arguments.training / run / "metrics.parquet" for run in trained)]
    write_output_manifest("figure", arguments.out, ENDINGS, inputs, {"figure": "training_curves"})


def _write_rewards(arguments: argparse.Namespace) -> None:
    if len(arguments.titles) != len(arguments.runs):
        raise UserError(
            f"--titles: are {len(arguments.titles)}; accepted: one for each of --runs, {len(arguments.runs)}"
        )
    sheets = [read_runs(path) for path in arguments.runs]
    trained = [run.run for runs in sheets for run in runs if run.method != BASE]
    metrics = {run: read_metrics(run, arguments.training) for run in trained}
    with house_style():
        save(draw_rewards(sheets, arguments.titles, metrics, arguments.reference_method), arguments.out)
    inputs = [*arguments.runs, *(arguments.training / run / "metrics.parquet" for run in metrics)]
    write_output_manifest("figure", arguments.out, ENDINGS, inputs, {"figure": "reward_curves"})


def _write_score_curves(arguments: argparse.Namespace) -> None:
    sheets = [read_runs(path) for path in arguments.runs]
    averages, k = read_averages([run for runs in sheets for run in runs], arguments.scores)
    points = {
        method: [(int(step), str(name)) for step, name in scored]
        for method, scored in json.loads(arguments.points).items()
    }
    with house_style():
        save(draw_score_curves(sheets[0], points, averages, k), arguments.out)
    inputs = [*arguments.runs, *arguments.scores]
    write_output_manifest("figure", arguments.out, ENDINGS, inputs, {"figure": "score_curves", "points": points})


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    arguments = _parser().parse_args(argv)
    try:
        {
            "curves": _write_curves,
            "rewards": _write_rewards,
            "score-curves": _write_score_curves,
            "html": _write_html,
        }[arguments.command](arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
