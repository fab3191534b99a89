"""``python -m rlvr.tracking project|part|ui|watch``: show a study in MLflow, and what was made beside it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.core.records import read_runs
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.in_progress import watch
from rlvr.report.mlflow.projected import TrackedExtra, TrackedStudy
from rlvr.report.mlflow.server import browse, describe


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rlvr.tracking", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    project = commands.add_parser("project", help="bring the MLflow database into line with the result files")
    project.add_argument("--results", type=Path, required=True, help="results/")
    project.add_argument("--runs", type=Path, required=True, help="list of run, model, method, seed, title")
    project.add_argument("--benchmarks", nargs="+", required=True, help="whose scores/*.json beside --out are shown")
    project.add_argument("--study", required=True, help="name of the study and of the experiment")
    project.add_argument("--database", type=Path, required=True, help="results/mlflow.db")
    project.add_argument("--artifacts", type=Path, required=True, help="results/mlflow-artifacts")
    project.add_argument("--out", type=Path, required=True, help="results/tracking.json: what was projected")
    part = commands.add_parser("part", help="show what was made beside a study as one run of its experiment")
    part.add_argument("--study", required=True, help="name of the study and of the experiment")
    part.add_argument("--name", required=True, help="of the part, such as phenomena; other parts are left alone")
    part.add_argument("--title", required=True, help="name of its run")
    part.add_argument("--note", type=Path, required=True, help="Markdown file whose beginning describes the run")
    part.add_argument("--files", type=Path, nargs="+", required=True, help="pages, tables and figures to show")
    part.add_argument("--database", type=Path, required=True, help="results/mlflow.db")
    part.add_argument("--artifacts", type=Path, required=True, help="results/mlflow-artifacts")
    part.add_argument("--out", type=Path, required=True, help="results/NAME.tracking.json: what was projected")
    ui = commands.add_parser(
        "ui", help="MLflow's web interface on loopback, projecting first where files are newer; it watches as well"
    )
    ui.add_argument("--results", type=Path, required=True, help="results/")
    ui.add_argument("--port", type=int, default=5000)
    watched = commands.add_parser(
        "watch", help="show trainings under way as MLflow runs that grow, until what started this command is gone"
    )
    watched.add_argument("--results", type=Path, required=True, help="results/")
    watched.add_argument("--seconds", type=float, default=20.0, help="between two looks (default: 20)")
    watched.add_argument("--parent", type=int, default=os.getppid(), help="process number of what started it")
    return parser


def _project(arguments: argparse.Namespace) -> None:
    runs = tuple(read_runs(arguments.runs))
    tracked = TrackedStudy(study=arguments.study, benchmarks=tuple(arguments.benchmarks), runs=runs)
    print(describe(tracked.project(arguments.out, arguments.results, Store(arguments.database, arguments.artifacts))))


def _part(arguments: argparse.Namespace) -> None:
    tracked = TrackedExtra.of(
        arguments.out, arguments.study, arguments.name, arguments.title, arguments.note, arguments.files
    )
    store = Store(arguments.database, arguments.artifacts)
    print(describe(tracked.project(arguments.out, arguments.database.parent, store)))


def _serve(arguments: argparse.Namespace) -> None:
    browse(arguments.results, arguments.port)


def _watch(arguments: argparse.Namespace) -> None:
    if arguments.seconds <= 0:
        raise UserError(f"--seconds: {arguments.seconds:g}; accepted: above 0")
    with contextlib.suppress(KeyboardInterrupt):
        watch(arguments.results, Store.of(arguments.results), arguments.seconds, arguments.parent)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    arguments = _parser().parse_args(argv)
    try:
        {"project": _project, "part": _part, "ui": _serve, "watch": _watch}[arguments.command](arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
