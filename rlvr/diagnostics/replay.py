"""Run a training again in memory, and keep what its steps look like from inside.

A run is a function of its run.json, its base model and its problems, so it need not have recorded anything: it is
replayed, and every replayed step has to have the metrics that the run wrote down. Nothing of the run is touched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_file, write_jsonl, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.run_spec import LocalRun
from evals.grading import GradingPool
from rlvr.diagnostics import VERSION
from rlvr.diagnostics.moment import moment_directory
from rlvr.diagnostics.token_table import StepRecord, token_rows
from rlvr.engines.local.learner import HiddenStateBudget, Learner, PreparedStep
from rlvr.engines.local.policy import score_in_chunks, unpack
from rlvr.runs.progress import Progress
from rlvr.runs.state import save_tensors

_COMPARED = ("reward_mean", "response_length_mean", "entropy", "loss", "grad_norm", "tokens_generated")
_TOLERANCE = 1e-4
"""Largest relative difference of a metric. The same number of threads on the same machine gives 0."""


@dataclass
class _UpdateLog:
    """What the optimizer steps of one rollout step saw; [B, T]."""

    log_probs: Tensor
    slopes: Tensor

    def __call__(self, rows: Tensor, log_probs: Tensor, slopes: Tensor) -> None:
        """Note one micro-batch."""
        width = log_probs.shape[1]
        self.log_probs[rows, :width] = log_probs
        self.slopes[rows, :width] = slopes


@dataclass(frozen=True)
class ReplayedStep:
    """One step of the replay.

    Attributes:
        step: 1 for the first.
        prepared: before its optimizer steps.
        weights_before: the model's parameters then.
        problems: id of each rollout's problem.
        record: what the optimizer steps did.
        metrics: of the step.
    """

    step: int
    prepared: PreparedStep
    weights_before: dict[str, Tensor]
    problems: list[str]
    record: StepRecord
    metrics: dict[str, float] = field(default_factory=dict)


def write_token_table(run_file: Path, out: Path, steps: Sequence[int], device: str, grading_workers: int) -> None:
    """Write ``tokens.parquet``, a moment for each of ``steps`` and ``manifest.json`` to ``out``.

    Args:
        run_file: the run's run.json; its manifest.json and metrics.parquet lie beside it.
        out: a directory of its own.
        steps: which rollout steps, from 1.
        device: "cpu" or "cuda", that of the run.
        grading_workers: processes for answers that need symbolic comparison.

    Raises:
        UserError: a step that the run does not have, an input that is missing or damaged, or a replay that is not the
            run.
    """
    run = LocalRun.read(run_file)
    wanted = sorted(set(steps))
    if not wanted or wanted[0] < 1 or wanted[-1] > run.training.steps:
        raise UserError(f"--steps: are {wanted}; accepted: 1 to {run.training.steps}, the steps of {run.run}")
    recorded = verify_outputs(run_file.parent / "manifest.json", "run")
    verify_outputs(run.base / "manifest.json", "base_model")
    verify_outputs(run.problems / "manifest.json", "problems")
    metrics = pd.read_parquet(run_file.parent / "metrics.parquet")
    tables, files = [], []
    progress = Progress(out, f"tokens of {run.run}", wanted[-1], 0)
    with tempfile.TemporaryDirectory() as scratch:
        learner = Learner(run, device, HiddenStateBudget(1 << 32, Path(scratch)))
        texts = {number: learner.tokenizer.decode([number]) for number in range(len(learner.tokenizer))}
        for replayed in replay(learner, wanted, grading_workers):
            _check_replay(run.run, replayed, metrics)
            progress.report(replayed.step)
            if replayed.step in wanted:
                tables.append(
                    token_rows(run.run, replayed.step, replayed.prepared, replayed.problems, texts, replayed.record)
                )
                files += _write_moment(moment_directory(out, replayed.step), replayed)
    write_parquet(out / "tokens.parquet", pd.concat(tables, ignore_index=True))
    parameters = {"run": run.parameters(), "steps": wanted, "version": VERSION}
    Manifest(
        kind="token_table",
        inputs={str(run_file.parent / "manifest.json"): sha256_file(run_file.parent / "manifest.json")},
        outputs=hash_files(out, out / "tokens.parquet", *files),
        parameters=parameters,
        fingerprint=fingerprint({"parameters": parameters, "run": recorded.fingerprint}),
        details={"rows": sum(map(len, tables)), "replayed_steps": wanted[-1]},
    ).write(out / "manifest.json")


def replay(learner: Learner, wanted: Sequence[int], grading_workers: int = 1) -> Iterator[ReplayedStep]:
    """The learner's steps up to the last one wanted; records and weights are kept of the wanted ones alone."""
    with GradingPool(workers=grading_workers) as pool:
        while learner.position.step < max(wanted):
            step, first_prompt = learner.position.step + 1, learner.position.prompts_used
            prepared = learner.prepare(pool)
            kept = step in wanted
            before = {name: value.detach().clone() for name, value in learner.model.named_parameters()} if kept else {}
            old = prepared.batch.old_log_probs
            log = _UpdateLog(torch.full_like(old, torch.nan), torch.full_like(old, torch.nan))
            learner.updater.observer = log if kept else None
            metrics = learner.update(prepared)
            learner.position.metrics.append(metrics)
            record = StepRecord(_scored(learner, prepared) if kept else old, log.log_probs, log.slopes)
            yield ReplayedStep(step, prepared, before, _problems(learner, prepared, first_prompt), record, metrics)


def _scored(learner: Learner, prepared: PreparedStep) -> Tensor:
    """[B, T] log-probabilities under the learner's present model."""
    training, tokens = learner.run.training, prepared.rollouts.tokens
    packed = score_in_chunks(learner.model, tokens, training.temperature, training.micro_batch_size)[0]
    return unpack(packed, prepared.batch.response_mask)


def _problems(learner: Learner, prepared: PreparedStep, first_prompt: int) -> list[str]:
    """The id of each rollout's problem: groups are numbered in the order that the run takes prompts in."""
    taken = learner.order.take(first_prompt, learner.position.prompts_used - first_prompt)
    return [taken[group]["id"] for group in prepared.batch.group_ids.tolist()]


def _check_replay(run: str, replayed: ReplayedStep, metrics: pd.DataFrame) -> None:
    """Raise UserError if a replayed step's metrics are not those that the run wrote down."""
    row = metrics[metrics["step"] == replayed.step].iloc[0]
    for name in _COMPARED:
        found, expected = replayed.metrics[name], float(row[name])
        if abs(found - expected) > _TOLERANCE * max(1.0, abs(expected)):
            raise UserError(
                f"{run}: step {replayed.step} has {name} {found:.6g} when replayed and {expected:.6g} in its "
                "metrics.parquet; use the run's number of threads and device, and code of its versions"
            )


def _write_moment(directory: Path, replayed: ReplayedStep) -> list[Path]:
    """Weights before the step and its rollouts; returns the files."""
    prepared, tokens = replayed.prepared, replayed.prepared.rollouts.tokens
    save_tensors(directory / "weights.safetensors", replayed.weights_before)
    rows = zip(replayed.problems, prepared.batch.group_ids.tolist(), tokens.prompts, tokens.responses, strict=True)
    write_jsonl(
        directory / "rollouts.jsonl",
        [
            {"problem": problem, "group": group, "prompt": list(prompt), "response": list(response)}
            for problem, group, prompt, response in rows
        ],
    )
    return [directory / "weights.safetensors", directory / "rollouts.jsonl"]
