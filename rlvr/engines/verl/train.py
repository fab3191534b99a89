"""Train one run by verl until its last step is saved, merge it, and leave what the local engine leaves.

States of earlier steps that are wanted are merged on the CPU while verl trains.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_jsonl, replacing, write_json
from evals.core.manifest import verify_outputs
from evals.core.run_spec import Cluster, VerlRun
from evals.core.single_writer import single_writer
from evals.grading import VERSION as GRADER_VERSION
from evals.problems.problem_set import load, render_prompt
from rlvr.engines.result import Training, checkpoint_directory, lacking_checkpoints, repeat_result, write_result
from rlvr.engines.verl import PINNED, VERSION
from rlvr.engines.verl.checkpoints import (
    MANIFEST,
    is_intact,
    keep,
    kept_state,
    merge,
    prepare_resume,
    read_rewards,
    remove_old,
)
from rlvr.engines.verl.checks import check
from rlvr.engines.verl.launch import Places, launch
from rlvr.engines.verl.metrics import Display, keep_metrics, metrics_files, read_metrics
from rlvr.engines.verl.processes import (
    RAY_TIMED_OUT,
    end_processes_of,
    ended,
    last_words,
    on_every_node,
    own_ray_directory,
    require_machine,
)
from rlvr.runs.progress import remove_metrics_so_far
from rlvr.runs.termination import Interrupted, termination

_LOOK_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Execution:
    """The execution of a run by verl; it changes numbers by rounding only."""

    cluster: Cluster
    python: str  # of the environment that verl is installed in
    study: Path  # the directory that the study works in
    repository: Path  # where this project's packages are
    lock_wait_seconds: float  # for another process that trains this run


def train(run: VerlRun, directory: Path, execution: Execution, checkpoints_at: Sequence[int] = ()) -> None:
    """Carry out ``run`` and leave checkpoint/, metrics.parquet and manifest.json in ``directory``.

    Started again it continues from the newest intact state, and a finished training is not started again. The policy is
    kept after the steps ``checkpoints_at`` as well (see :mod:`rlvr.engines.result`), multiples of the cluster's
    checkpoint_interval. verl does not repeat a training bit for bit, so one that the run has passed without keeping it
    is refused.

    Raises:
        Interrupted: on SIGTERM.
    """
    study, cluster = execution.study, execution.cluster
    base = verify_outputs(study / run.base / "manifest.json", "base_model")
    problems = verify_outputs(study / run.problems / "manifest.json", "problems")
    check(run, cluster, study / run.base / "checkpoint")
    inputs = {
        **{str(run.base / name): digest for name, digest in base.outputs.items() if name.startswith("checkpoint/")},
        str(run.problems / "problems.jsonl"): problems.outputs["problems.jsonl"],
    }
    if run.verifier_file is not None:
        copy = verify_outputs(study / run.verifier_file.with_name("manifest.json"), "verifier")
        inputs[str(run.verifier_file)] = copy.outputs[run.verifier_file.name]
    training = Training(run, inputs, {"engine": VERSION, "verl": PINNED, "grader": GRADER_VERSION})
    state = directory / "state" / training.fingerprint[:16]
    places = Places(run=directory, study=study, repository=execution.repository, state=state)
    started = time.monotonic()
    with single_writer(directory / "state", "trains this run", execution.lock_wait_seconds):
        if found := end_processes_of(directory / "run.json"):
            print(f"{run.run}: ended {found} processes that an earlier attempt had left", flush=True)
        lacking = lacking_checkpoints(directory, training, checkpoints_at)
        for done in set(checkpoints_at) - set(lacking):
            shutil.rmtree(kept_state(state, done), ignore_errors=True)  # after a kill that came before it was removed
        step = prepare_resume(state)
        _require_kept(run, cluster, state, step, lacking)

        def last_step(saved: int) -> int:
            """The step with which the run ends, as far as the rewards of the ``saved`` ones tell."""
            return run.training.last_step(read_rewards(state, saved))

        def write(result: Training, shards: Path, place: Path, metrics: pd.DataFrame, steps: int) -> None:
            """Make the policy of the ``shards``, those after so many ``steps``."""
            difference = merge(run, shards, place / "checkpoint", places, execution.python)
            write_result(
                place,
                result,
                sorted(path for path in (place / "checkpoint").iterdir() if path.is_file()),
                metrics[metrics["step"] <= steps],
                steps,
                optimizer_steps=steps * run.training.updates_per_step,
                seconds_last_process=time.monotonic() - started,
                devices=cluster.devices,
                merged_log_prob_difference=difference,
            )

        def write_kept(earlier: int) -> None:
            shorter, place = training.after(earlier), checkpoint_directory(directory, earlier)
            write_json(place / "run.json", shorter.run.to_json())
            metrics = read_metrics(metrics_files(places), run.training.updates_per_step)
            write(shorter, kept_state(state, earlier), place, metrics, earlier)
            shutil.rmtree(kept_state(state, earlier))  # twice the size of what was made of it

        merges = Merges(lacking, state, write_kept)
        if step < last_step(step):
            require_machine(cluster)
            remove_old(state, cluster.checkpoints_kept)
            if step:
                print(f"{run.run}: continues after step {step} of {run.training.steps}", flush=True)
            _write_prompts(study / run.problems, run.prompt, places.prompts, with_rows=run.verifier is not None)
            if run.verifier_file is not None:
                shutil.copyfile(study / run.verifier_file, places.verifier)
            end = _run_verl(run, places, execution, Display(run, places, training.parameters, step), merges)
            step = prepare_resume(state)
            if step != (last := last_step(step)):
                raise UserError(f"{run.run}: verl ended with step {step} saved, of {last}: {end}")
        if step < run.training.steps:
            print(f"{run.run}: {run.training.stopped_after(step)}", flush=True)
        metrics = _whole_metrics(run, places, step)
        for earlier in [one for one in merges.left if one <= step]:
            write_kept(earlier)
        write(training, state / f"global_step_{step}", directory, metrics, step)
        for later in [one for one in merges.left if one > step]:  # the run stopped before
            repeat_result(directory, training, later)
        remove_metrics_so_far(directory)


def _require_kept(run: VerlRun, cluster: Cluster, state: Path, done: int, wanted: Sequence[int]) -> None:
    """Check that the states of ``wanted`` steps are kept or will be; ``done`` steps are done."""
    for step in wanted:
        if step % cluster.checkpoint_interval:
            accepted = f"by verl: multiples of checkpoint_interval, {cluster.checkpoint_interval}"
            raise InvalidInput(run.run, "checkpoints_at", f"is {step}", accepted)
        saved = state / f"global_step_{step}"
        if step <= done and is_intact(saved):
            keep(saved, step)
        if step <= done and not is_intact(kept_state(state, step)):
            raise UserError(
                f"{run.run}: checkpoints_at: the state after step {step} was not kept, and verl does not repeat a "
                f"training bit for bit; remove {state} to train the run again"
            )


class Merges:
    """The checkpoints of a run's kept states, made while verl trains, one at a time: each takes host memory."""

    def __init__(self, steps: Sequence[int], state: Path, write: Callable[[int], None]) -> None:
        """Expect kept states of these ``steps`` under ``state``; ``write`` makes the checkpoint of one."""
        self.left = list(steps)  # those that are not made yet
        self._begun: set[int] = set()
        self._state, self._write = state, write
        self._thread: Thread | None = None

    @property
    def is_under_way(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin_next(self, done: int) -> None:
        """Begin with the first state that is kept of the ``done`` steps, unless one is under way."""
        if self.is_under_way:
            return
        for step in self.left:
            if step <= done and step not in self._begun and (kept_state(self._state, step) / MANIFEST).exists():
                self._begun.add(step)
                self._thread = Thread(target=self._make, args=(step,))
                self._thread.start()
                return

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _make(self, step: int) -> None:
        """Make one; verl trains on if that fails, and it is tried again in the end."""
        try:
            self._write(step)
        except (UserError, OSError) as error:
            print(f"step {step} is not merged yet: {error}", flush=True)
        else:
            self.left.remove(step)


def _run_verl(run: VerlRun, places: Places, execution: Execution, display: Display, merges: Merges) -> str:
    """Start verl, a second time if Ray did not come up in its time, and wait for it; how it ended, in one line.

    States that ``merges`` lacks are kept, and merged on the way.
    """
    end = _start_verl(run, places, execution, display, merges)
    if RAY_TIMED_OUT in end:
        print(f"{run.run}: {end}; verl is started once more", flush=True)
        end = _start_verl(run, places, execution, display, merges)
    return end


def _start_verl(run: VerlRun, places: Places, execution: Execution, display: Display, merges: Merges) -> str:
    """Start verl and wait for it; how it ended, in one line. Its output goes to a log that is kept over attempts."""
    started = launch(run, execution.cluster, places, merges.left)
    places.state.mkdir(parents=True, exist_ok=True)
    keep_metrics(places)
    log, python = places.log, execution.python
    # Ray and vLLM start programs of verl's environment.
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])
    written = log.stat().st_size if log.exists() else 0
    on_nodes = on_every_node(execution.cluster, python, os.environ)
    of_ray = own_ray_directory(os.environ, bool(on_nodes))
    with log.open("ab") as output, termination() as asked_to_stop:
        process = subprocess.Popen(
            [*on_nodes, python, *started.words[1:]],
            cwd=log.parent,
            env={**os.environ, **started.environment, **of_ray, "PATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None or merges.is_under_way:
                if asked_to_stop():
                    raise Interrupted(f"{run.run}: stopped; it continues from the state that was saved last")
                display.update()
                if process.poll() is None:
                    merges.begin_next(display.done)
                time.sleep(_LOOK_SECONDS)
        finally:
            _end(process)
            end_processes_of(places.run / "run.json")  # of which a merger is one: nothing is lost by its end
            merges.wait()  # it writes into the run's directory, whose lock is given up after this
    if of_ray and process.returncode == 0:  # else Ray's own logs are of use
        shutil.rmtree(of_ray["RAY_TMPDIR"], ignore_errors=True)
    display.update()
    with log.open("rb") as output:
        output.seek(written)
        said = last_words(output.read().decode(errors="replace"))
    return f"{said or ended(process.returncode)} ({log})"


def _whole_metrics(run: VerlRun, places: Places, steps: int) -> pd.DataFrame:
    """The metrics of all attempts, which have done so many ``steps``.

    verl saves a state before it logs the step: an attempt that is killed in between leaves that step's out.
    """
    files = metrics_files(places)
    metrics = read_metrics(files, run.training.updates_per_step)
    there = set() if metrics.empty else set(metrics["step"])
    missing = [step for step in range(1, steps + 1) if step not in there]
    if metrics.empty or len(missing) > len(files):
        raise UserError(f"{places.metrics.parent}: metrics of {len(metrics)} steps of {steps}")
    for step in missing:
        print(f"{run.run}: no metrics of step {step}: verl was killed after it had saved that step", flush=True)
    return metrics


def _write_prompts(problems: Path, template: str, path: Path, with_rows: bool = False) -> int:
    """Write the problems of the directory ``problems`` in the format that verl reads; returns their number.

    Their truth is the gold answer, or for a verifier (``with_rows``) the JSON of the problem's row.
    """
    rows = load(problems).problems
    truths = [row.answer for row in rows]
    if with_rows:
        truths = [json.dumps(row) for row in read_jsonl(problems / "problems.jsonl")]
    table = pa.table(
        {
            "prompt": [[{"role": "user", "content": render_prompt(template, row.problem)}] for row in rows],
            "data_source": ["rlvr"] * len(rows),
            "reward_model": [{"ground_truth": truth, "style": "rule"} for truth in truths],
            "extra_info": [{"index": number, "id": str(row.id)} for number, row in enumerate(rows)],
        }
    )
    with replacing(path) as temporary:
        parquet.write_table(table, temporary)
    return len(rows)


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
