"""``python -m rlvr.engines.verl render RUN.json``: train runs by verl, or show how."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command
from evals.core.errors import UserError
from evals.core.files import read_json
from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.launch import Launch, Places, launch

_REPOSITORY = Path(__file__).parents[3]


def _read(path: Path, cluster_file: Path | None) -> tuple[VerlRun, Cluster, Places]:
    directory = path.resolve().parent
    run = VerlRun.read(path)
    cluster = Cluster.read(cluster_file or directory / "cluster.json")
    return (
        run,
        cluster,
        Places(run=directory, study=Path.cwd(), repository=_REPOSITORY, state=directory / "state" / "verl"),
    )


def _launch(run: VerlRun, cluster: Cluster, places: Places) -> Launch:
    return launch(run, cluster, places)


def _render(arguments: argparse.Namespace) -> None:
    print(_launch(*_read(arguments.run_file, arguments.cluster)).as_shell(), end="")


def _validate(arguments: argparse.Namespace) -> None:
    from rlvr.engines.verl.checks import check
    from rlvr.engines.verl.compose import compose
    from rlvr.engines.verl.hidden_state_place import longest

    for path in arguments.run_files:
        run, cluster, places = _read(path, arguments.cluster)
        checkpoint = places.study / run.base / "checkpoint"
        there = checkpoint.exists()
        method = check(run, cluster, checkpoint if there else None)
        compose(_launch(run, cluster, places))
        unread = "" if there else f" ({checkpoint} is not there yet: the model itself was not looked at)"
        print(f"{run.run}: verl accepts the launch{unread}")
        size = longest(run, cluster, method, read_json(checkpoint / "config.json")) if there else None
        if size is not None:
            print(f"{run.run}: at the longest, {size.told(cluster)}")


def _train(arguments: argparse.Namespace) -> None:
    from rlvr.engines.verl.train import Execution, train
    from rlvr.runs.termination import STOPPED, Interrupted

    run, cluster, places = _read(arguments.run_file, arguments.cluster)
    python = _python(arguments.python)
    try:
        train(run, places.run, Execution(cluster, python, places.study, _REPOSITORY, arguments.lock_wait_seconds))
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        sys.exit(STOPPED)


def _preflight(arguments: argparse.Namespace) -> None:
    from rlvr.engines.verl.preflight import preflight

    _, cluster, places = _read(arguments.run_file, arguments.cluster)
    print(preflight(arguments.run_file, cluster, _python(arguments.python), places.study, _REPOSITORY))


def _python(program: str) -> str:
    """The Python of verl's environment; a path is relative to the repository."""
    relative = "/" in program and not Path(program).is_absolute()
    found = shutil.which(_REPOSITORY / program if relative else program)
    if found is None:
        raise UserError(f"--python: {program}: no such program; accepted: Python with verl installed")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m rlvr.engines.verl", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def add(name: str, function: object, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text)
        if function is _validate:
            command.add_argument("run_files", type=Path, nargs="+", help="run.json of one run or more")
        else:
            command.add_argument("run_file", type=Path, help="run.json, the resolved run")
        command.add_argument("--cluster", type=Path, help="default: cluster.json beside run.json")
        command.set_defaults(run=function)
        return command

    add("render", _render, "print the complete launch: environment, command and overrides")
    add("validate", _validate, "hold the launch against verl's own configuration and checks, and ours; needs no GPU")
    train = add("train", _train, "train, or continue, one run, and merge it into a Hugging Face checkpoint")
    flight = add("preflight", _preflight, "one training step at the longest length on this node: its memory and time")
    for command in (train, flight):
        command.add_argument(
            "--python",
            default="python",
            help="Python of the environment that verl is in; a path is relative to the repository",
        )
    train.add_argument(
        "--lock-wait-seconds", type=float, default=600.0, help="patience with another writer of this run"
    )
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
