"""Train one resolved run until the planned number of steps is done, whatever happens to the process meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import torch

from evals.core.errors import UserError
from evals.core.files import fingerprint, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.run_spec import Execution, LocalRun
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading import GradingPool
from rlvr.checkpoint import save_checkpoint
from rlvr.engines.local import VERSION
from rlvr.engines.local.learner import HiddenStateBudget, Learner
from rlvr.metrics_so_far import remove_metrics_so_far, write_metrics_so_far
from rlvr.progress import Progress
from rlvr.run_state import StateStore
from rlvr.source_hash import source_hashes

_WEIGHTS = "checkpoint/model.safetensors"


class Interrupted(Exception):
    """The run was asked to stop, and its state is saved."""


def train(run: LocalRun, directory: Path, execution: Execution) -> None:
    """Carry out ``run`` and leave checkpoint/, metrics.parquet and manifest.json in ``directory``.

    Killed at any moment and started again, it continues from its last state and ends with the same bytes.

    Raises:
        UserError: an input is missing or damaged, a method is not accepted, or the directory cannot be written.
        Interrupted: on SIGTERM, after the state is saved.
    """
    if execution.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device: cuda was asked for, but torch sees no GPU; accepted here: cpu")
    base = verify_outputs(run.base / "manifest.json", "base_model")
    problems = verify_outputs(run.problems / "manifest.json", "problems")
    inputs = {
        str(run.base / _WEIGHTS): base.outputs[_WEIGHTS],
        str(run.problems / "problems.jsonl"): problems.outputs["problems.jsonl"],
    }
    versions = {"engine": VERSION, "sampler": SAMPLER_VERSION, "grader": GRADER_VERSION}
    parameters = {**run.parameters(), "versions": versions}
    identity = fingerprint({"parameters": parameters, "inputs": list(inputs.values())})
    started = time.monotonic()
    store = StateStore(directory / "state", identity)
    with store.single_writer(execution.lock_wait_seconds):
        learner = Learner(run, execution.device, HiddenStateBudget(execution.hidden_state_budget << 20, directory))
        learner.restore(store)
        _run_steps(learner, store, directory, execution, parameters)
        files = save_checkpoint(learner.model, learner.tokenizer, directory / "checkpoint")
        metrics = pd.DataFrame(learner.position.metrics)
        write_parquet(directory / "metrics.parquet", metrics)
        Manifest(
            kind="run",
            inputs=inputs,
            outputs=hash_files(directory, *files, directory / "metrics.parquet"),
            parameters=parameters,
            fingerprint=identity,
            details={
                "steps": learner.position.step,
                "optimizer_steps": learner.position.updates,
                "tokens_generated": int(metrics["tokens_generated"].sum()),
                "seconds_steps": float(metrics["seconds_step"].sum()),
                "seconds_last_process": time.monotonic() - started,
                "source": source_hashes(),
            },
        ).write(directory / "manifest.json")
        remove_metrics_so_far(directory)


def _run_steps(
    learner: Learner, store: StateStore, directory: Path, execution: Execution, parameters: Mapping[str, Any]
) -> None:
    """All steps that are not done yet.

    Raises:
        Interrupted: on SIGTERM, after the state is saved.
    """
    run, position = learner.run, learner.position
    progress = Progress(directory, run.run, run.training.steps, position.step)
    write_metrics_so_far(directory, parameters, pd.DataFrame(position.metrics))
    with GradingPool(workers=execution.grading_workers) as pool, _termination() as asked_to_stop:
        while position.step < run.training.steps:
            row = learner.step(pool)
            position.metrics.append(row)
            write_metrics_so_far(directory, parameters, pd.DataFrame(position.metrics))
            progress.report(position.step, reward_mean=row["reward_mean"])
            last = position.step == run.training.steps
            if last or asked_to_stop() or position.step % execution.checkpoint_interval == 0:
                learner.save(store)
            if asked_to_stop() and not last:
                raise Interrupted(f"{run.run}: stopped after step {position.step}; its state is saved")


@contextmanager
def _termination() -> Iterator[Callable[[], bool]]:
    """Note a SIGTERM instead of dying from it; yields a function that says whether one has come."""
    received = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal received
        received = True

    previous = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: received
    finally:
        signal.signal(signal.SIGTERM, previous)
