"""Training a run by the engine that its run.json names."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json
from evals.core.run_spec import VERL, Execution, LocalRun

REPOSITORY = Path(__file__).resolve().parents[2]


def train_run(
    run_file: Path,
    execution: Execution,
    threads: int | None,
    python: str = "python",
    kept_steps: Sequence[int] = (),
    out: Path | None = None,
    cluster_file: Path | None = None,
) -> None:
    """Train, or continue, the run of ``run_file`` by the engine that it names.

    Exits with status 143 after a SIGTERM, with the state saved. verl reads cluster.json beside ``run_file``, and its
    checkpoint is merged into Hugging Face's format.

    Args:
        threads: that torch keeps to; the local engine needs it.
        python: of verl's environment.
        kept_steps: steps after which the checkpoint is kept too.
        out: directory of a run by the local engine; None for that of ``run_file``.
        cluster_file: where verl trains; None for cluster.json beside ``run_file``.
    """
    from rlvr.runs.job import exit_if_interrupted

    content = read_json(run_file)
    with exit_if_interrupted():
        if isinstance(content, dict) and content.get("engine") == VERL:
            from rlvr.engines.verl import train as by_verl

            run, cluster, places = read_verl_run(run_file, cluster_file)
            settings = by_verl.Execution(
                cluster, find_program(python), places.study, REPOSITORY, execution.lock_wait_seconds
            )
            return by_verl.train(run, places.run, settings, kept_steps)
        if threads is None:
            raise UserError("--threads: is missing; accepted: a number, for engine local")
        from evals.generation import arithmetic

        arithmetic.set_up(threads, is_portable(content, execution.device))
        from rlvr.engines.local.train import train

        train(LocalRun.read(run_file), out or run_file.parent, execution, kept_steps)


def is_portable(run: Any, device: str) -> bool:
    """Return whether a run takes the code paths that every processor has, by the content of its run.json.

    Half the precision takes the machine's own, and so does everything that repeats such a run.
    """
    return device == "cpu" and not (isinstance(run, dict) and run.get("dtype") in ("bfloat16", "float16"))


def read_verl_run(run_file: Path, cluster_file: Path | None = None) -> Any:
    """The run by verl, its cluster and its places."""
    from evals.core.run_spec import Cluster, VerlRun
    from rlvr.engines.verl.launch import Places

    directory = run_file.resolve().parent
    if "micro_batch_size" in dict(read_json(run_file)).get("training", {}):
        accepted = f"one of verl; `rlvr-bench train {run_file}` trains it, and with --device-memory sums up its memory"
        raise InvalidInput(str(run_file), "", "is a run of the local engine", accepted)
    run = VerlRun.read(run_file)
    cluster = Cluster.read(cluster_file or directory / "cluster.json")
    state = directory / "state" / "verl"
    return run, cluster, Places(run=directory, study=Path.cwd(), repository=REPOSITORY, state=state)


def find_program(python: str) -> str:
    """The Python of verl's environment; a path is relative to the repository."""
    relative = "/" in python and not Path(python).is_absolute()
    program = shutil.which(REPOSITORY / python if relative else python)
    if program is None:
        raise UserError(f"training_python: {python}: no such program; accepted: Python with verl installed")
    return program
