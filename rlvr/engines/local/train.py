"""Train one run in this process, through any number of interruptions."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd

from evals.core.config.base_models import FINE_TUNED, HUGGING_FACE
from evals.core.files import write_json, write_parquet
from evals.core.manifest import verify_outputs
from evals.core.progress import Progress
from evals.core.run_spec import Execution, LocalRun
from evals.generation import VERSION as SAMPLER_VERSION
from evals.generation.checkpoint import Checkpoint
from evals.generation.devices import claim_one
from evals.grading import INTEGER_VERSION as GRADER_VERSION
from evals.grading import GradingPool
from rlvr.engines import option_versions
from rlvr.engines.local import VERSION
from rlvr.engines.local.contrast import ContrastLearner
from rlvr.engines.local.learner import Learner, PreparedStep
from rlvr.engines.local.memory import check_memory, largest_passes
from rlvr.engines.local.run import require_same_step
from rlvr.engines.result import (
    Training,
    checkpoint_directory,
    copied_inputs,
    is_finished,
    lacking_checkpoints,
    repeat_result,
    write_result,
)
from rlvr.engines.rollouts import StepRollouts, is_kept, keep_rollouts
from rlvr.runs.job import Interrupted, remove_metrics_so_far, save_when_due, termination, write_metrics_so_far
from rlvr.runs.state import StateStore, save_trained

_WEIGHTS = ".safetensors"
_SECONDS_SHOWN = 2.0
"""The least number of seconds between two writings of the metrics so far: one takes 3 % of a small model's step."""


def train(run: LocalRun, directory: Path, execution: Execution, checkpoints_at: Sequence[int] = ()) -> None:
    """Carry out ``run`` and leave checkpoint/, metrics.parquet and manifest.json in ``directory``.

    A run that was killed at any moment continues from its last state when it is started again, and ends with the same
    bytes; on SIGTERM the state is saved first. The policy is kept after the steps ``checkpoints_at`` as well (see
    :mod:`rlvr.engines.result`). One that the run has already passed is made by repeating the run up to it, from the
    nearest state that is still kept or from the start; what the run wrote down of the repeated steps is held against
    them. Rollouts are kept of the steps that are done (see :mod:`rlvr.engines.rollouts`); none is repeated for them.
    """
    base = verify_outputs(run.base / "manifest.json", "base_model")
    # Of a model that the study made, the weights stand for the rest; somebody else's may change its tokenizer alone.
    whole = base.parameters.get("source") in (HUGGING_FACE, FINE_TUNED)
    read = [name for name in base.outputs if name.startswith("checkpoint/") and (whole or name.endswith(_WEIGHTS))]
    inputs = {str(run.base / name): base.outputs[name] for name in read}
    for problems in (run.problems, *([run.validation.problems] if run.validation else [])):
        outputs = verify_outputs(problems / "manifest.json", "problems").outputs
        inputs[str(problems / "problems.jsonl")] = outputs["problems.jsonl"]
    inputs |= copied_inputs(run)
    versions = {"engine": VERSION, "sampler": SAMPLER_VERSION, "grader": GRADER_VERSION}
    training = Training(run, inputs, versions | option_versions(run.training))
    store = StateStore(directory / "state", training.fingerprint)
    with store.single_writer(execution.lock_wait_seconds):
        lacking = lacking_checkpoints(directory, training, checkpoints_at)
        if lacking or not is_finished(directory, training):
            claim_one(execution.device)
            kind = ContrastLearner if run.contrast else Learner
            learner = kind(run, execution.device, execution.gradient_checkpointing)
            if execution.rollouts_kept_every is not None:
                learner.keep = partial(_keep_rollouts, training, directory, learner, execution.rollouts_kept_every)
            _Attempt(training, directory, learner, store, lacking).finish(execution)
        remove_metrics_so_far(directory)


def _keep_rollouts(training: Training, directory: Path, learner: Learner, every: int, prepared: PreparedStep) -> None:
    """Write the rollouts of the step that ``learner`` has just done, if they are to be kept."""
    run, step = training.run.run, learner.position.step
    if is_kept(step, every):
        rollouts = StepRollouts(run, step, prepared.problems, prepared.rewards, prepared.batch, prepared.weights)
        keep_rollouts(directory, training.fingerprint, rollouts, learner.token_text)


