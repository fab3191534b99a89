"""Train one resolved run: roll out, reward, weigh, update, until the planned number of steps is done."""

from __future__ import annotations

import math
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from evals.artifacts import fingerprint, read_jsonl, sha256_file, write_parquet
from evals.errors import UserError
from evals.generation import VERSION as SAMPLER_VERSION
from evals.generation.checkpoint import load_tokenizer
from evals.generation.qwen3 import Qwen3Config, Qwen3Decoder
from evals.generation.sampler import SamplingParameters
from evals.grading import VERSION as GRADER_VERSION
from evals.grading import GradingPool
from evals.manifest import Manifest, hash_files, verify_outputs
from rlvr.checkpoint import save_checkpoint
from rlvr.engines.local import VERSION
from rlvr.engines.local.policy import score_in_chunks, unpack
from rlvr.engines.local.resolved_run import ResolvedRun
from rlvr.engines.local.rollout import PromptOrder, Rollouts, generator_for, reward, roll_out
from rlvr.engines.local.update import Updater
from rlvr.methods.method import Method, compose
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.progress import Progress
from rlvr.run_state import StateStore, optimizer_tensors, restore_optimizer_tensors
from rlvr.source_hash import source_hashes


@dataclass(frozen=True)
class Execution:
    """How a run is carried out; nothing here changes its numbers.

    Attributes:
        device: "cpu" or "cuda".
        checkpoint_interval: steps between saved states.
        lock_wait_seconds: how long to wait for another process that trains this run.
        grading_workers: processes for answers that need symbolic comparison.
    """

    device: str = "cpu"
    checkpoint_interval: int = 10
    lock_wait_seconds: float = 600.0
    grading_workers: int = 1


class Interrupted(Exception):
    """The run was asked to stop, and its state is saved."""


def train(run: ResolvedRun, directory: Path, execution: Execution) -> None:
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
    versions = {"engine": VERSION, "sampler": SAMPLER_VERSION, "grader": GRADER_VERSION}
    identity = fingerprint(
        {
            "run": run.parameters(),
            "base": base.outputs["checkpoint/model.safetensors"],
            "problems": problems.outputs["problems.jsonl"],
            "versions": versions,
        }
    )
    started = time.monotonic()
    store = StateStore(directory / "state", identity)
    with store.single_writer(execution.lock_wait_seconds):
        trainer = _Trainer(run, execution)
        trainer.restore(store)
        trainer.run_steps(store, Progress(directory, run.run, run.training.steps, trainer.position.step))
        files = save_checkpoint(trainer.model, trainer.hf_tokenizer, directory / "checkpoint")
        metrics = pd.DataFrame(trainer.position.metrics)
        write_parquet(directory / "metrics.parquet", metrics)
        Manifest(
            kind="run",
            inputs={
                str(run.base / "checkpoint/model.safetensors"): base.outputs["checkpoint/model.safetensors"],
                str(run.problems / "problems.jsonl"): problems.outputs["problems.jsonl"],
            },
            outputs=hash_files(directory, *files, directory / "metrics.parquet"),
            parameters={**run.parameters(), "versions": versions},
            fingerprint=identity,
            details={
                "steps": trainer.position.step,
                "optimizer_steps": int(metrics["optimizer_steps"].sum()),
                "tokens_generated": int(metrics["tokens_generated"].sum()),
                "seconds_training": float(metrics["seconds_step"].sum()),
                "seconds_last_process": time.monotonic() - started,
                "source": source_hashes(),
            },
        ).write(directory / "manifest.json")


@dataclass
class _Position:
    """Where a run is; saved with the model and the optimizer."""

    step: int = 0
    prompts_used: int = 0
    updates: int = 0
    metrics: list[dict[str, float]] = field(default_factory=list)


