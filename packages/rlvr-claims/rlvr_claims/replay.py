"""Replay a training in memory, and write the token table of its steps.

A run is a function of its run.json, its base model and its problems, so it need not have recorded anything: it is
replayed, and every replayed step must have the metrics that the run wrote down. The run's files are not changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from evals.core.errors import InvalidInput
from evals.core.files import fingerprint, read_parquet, sha256_file, write_jsonl, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.progress import Progress
from evals.core.run_spec import LocalRun
from evals.grading import GradingPool
from rlvr.engines.local.learner import Learner, PreparedStep
from rlvr.engines.local.policy import TokenBatch, score_in_chunks, unpack
from rlvr.engines.local.run import require_same_step
from rlvr.engines.rollouts import StepRollouts, token_rows
from rlvr.runs.state import save_tensors
from rlvr.tokens.table import DISPLACEMENT, completed
from rlvr_claims import TABLE_VERSIONS
from rlvr_claims.policy import Rollout, policy_of, snapshot_directory


@dataclass(frozen=True)
class ReplayedStep:
    """One step of the replay, the first of which is 1."""

    step: int
    prepared: PreparedStep  # the rollout batch and its weights, before the optimizer steps
    weights_before: dict[str, Tensor]  # the model's parameters before the optimizer steps
    update_log_probs: Tensor  # [B, T] under the policy that the token's own optimizer step started from
    slopes: Tensor  # [B, T], the derivatives of the sum of the token losses with respect to them
    new_log_probs: Tensor  # [B, T] after all optimizer steps
    displacements: Tensor | None  # [N] by all of them, of passes in float32; None where the run's passes are
    metrics: dict[str, float]


def write_token_table(run_file: Path, out: Path, steps: Sequence[int], device: str, grading_workers: int) -> None:
    """Write ``tokens.parquet``, a snapshot for each of ``steps`` and ``manifest.json`` to ``out``.

    ``run_file`` is the run's run.json; the other files of the run lie beside it. The ``device`` has to be the run's.
    UserError if the run has no such step, an input is missing or damaged, or the replay differs from the run.
    """
    run = LocalRun.read(run_file)
    wanted, origin = steps_of(run, steps), run_file.parent / "manifest.json"
    recorded = verify_outputs(origin, "run")
    if wanted[-1] > (done := recorded.details["steps"]):
        raise InvalidInput("--steps", "", f"are {wanted}", f"1 to {done}, after which {run.run} stopped early")
    verify_outputs(run.base / "manifest.json", "base_model")
    verify_outputs(run.problems / "manifest.json", "problems")
    metrics: dict[Any, Any] = read_parquet(run_file.parent / "metrics.parquet").set_index("step").to_dict("index")
    tables, files = [], [out / "tokens.parquet"]
    progress = Progress(out, f"tokens of {run.run}", wanted[-1], 0)
    learner = Learner(run, device)
    for replayed in replay(learner, wanted, grading_workers):
        require_same_step(run.run, {**replayed.metrics, "step": replayed.step}, metrics[replayed.step])
        progress.report(replayed.step)
        if replayed.step in wanted:
            tables.append(_token_rows(run.run, replayed, learner.token_text))
            files += _write_snapshot(snapshot_directory(out, replayed.step), replayed)
    write_parquet(out / "tokens.parquet", pd.concat(tables, ignore_index=True))
    parameters = {"run": run.parameters(), "steps": wanted, "version": TABLE_VERSIONS[run.dtype]}
    identity = fingerprint({"parameters": parameters, "run": recorded.fingerprint})
    inputs, outputs = {str(origin): sha256_file(origin)}, hash_files(out, *files)
    details = {"rows": sum(map(len, tables)), "replayed_steps": wanted[-1]}
    Manifest("token_table", inputs, outputs, parameters, identity, details).write(out / "manifest.json")


def steps_of(run: LocalRun, steps: Sequence[int]) -> list[int]:
    """Return the different ``steps`` in order; UserError if there are none, or the run has no such step."""
    wanted = sorted(set(steps))
    if not wanted or wanted[0] < 1 or wanted[-1] > run.training.steps:
        raise InvalidInput("--steps", "", f"are {wanted}", f"1 to {run.training.steps}, the steps of {run.run}")
    return wanted


def replay(learner: Learner, wanted: Sequence[int], grading_workers: int = 1) -> Iterator[ReplayedStep]:
    """Yield the learner's steps up to the last one wanted; records and weights are kept of the wanted ones alone."""
    training = learner.run.training
    with GradingPool(grading_workers, verifier=learner.run.verifier_file) as pool:
        while learner.position.step < max(wanted):
            step = learner.position.step + 1
            prepared = learner.prepare(pool)
            kept = step in wanted
            before = {name: value.detach().clone() for name, value in learner.model.weights().items()} if kept else {}
            new = prepared.batch.old_log_probs
            learner.updater.observer = _look if kept else None
            metrics = learner.update(prepared)
            learner.position.metrics.append(metrics)
            moved = None
            if kept:
                tokens = prepared.rollouts.tokens
                size, most_tokens = training.micro_batch_size, training.scored_tokens
                packed = score_in_chunks(learner.model, tokens, training.temperature, size, most_tokens=most_tokens)[0]
                new = unpack(packed, prepared.batch.response_mask)
                if learner.run.dtype != "float32":
                    moved = _displacements(learner, before, tokens)
            updater = learner.updater
            yield ReplayedStep(step, prepared, before, updater.log_probs, updater.slopes, new, moved, metrics)


