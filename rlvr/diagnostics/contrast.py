"""The contrast of methods: the angle between the update directions that two of them give the same policy.

A direction is the gradient of a method's loss over all parameters, on one mini-batch. Methods whose directions hardly
differ cannot be told apart by any number of seeds; random token weights show how large an angle means nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from evals.core.files import fingerprint, sha256_file, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.random import generator_for
from evals.core.run_spec import LocalRun
from evals.grading import GradingPool
from rlvr.diagnostics import VERSION
from rlvr.diagnostics.replay import steps_of
from rlvr.engines.local.learner import HiddenStateBudget, Learner, PreparedStep
from rlvr.engines.local.policy import score, score_in_chunks, unpack
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.method import Method, compose


@dataclass(frozen=True)
class Direction:
    """An update direction against the run's own.

    Attributes:
        degrees: the angle between the two; NaN if one of them is 0.
        norm_ratio: length over the own direction's length.
    """

    degrees: float
    norm_ratio: float


def write_contrast(
    run_file: Path,
    methods: Mapping[str, Mapping[str, Any]],
    steps: Sequence[int],
    out: Path,
    device: str,
    grading_workers: int,
) -> pd.DataFrame:
    """Write ``contrast.parquet`` and ``manifest.json`` to ``out``; returns a row for each step and method.

    The training of ``run_file`` is carried out in memory, whether the run is finished or not, and its own method is the
    reference. ``methods`` are resolved entries of the catalogue by name. Of a method with another batching the
    advantage, the token weights and the loss are compared, on the run's own mini-batch. If the run's selection leaves
    rollouts of a group out, an advantage other than the run's is that of the rest of the group.

    Raises:
        UserError: the run has no such step, or an input is missing, damaged or not accepted.
    """
    run = LocalRun.read(run_file)
    wanted = steps_of(run, steps)
    composed = {name: compose(entry, f"method {name}") for name, entry in methods.items()}
    kinds = {run.base / "manifest.json": "base_model", run.problems / "manifest.json": "problems"}
    for path, kind in kinds.items():
        verify_outputs(path, kind)
    inputs = {str(path): sha256_file(path) for path in kinds}
    out.mkdir(parents=True, exist_ok=True)
    learner = Learner(run, device, HiddenStateBudget(1 << 32, out))
    rows = []
    for step, prepared, directions in directions_along(learner, composed, wanted, grading_workers):
        entropies = prepared.batch.entropies[prepared.batch.response_mask]
        state = {
            "reward": float(prepared.rewards.mean()),
            "response_length": float(prepared.rollouts.lengths.float().mean()),
            "entropy": float(entropies.mean()),
            "share_above_0_7_nats": float((entropies > 0.7).float().mean()),
        }
        rows += [
            {"step": step, "method": name, "degrees": each.degrees, "norm_ratio": each.norm_ratio, **state}
            for name, each in directions.items()
        ]
    frame = pd.DataFrame(rows)
    write_parquet(out / "contrast.parquet", frame)
    parameters = {"run": run.parameters(), "steps": wanted, "methods": dict(methods), "version": VERSION}
    identity = fingerprint({"parameters": parameters, "inputs": sorted(inputs.values())})
    outputs = hash_files(out, out / "contrast.parquet")
    Manifest("contrast", inputs, outputs, parameters, identity).write(out / "manifest.json")
    return frame


def directions_along(
    learner: Learner, methods: Mapping[str, Method], steps: Sequence[int], grading_workers: int = 1
) -> Iterator[tuple[int, PreparedStep, dict[str, Direction]]]:
    """Train up to the last of ``steps`` and yield the directions before the last update of each of them.

    That is where the policy has moved away from the one that sampled, so that clipping acts. The training is that
    of the run: looking changes nothing.
    """
    with GradingPool(workers=grading_workers) as pool:
        while learner.position.step < max(steps):
            step = learner.position.step + 1
            prepared = learner.prepare(pool)
            if step not in steps:
                learner.position.metrics.append(learner.update(prepared))
                continue
            signals = {name: _signal(learner, method, prepared) for name, method in methods.items()}
            *before, last = prepared.mini_batches
            if before:
                learner.update(replace(prepared, mini_batches=before))
                learner.position.step -= 1  # the step is not over yet
            own = _gradient(learner, learner.method, prepared, prepared.batch.advantages[:, None] * prepared.weights)
            yield (
                step,
                prepared,
                {
                    name: _compare(_gradient(learner, method, prepared, signals[name]), own)
                    for name, method in methods.items()
                },
            )
            learner.position.metrics.append(learner.update(replace(prepared, mini_batches=[last])))


def _signal(learner: Learner, method: Method, prepared: PreparedStep) -> Tensor:
    """The weighted advantages [B, T] that a method gives the rollout batch, under the policy that sampled it."""
    rollouts, batch, training, own = prepared.rollouts, prepared.batch, learner.run.training, learner.method
    advantages = batch.advantages  # of whole groups, of which a selection may have left rollouts out since
    if (method.reward_shaping, method.advantage) != (own.reward_shaping, own.advantage):
        advantages = method.advantages(prepared.rewards, rollouts.group_ids, rollouts.lengths, training.max_new_tokens)
        advantages = advantages.to(batch.response_mask.device)
    if method.token_weights is None:
        return advantages[:, None] * batch.response_mask
    seed, step = learner.run.seed, learner.position.step
    batch = replace(batch, advantages=advantages, generator=generator_for("token_weights", seed, step))
    if method.needs_hidden_states:
        parts: list[Tensor] = []
        size = training.micro_batch_size
        score_in_chunks(learner.model, rollouts.tokens, training.temperature, size, parts.append)
        head: Tensor = learner.model.get_output_embeddings().weight.detach()
        rows = torch.cat([method.sketched(part, seed) for part in parts])
        batch = replace(batch, head_weight=head, hidden_states=rows)
    return advantages[:, None] * method.token_weights(batch)[0]


def _gradient(learner: Learner, method: Method, prepared: PreparedStep, signal: Tensor) -> Tensor:
    """A method's gradient [P] of all parameters on the last mini-batch, for weighted advantages [B, T]."""
    rows = prepared.mini_batches[-1]
    tokens = prepared.rollouts.tokens.select(rows)
    mask = tokens.response_mask.to(signal.device)
    width = mask.shape[1]
    log_probs = unpack(score(learner.model, tokens, learner.run.training.temperature).log_probs, mask)
    loss, _ = method.loss(
        log_probs,
        prepared.batch.old_log_probs[rows, :width],
        signal[rows, :width],
        mask,
        prepared.batch.group_ids[rows],
        generator_for("loss", learner.run.seed, learner.position.updates),
        method.aggregation,
    )
    total = method.aggregation(loss, mask, Normaliser.of(mask))
    parts = torch.autograd.grad(total, list(learner.model.parameters()))
    return torch.cat([part.flatten().double() for part in parts])


def _compare(direction: Tensor, own: Tensor) -> Direction:
    lengths = float(direction.norm()), float(own.norm())
    if 0.0 in lengths:
        return Direction(math.nan, lengths[0] / lengths[1] if lengths[1] else math.nan)
    cosine = float(direction @ own) / (lengths[0] * lengths[1])
    return Direction(math.degrees(math.acos(max(-1.0, min(1.0, cosine)))), lengths[0] / lengths[1])
