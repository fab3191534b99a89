"""Train one run by verl until its last step is saved, merge it, and leave what the local engine leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.errors import UserError
from evals.core.files import fingerprint, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.run_spec import Cluster, VerlRun
from evals.core.single_writer import single_writer
from evals.grading import VERSION as GRADER_VERSION
from rlvr.engines.verl import PINNED, VERSION
from rlvr.engines.verl.checkpoints import prepare_resume, remove_old
from rlvr.engines.verl.checks import check
from rlvr.engines.verl.display import Display, keep_metrics, metrics_files
from rlvr.engines.verl.launch import Places, launch
from rlvr.engines.verl.leftovers import end_leftovers
from rlvr.engines.verl.machine import require_machine
from rlvr.engines.verl.merge import merge
from rlvr.engines.verl.metrics import read_metrics
from rlvr.engines.verl.prompts import write_prompts
from rlvr.engines.verl.worker_log import RAY_TIMED_OUT, ended, last_words
from rlvr.runs.progress import remove_metrics_so_far
from rlvr.runs.source_hash import source_hashes
from rlvr.runs.termination import Interrupted, termination

_LOOK_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Execution:
    """How a run is carried out; nothing here changes its numbers.

    Attributes:
        cluster: cluster.json.
        python: of the environment that verl is installed in.
        study: the directory that the study works in.
        repository: where our packages are.
        lock_wait_seconds: how long to wait for another process that trains this run.
    """

    cluster: Cluster
    python: str
    study: Path
    repository: Path
    lock_wait_seconds: float


def train(run: VerlRun, directory: Path, execution: Execution) -> None:
    """Carry out ``run`` and leave checkpoint/, metrics.parquet and manifest.json in ``directory``.

    Started again it continues from the newest intact state, and a finished training is not started again.

    Raises:
        UserError: an input is missing or damaged, the launch is not accepted, verl ended before the last step, or the
            merged checkpoint is not the trainer's model.
        Interrupted: on SIGTERM.
    """
    base = verify_outputs(execution.study / run.base / "manifest.json", "base_model")
    problems = verify_outputs(execution.study / run.problems / "manifest.json", "problems")
    check(run, execution.cluster, execution.study / run.base / "checkpoint")
    inputs = {
        **{str(run.base / name): digest for name, digest in base.outputs.items() if name.startswith("checkpoint/")},
        str(run.problems / "problems.jsonl"): problems.outputs["problems.jsonl"],
    }
    parameters = {**run.parameters(), "versions": {"engine": VERSION, "verl": PINNED, "grader": GRADER_VERSION}}
    identity = fingerprint({"parameters": parameters, "inputs": list(inputs.values())})
    state = directory / "state" / identity[:16]
    places = Places(run=directory, study=execution.study, repository=execution.repository, state=state)
    started = time.monotonic()
    with single_writer(directory / "state", "trains this run", execution.lock_wait_seconds):
        if left := end_leftovers(directory / "run.json"):
            print(f"{run.run}: ended {left} processes that an earlier attempt had left", flush=True)
        step = prepare_resume(state)
        if step < run.training.steps:
            require_machine(execution.cluster)
            remove_old(state, execution.cluster.checkpoints_kept)
            if step:
                print(f"{run.run}: continues after step {step} of {run.training.steps}", flush=True)
            write_prompts(execution.study / run.problems, run.prompt, places.prompts)
            end = _run_verl(run, places, execution, Display(run, places, parameters, step))
            step = prepare_resume(state)
            if step != run.training.steps:
                raise UserError(f"{run.run}: verl ended with step {step} saved, of {run.training.steps}: {end}")
        saved, checkpoint = state / f"global_step_{step}", directory / "checkpoint"
        difference = merge(saved, places, execution.python, run.dtype)
        metrics = _whole_metrics(run, places)
        write_parquet(directory / "metrics.parquet", metrics)
        files = sorted(path for path in checkpoint.iterdir() if path.is_file())
        Manifest(
            kind="run",
            inputs=inputs,
            outputs=hash_files(directory, *files, directory / "metrics.parquet"),
            parameters=parameters,
            fingerprint=identity,
            details={
                "steps": step,
                "optimizer_steps": step * run.training.updates_per_step,
                "tokens_generated": int(metrics["tokens_generated"].sum()),
                "seconds_steps": float(metrics["seconds_step"].sum()),
                "seconds_last_process": time.monotonic() - started,
                "devices": execution.cluster.devices,
                "merged_log_prob_difference": difference,
                "source": source_hashes(),
            },
        ).write(directory / "manifest.json")
        remove_metrics_so_far(directory)


def _run_verl(run: VerlRun, places: Places, execution: Execution, display: Display) -> str:
    """Start verl, a second time if Ray did not come up in its time, and wait for it; how it ended, in one line."""
    end = _start_verl(run, places, execution, display)
    if RAY_TIMED_OUT in end:
        print(f"{run.run}: {end}; verl is started once more", flush=True)
        end = _start_verl(run, places, execution, display)
    return end


def _start_verl(run: VerlRun, places: Places, execution: Execution, display: Display) -> str:
    """Start verl and wait for it; how it ended, in one line. Its output goes to a log that is kept over attempts."""
    started = launch(run, execution.cluster, places)
    places.state.mkdir(parents=True, exist_ok=True)
    keep_metrics(places)
    log = places.log
    words = [execution.python, *started.words[1:]]
    written = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output, termination() as asked_to_stop:
        process = subprocess.Popen(
            words,
            cwd=log.parent,
            env={**os.environ, **started.environment, "PATH": _path_of(execution.python)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                if asked_to_stop():
                    raise Interrupted(f"{run.run}: stopped; it continues from the state that was saved last")
                display.look()
                time.sleep(_LOOK_SECONDS)
        finally:
            _end(process)
            end_leftovers(places.run / "run.json")
    display.look()
    with log.open("rb") as output:
        output.seek(written)
        said = last_words(output.read().decode(errors="replace"))
    return f"{said or ended(process.returncode)} ({log})"


def _whole_metrics(run: VerlRun, places: Places) -> pd.DataFrame:
    """The metrics of all attempts.

    verl saves a state before it logs the step: an attempt that is killed in between leaves that step's out.

    Raises:
        UserError: more are missing than that explains.
    """
    files = metrics_files(places)
    metrics = read_metrics(files, run.training.updates_per_step)
    there = set() if metrics.empty else set(metrics["step"])
    missing = [step for step in range(1, run.training.steps + 1) if step not in there]
    if metrics.empty or len(missing) > len(files):
        raise UserError(f"{places.metrics.parent}: metrics of {len(metrics)} steps of {run.training.steps}")
    for step in missing:
        print(f"{run.run}: no metrics of step {step}: verl was killed after it had saved that step", flush=True)
    return metrics


def _path_of(python: str) -> str:
    """PATH with the directory of ``python`` first: Ray and vLLM start programs of that environment."""
    return os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])


def _end(process: subprocess.Popen[Any]) -> None:
    """End verl and every process that it started and that is still in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            print("verl does not end; it is killed", file=sys.stderr, flush=True)