class _Trainer:
    """The mutable half of a run: model, optimizer and position."""

    def __init__(self, run: ResolvedRun, execution: Execution) -> None:
        checkpoint = run.base / "checkpoint"
        self.run = run
        self.execution = execution
        self.position = _Position()
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self.model.to(execution.device)  # type: ignore[arg-type]
        self.hf_tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(checkpoint)
        self._tokenizer = load_tokenizer(checkpoint)
        self._decoder_config = Qwen3Config.from_json(self.model.config.to_dict(), str(checkpoint))
        try:
            self._method: Method = compose(run.method)
        except ValueError as error:
            raise UserError(f"method {run.method_name}: {error}") from error
        training = run.training
        self._order = PromptOrder(
            read_jsonl(run.problems / "problems.jsonl", required=("id", "problem", "answer")), run.seed
        )
        self._sampling = SamplingParameters(
            max_new_tokens=training.max_new_tokens,
            temperature=training.temperature,
            batch_size=training.sampling_batch_size,
        )
        self._updater = Updater(
            self.model,
            self._method.loss,
            training.learning_rate,
            training.warmup_updates,
            training.weight_decay,
            training.gradient_clip,
            training.micro_batch_size,
            training.temperature,
        )

    def restore(self, store: StateStore) -> None:
        """Continue from the newest undamaged state, if there is one."""
        found = store.latest()
        if found is None:
            return
        step, tensors, values = found
        self.model.load_state_dict({name: tensors[f"model.{name}"] for name in dict(self.model.named_parameters())}, strict=False)
        optimizer = self._updater.optimizer
        optimizer.load_state_dict(restore_optimizer_tensors(optimizer.state_dict(), tensors))
        self.position = _Position(step, values["prompts_used"], values["updates"], values["metrics"])
        print(f"{self.run.run}: continues after step {step} of {self.run.training.steps}", flush=True)

    def _save(self, store: StateStore) -> None:
        position = self.position
        tensors = {f"model.{name}": tensor for name, tensor in self.model.named_parameters()}
        values = {"prompts_used": position.prompts_used, "updates": position.updates, "metrics": position.metrics}
        store.save(position.step, tensors | optimizer_tensors(self._updater.optimizer.state_dict()), values)

    def run_steps(self, store: StateStore, progress: Progress) -> None:
        """All steps that are not done yet.

        Raises:
            Interrupted: on SIGTERM, after the state is saved.
        """
        interval = self.execution.checkpoint_interval
        with GradingPool(workers=self.execution.grading_workers) as pool, _termination() as terminated:
            while self.position.step < self.run.training.steps:
                row = self._step(pool)
                self.position.metrics.append(row)
                progress.report(self.position.step, reward=row["reward_mean"])
                last = self.position.step == self.run.training.steps
                if last or terminated() or self.position.step % interval == 0:
                    self._save(store)
                if terminated() and not last:
                    raise Interrupted(f"{self.run.run}: stopped after step {self.position.step}; its state is saved")

    def _step(self, pool: GradingPool) -> dict[str, float]:
        """One rollout batch and its optimizer steps; returns the step's metrics."""
        training, method, position = self.run.training, self._method, self.position
        clock = _Clock()
        sampled = self._sample(pool, clock)
        rollouts, rewards, advantages = sampled.rollouts, sampled.rewards, sampled.advantages
        mini_batches = method.assignment(
            rewards,
            rollouts.group_ids,
            rollouts.lengths,
            training.updates_per_step,
            generator_for("mini_batches", self.run.seed, position.step),
        )
        with clock.time("log_probs"):
            log_probs, entropies, hidden_states = score_in_chunks(
                self.model, rollouts.tokens, training.temperature, training.micro_batch_size, method.needs_hidden_states
            )
        mask = rollouts.tokens.response_mask
        old_log_probs = unpack(log_probs.cpu(), mask)
        with clock.time("token_weights"):
            weights, weight_metrics = self._weigh(
                RolloutBatch(
                    advantages=advantages,
                    old_log_probs=old_log_probs,
                    entropies=unpack(entropies.cpu(), mask),
                    response_mask=mask,
                    mini_batch_ids=_mini_batch_ids(mini_batches, len(rewards)),
                    group_ids=rollouts.group_ids,
                    hidden_states=hidden_states,
                )
            )
        with clock.time("update"):
            device = self.model.device
            update_metrics = self._updater.update(
                rollouts.tokens,
                old_log_probs.to(device),
                (advantages[:, None] * weights).to(device),
                rollouts.group_ids.to(device),
                mini_batches,
                position.updates,
            )
        position.step += 1
        position.updates += len(mini_batches)
        return {
            "step": position.step,
            **_reward_metrics(rollouts, rewards),
            "entropy": float(entropies.mean()),
            **update_metrics,
            **weight_metrics,
            "tokens_generated": sampled.tokens_generated,
            "optimizer_steps": len(mini_batches),
            "prompts_sampled": sampled.prompts,
            "rollouts_discarded_fraction": sampled.discarded_fraction,
            **clock.metrics(),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def _sample(self, pool: GradingPool, clock: _Clock) -> _Sampled:
        """Sample prompts, and more of them for as long as the method's selection asks for more."""
        training, position = self.run.training, self.position
        decoder = Qwen3Decoder(self._decoder_config, {n: p.detach() for n, p in self.model.named_parameters()})
        parts: list[Rollouts] = []
        reward_parts: list[Tensor] = []
        while True:
            first_group = len(parts) * training.prompts_per_step
            with clock.time("rollout"):
                part = roll_out(
                    decoder,
                    self._tokenizer,
                    self._order.take(position.prompts_used, training.prompts_per_step),
                    self.run.prompt,
                    training.samples_per_prompt,
                    self._sampling,
                    self.hf_tokenizer.eos_token_id,
                    f"rollout/{self.run.seed}/{position.step}",
                    first_group,
                )
            position.prompts_used += training.prompts_per_step
            with clock.time("reward"):
                reward_parts.append(reward(part, pool))
            parts.append(part)
            rollouts, rewards = Rollouts.join(parts), torch.cat(reward_parts)
            tokens_generated, prompts = int(rollouts.lengths.sum()), len(parts) * training.prompts_per_step
            # Advantages are of whole groups, hence computed before anything is dropped.
            advantages = self._method.advantage(rewards, rollouts.group_ids, rollouts.lengths)
            if self._method.selection is None:
                return _Sampled(rollouts, rewards, advantages, tokens_generated, prompts, 0.0)
            selection = self._method.selection(
                rewards,
                rollouts.group_ids,
                training.rollouts_per_step,
                self._method.assignment.keeps_groups,
                len(parts),
                generator_for("selection", self.run.seed, position.step, len(parts)),
            )
            if selection is not None:
                chosen = selection.indices
                return _Sampled(
                    rollouts.select(chosen),
                    rewards[chosen],
                    advantages[chosen],
                    tokens_generated,
                    prompts,
                    selection.discarded_fraction,
                )

    def _weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """The method's token weights, or ones, with the metrics that every weighting has in common."""
        if self._method.token_weights is None:
            return batch.response_mask.float(), {}
        weights, metrics = self._method.token_weights(batch)
        weights = weights.cpu()
        valid = weights[batch.response_mask]
        low, high = valid.quantile(torch.tensor([0.05, 0.95])).tolist()
        common = {"token_weight_mean": float(valid.mean()), "token_weight_p05": low, "token_weight_p95": high}
        return weights, {**common, **metrics}


@dataclass(frozen=True)
class _Sampled:
    """The rollout batch of a step, and what it took to get it."""

    rollouts: Rollouts
    rewards: Tensor
    advantages: Tensor
    tokens_generated: int
    prompts: int
    discarded_fraction: float


class _Clock:
    """Seconds spent in the parts of a step."""

    PARTS = ("rollout", "reward", "log_probs", "token_weights", "update")

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._seconds = dict.fromkeys(self.PARTS, 0.0)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the seconds of the block to ``part``."""
        started = time.monotonic()
        yield
        self._seconds[part] += time.monotonic() - started

    def metrics(self) -> dict[str, float]:
        """Seconds by part, and of the step so far."""
        parts = {f"seconds_{part}": seconds for part, seconds in self._seconds.items()}
        return {**parts, "seconds_step": time.monotonic() - self._started}


def _reward_metrics(rollouts: Rollouts, rewards: Tensor) -> dict[str, float]:
    """Reward, length and truncation of a rollout batch."""
    groups = rollouts.group_ids.unique(return_inverse=True)[1]
    sizes = torch.bincount(groups)
    means = torch.zeros(len(sizes)).scatter_add_(0, groups, rewards) / sizes
    return {
        "reward_mean": float(rewards.mean()),
        "response_length_mean": float(rollouts.lengths.float().mean()),
        "truncation_rate": sum(rollouts.truncated) / len(rollouts.truncated),
        "groups_mixed_fraction": float(((means > 0) & (means < 1)).float().mean()),
    }


def _mini_batch_ids(mini_batches: list[Tensor], rollouts: int) -> Tensor:
    """[B] the mini-batch that each rollout belongs to."""
    ids = torch.full((rollouts,), -1)
    for number, indices in enumerate(mini_batches):
        ids[indices] = number
    return ids


@contextmanager
def _termination() -> Iterator[Any]:
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
