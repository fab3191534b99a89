"""``python -m rlvr.tracking project|part|ui|watch``: show a study in MLflow, and what was made beside it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.tables.records import read_runs
from rlvr.tracking.interface import check_port, serve
from rlvr.tracking.part import Part, project_part, replay_part
from rlvr.tracking.study import Places, TrackedStudy, project_study, replay
from rlvr.tracking.under_way import show_under_way, watch


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
    tracked = TrackedStudy(arguments.study, tuple(arguments.benchmarks), tuple(read_runs(arguments.runs)))
    places = Places(arguments.results, arguments.database, arguments.artifacts, arguments.out)
    print(_words(project_study(tracked, places)))


def _part(arguments: argparse.Namespace) -> None:
    part = Part(arguments.study, arguments.name, arguments.title, arguments.note, tuple(arguments.files))
    print(_words(project_part(part, arguments.database, arguments.artifacts, arguments.out)))


def _serve(arguments: argparse.Namespace) -> None:
    results: Path = arguments.results
    database, artifacts = _database(results)
    check_port(arguments.port)
    lost = not database.exists()  # then all of it is made again, whoever makes the file
    for record in [results / "tracking.json", *sorted(results.glob("studies/*/tracking.json"))]:
        with _warning():
            if record.exists() and (counts := replay(Places(results, database, artifacts, record), lost)) is not None:
                print(f"{record}: {_words(counts)}")
    for record in sorted(results.glob("*.tracking.json")):
        with _warning():
            if (counts := replay_part(record, database, artifacts, lost)) is not None:
                print(f"{record}: {_words(counts)}")
    with _warning():
        number = show_under_way(results, database, artifacts)
        if number:
            print(f"trainings under way, or of a study that is: {number}")
    if not database.exists():
        raise UserError(f"{results}: holds no study that was started; run one first")
    serve(results, database, artifacts, arguments.port)


@contextlib.contextmanager
def _warning() -> Iterator[None]:
    """Say what cannot be shown; a study under way has outputs missing, and the rest is still worth browsing."""
    try:
        yield
    except UserError as error:
        print(f"warning: {error}; showing what there is", file=sys.stderr)


def _watch(arguments: argparse.Namespace) -> None:
    if arguments.seconds <= 0:
        raise UserError(f"--seconds: {arguments.seconds:g}; accepted: above 0")
    with contextlib.suppress(KeyboardInterrupt):
        watch(arguments.results, *_database(arguments.results), arguments.seconds, arguments.parent)


def _database(results: Path) -> tuple[Path, Path]:
    """The database, and the directory of its copies of files."""
    return results / "mlflow.db", results / "mlflow-artifacts"


def _words(counts: dict[str, int]) -> str:
    return "MLflow runs: " + ", ".join(f"{number} {word}" for word, number in counts.items())


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