def _look(mini_batch: int) -> None:
    """Let the updater keep its slopes."""


def _displacements(learner: Learner, before: Mapping[str, Tensor], tokens: TokenBatch) -> Tensor:
    """The change [N] float64 of the tokens' log-probabilities from the weights ``before`` to the present ones.

    An update moves most tokens by less than passes in half precision round. Both passes here are in float32.
    """
    training, device = learner.run.training, str(learner.model.device)

    def log_probs(weights: Mapping[str, Tensor]) -> Tensor:
        model = policy_of(learner.run, weights, device)
        return score_in_chunks(model, tokens, training.temperature, training.micro_batch_size)[0].double()

    return log_probs(learner.model.weights()) - log_probs(before)


def _token_rows(run: str, replayed: ReplayedStep, text: Callable[[int], str]) -> pd.DataFrame:
    """The table's rows of one step, rollout by rollout; ``text`` gives each token's text."""
    prepared, batch = replayed.prepared, replayed.prepared.batch
    step = StepRollouts(run, replayed.step, prepared.problems, prepared.rewards, batch, prepared.weights)
    rows = token_rows(step, text)
    mask = batch.response_mask.cpu()

    def packed(values: Tensor) -> np.ndarray:
        return np.asarray(values.detach().cpu()[mask])

    weighted = packed(batch.advantages[:, None] * prepared.weights)
    old, update = packed(batch.old_log_probs), packed(replayed.update_log_probs)
    with np.errstate(divide="ignore", invalid="ignore"):
        # At ratio 1 every loss here has slope -A w: the gate is what is left of it, 0 for a token that is stopped.
        gate = np.where(weighted == 0, np.nan, -packed(replayed.slopes) / weighted)
    ratio = np.exp(np.clip(update - old, -20, 20))
    if replayed.displacements is not None:
        rows[DISPLACEMENT] = replayed.displacements.cpu().numpy()
    return completed(rows.assign(new_log_prob=packed(replayed.new_log_probs), ratio=ratio, gate=gate))


def _write_snapshot(directory: Path, replayed: ReplayedStep) -> list[Path]:
    """Write the weights before the step and its rollouts; returns the files."""
    weights, rollouts = directory / "weights.safetensors", directory / "rollouts.jsonl"
    batch, tokens = replayed.prepared.batch, replayed.prepared.rollouts.tokens
    save_tensors(weights, replayed.weights_before)
    values = zip(replayed.prepared.problems, batch.group_ids.tolist(), tokens.prompts, tokens.responses, strict=True)
    rows = [
        Rollout(problem=name, group=group, prompt=[*prompt], response=[*response])
        for name, group, prompt, response in values
    ]
    write_jsonl(rollouts, [row.to_json() for row in rows])
    return [weights, rollouts]
