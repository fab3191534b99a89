"""Training one run by either engine, and what verl needs before it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from evals.core.errors import UserError
from evals.core.run_spec import Execution
from evals.generation import arithmetic
from rlvr.cli.command import Commands
from rlvr.cli.options import Paths, RunFile, is_portable
from rlvr.study.source_files import REPOSITORY

if TYPE_CHECKING:
    from evals.core.run_spec import Cluster, VerlRun
    from rlvr.engines.verl.launch import Places

commands = Commands()
verl = Commands(help="Show and check how verl would train a run.")
commands.add_typer(verl, name="verl")

ClusterFile = Annotated[Path | None, Option(help="verl: where it trains; default: cluster.json beside run.json")]
Python = Annotated[str, Option(help="Python of the environment that verl is in; a path is relative to the repository")]


@commands.add("train")
def train(
    run_file: RunFile,
    execution: Execution,
    out: Annotated[Path | None, Option(help="local: directory of the run; default: where run.json is")] = None,
    threads: Annotated[int | None, Option(help="local: that torch keeps to; needed")] = None,
    cluster: ClusterFile = None,
    python: Python = "python",
    checkpoints_at: Annotated[
        list[int], Option(help="steps after which the policy is kept too, in checkpoints/step-N of the run's directory")
    ] = [],
    device_memory: Annotated[
        int | None,
        Option(
            help="local: MiB of a device that need not be here; print what the training takes there by a sum, and end"
        ),
    ] = None,
    run_json: Annotated[str | None, Option(help="content of run.json, which is written first")] = None,
    cluster_json: Annotated[str | None, Option(help="verl: content of cluster.json, likewise")] = None,
) -> None:
    """Train, or continue, one run by the engine that run.json names.

    Exits with status 143 after a SIGTERM, with the state saved. verl's checkpoint is merged into Hugging Face's format.
    """
    from evals.core.files import read_json, write_text
    from rlvr.runs.termination import exit_if_interrupted

    for path, text in ((run_file, run_json), (run_file.with_name("cluster.json"), cluster_json)):
        if text is not None:
            write_text(path, text)
    content = read_json(run_file)
    with exit_if_interrupted():
        if isinstance(content, dict) and content.get("engine", "local") == "verl":
            from rlvr.engines.verl import train as by_verl

            run, machines, places = _read(run_file, cluster)
            settings = by_verl.Execution(
                machines, _program(python), places.study, REPOSITORY, execution.lock_wait_seconds
            )
            by_verl.train(run, places.run, settings, checkpoints_at)
            return
        from evals.core.run_spec import LocalRun

        if device_memory is not None:
            from rlvr.engines.local.memory_sum import print_sum

            print_sum(LocalRun.read(run_file), execution, device_memory << 20)
            return
        if threads is None:
            raise UserError("--threads: is missing; accepted: a number, for engine local")
        arithmetic.set_up(threads, is_portable(content, execution.device))
        from rlvr.engines.local.train import train as train_locally

        train_locally(LocalRun.read(run_file), out or run_file.parent, execution, checkpoints_at)


@verl.add("render")
def render(run_file: RunFile, cluster: ClusterFile = None) -> None:
    """Print the complete launch: environment, command and overrides. Needs no verl."""
    from rlvr.engines.verl.launch import launch

    print(launch(*_read(run_file, cluster)).as_shell(), end="")


@verl.add("validate")
def validate(
    run_files: Annotated[Paths, Argument(help="run.json of one run or more")], cluster: ClusterFile = None
) -> None:
    """Hold the launch against verl's own configuration and checks, and ours; needs no GPU."""
    from evals.core.files import read_json
    from rlvr.engines.verl.checks import check, compose_config
    from rlvr.engines.verl.hidden_states import hidden_state_bytes
    from rlvr.engines.verl.launch import launch

    for path in run_files:
        run, machines, places = _read(path, cluster)
        checkpoint = places.study / run.base / "checkpoint"
        there = checkpoint.exists()
        method = check(run, machines, checkpoint if there else None)
        compose_config(launch(run, machines, places))
        unread = "" if there else f" ({checkpoint} is not there yet: the model itself was not looked at)"
        print(f"{run.run}: verl accepts the launch{unread}")
        if there and (size := hidden_state_bytes(run, machines, method, read_json(checkpoint / "config.json"))):
            print(
                f"{run.run}: with every response at its longest, hidden states take {size / 2**30:.3g} GiB of a device"
            )


def _read(path: Path, cluster_file: Path | None) -> tuple[VerlRun, Cluster, Places]:
    from evals.core.run_spec import Cluster, VerlRun
    from rlvr.engines.verl.launch import Places

    directory = path.resolve().parent
    run = VerlRun.read(path)
    cluster = Cluster.read(cluster_file or directory / "cluster.json")
    state = directory / "state" / "verl"
    return run, cluster, Places(run=directory, study=Path.cwd(), repository=REPOSITORY, state=state)


def _program(python: str) -> str:
    """The Python of verl's environment; a path is relative to the repository."""
    relative = "/" in python and not Path(python).is_absolute()
    found = shutil.which(REPOSITORY / python if relative else python)
    if found is None:
        raise UserError(f"--python: {python}: no such program; accepted: Python with verl installed")
    return found