@dataclass
class _Attempt:
    """One process's work on a run."""

    training: Training
    directory: Path
    learner: Learner  # at the start of the run
    store: StateStore
    lacking: Sequence[int]  # steps whose policies are asked for and not there
    started: float = field(default_factory=time.monotonic)

    def finish(self, execution: Execution) -> None:
        """Do all steps that are not done yet, and write the result."""
        run, learner = self.training.run, self.learner
        newest = self.store.latest()
        if newest is None:
            base = Checkpoint(run.base / "checkpoint")
            check_memory(run.run, base, execution.device, largest_passes(learner))
        grading = GradingPool(execution.grading_workers, verifier=run.verifier_file)
        with grading as pool, termination() as asked_to_stop:
            passed = [step for step in self.lacking if newest is not None and step < newest.step]
            if newest is not None and passed:
                if (earlier := self.store.latest(at_most=passed[0])) is not None:
                    learner.restore(earlier)
                learner.validate(pool)
                done = learner.position.step
                if done < passed[-1]:
                    print(f"{run.run}: repeats steps {done + 1} to {passed[-1]}, to keep policies of them", flush=True)
                self._keep_policy()
                while learner.position.step < passed[-1]:
                    row = self._step(pool)
                    require_same_step(run.run, row, newest.values["metrics"][learner.position.step - 1])
                    if asked_to_stop():
                        raise Interrupted(f"{run.run}: stopped while it repeated step {learner.position.step}")
            if newest is not None:
                learner.restore(newest)
                newest = None  # its tensors need no longer be held
                print(f"{run.run}: continues after step {learner.position.step} of {run.training.steps}", flush=True)
                self._keep_policy()
            learner.validate(pool)
            position = learner.position
            progress = Progress(self.directory, run.run, run.training.steps, position.step)
            write_metrics_so_far(self.directory, self.training.parameters, pd.DataFrame(position.metrics))
            shown = time.monotonic()
            while position.step < self._last_step():
                row = self._step(pool)
                if asked_to_stop() or time.monotonic() > shown + _SECONDS_SHOWN:
                    write_metrics_so_far(self.directory, self.training.parameters, pd.DataFrame(position.metrics))
                    shown = time.monotonic()
                progress.report(position.step, reward_mean=row["reward_mean"])
                last, interval = self._last_step(), execution.checkpoint_interval
                save = partial(learner.save, self.store, position.step == last)
                save_when_due(position.step, last, interval, asked_to_stop, save, run.run)
            if position.step < run.training.steps:
                print(f"{run.run}: {run.training.stopped_after(position.step)}", flush=True)
        if not is_finished(self.directory, self.training):
            self._write(self.training, self.directory)
            self.store.link_to_checkpoint()
        for step in self.lacking:
            if step > learner.position.step:  # the run stopped before
                repeat_result(self.directory, self.training, step)

    def _step(self, pool: GradingPool) -> dict[str, float]:
        row = self.learner.step(pool)
        self.learner.position.metrics.append(row)
        self.learner.validate(pool)
        self._keep_policy()
        return row

    def _last_step(self) -> int:
        """The step with which the run ends, as far as the steps so far tell."""
        return self.training.run.training.last_step([row["reward_mean"] for row in self.learner.position.metrics])

    def _keep_policy(self) -> None:
        """Write the policy after the present step, if it is asked for and not there."""
        step = self.learner.position.step
        if step in self.lacking:
            shorter, kept_in = self.training.after(step), checkpoint_directory(self.directory, step)
            write_json(kept_in / "run.json", shorter.run.to_json())
            self._write(shorter, kept_in)

    def _write(self, training: Training, directory: Path) -> None:
        """Write the present policy and the metrics so far as the result of ``training``."""
        files = save_trained(self.learner.model.weights(), training.run.base / "checkpoint", directory / "checkpoint")
        if self.learner.run.validation is not None:
            scores = directory / "validation.parquet"
            write_parquet(scores, pd.DataFrame(self.learner.position.validation))
            files = [*files, scores]
        metrics, seconds = pd.DataFrame(self.learner.position.metrics), time.monotonic() - self.started
        learner = self.learner
        taken = {"seconds_last_process": seconds, "cpu_seconds_last_process": sum(os.times()[:4])}
        write_result(directory, training, files, metrics, learner.position.step, **taken, **learner.details)
