"""``python -m rlvr status|methods|runs``: whether each result is current; what methods there are; files of runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command
from evals.core.files import canonical_json, write_json, write_text
from rlvr.study.catalogue import CATALOGUE, load_catalogue
from rlvr.study.method_pages import list_methods, show_method
from rlvr.study.paper_scale import VERL
from rlvr.study.status import describe, study_status
from rlvr.study.study import Study
from rlvr.study.validation import read_yaml


def _status(arguments: argparse.Namespace) -> None:
    study = Study.resolve(read_yaml(arguments.config), str(arguments.config))
    statuses = study_status(study)
    if arguments.out:
        write_json(arguments.out, [vars(status) for status in statuses])
        return
    for line in describe(statuses):
        print(line)


def _runs(arguments: argparse.Namespace) -> None:
    study = Study.resolve(read_yaml(arguments.config), str(arguments.config))
    for run in study.trained_runs:
        files = {"run.json": study.resolved_run(run.run)}
        if study.engine == VERL:
            files["cluster.json"] = study.cluster(run.run)
        for name, content in files.items():
            path = arguments.out / run.run / name
            # As the workflow writes them: a file that says the same is left as it is.
            if not path.is_file() or path.read_text(encoding="utf-8") != canonical_json(content):
                write_text(path, canonical_json(content))
    for run in study.trained_runs:
        print(arguments.out / run.run / "run.json")


def _methods(arguments: argparse.Namespace) -> None:
    catalogue = load_catalogue()
    for line in show_method(arguments.name, catalogue) if arguments.name else list_methods(catalogue):
        print(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m rlvr", description=__doc__)
    commands = parser.add_subparsers(required=True)
    status = commands.add_parser("status", help="say of each result whether it is current, and if not, why")
    status.add_argument("--config", type=Path, default=CATALOGUE.parent / "config.yaml", help="the study")
    status.add_argument("--out", type=Path, help="write JSON here instead of printing")
    status.set_defaults(run=_status)
    runs = commands.add_parser("runs", help="write the files of a study's runs, as training would, without training")
    runs.add_argument("--config", type=Path, default=CATALOGUE.parent / "config.yaml", help="the study")
    runs.add_argument("--out", type=Path, default=Path("results/runs"), help="directory of the runs' directories")
    runs.set_defaults(run=_runs)
    methods = commands.add_parser("methods", help="list the catalogue of methods, or explain one")
    methods.set_defaults(run=_methods, name=None)
    show = methods.add_subparsers(metavar="show").add_parser("show", help="pieces, equations in words, choices")
    show.add_argument("name", metavar="NAME", help="a method of the catalogue")
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
