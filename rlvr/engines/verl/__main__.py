"""``python -m rlvr.engines.verl render RUN.json``: train runs by verl, or show how."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command
from evals.errors import UserError
from rlvr.engines.verl.launch import Launch, Places, launch
from rlvr.engines.verl.run import Cluster, VerlRun

_REPOSITORY = Path(__file__).parents[3]


def _read(arguments: argparse.Namespace) -> tuple[VerlRun, Cluster, Places]:
    path: Path = arguments.run_file.resolve()
    directory = path.parent
    run = VerlRun.read(path)
    cluster = Cluster.read(arguments.cluster or directory / "cluster.json")
    return (
        run,
        cluster,
        Places(run=directory, study=Path.cwd(), repository=_REPOSITORY, state=directory / "state" / "verl"),
    )


def _launch(run: VerlRun, cluster: Cluster, places: Places) -> Launch:
    try:
        return launch(run, cluster, places)
    except ValueError as error:
        raise UserError(f"method {run.method_name}: {error}") from error


def _render(arguments: argparse.Namespace) -> None:
    print(_launch(*_read(arguments)).as_shell(), end="")


def _prompts(arguments: argparse.Namespace) -> None:
    from rlvr.engines.verl.prompts import write_prompts

    run, _, places = _read(arguments)
    write_prompts(places.study / run.problems, run.prompt, places.prompts)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m rlvr.engines.verl", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def add(name: str, function: object, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text)
        command.add_argument("run_file", type=Path, help="run.json, the resolved run")
        command.add_argument("--cluster", type=Path, help="default: cluster.json beside run.json")
        command.set_defaults(run=function)
        return command

    add("render", _render, "print the complete launch: environment, command and overrides")
    add("prompts", _prompts, "write the training problems as verl reads them")
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
