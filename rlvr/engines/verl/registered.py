"""The run that a process of verl works for, and its loss with the signature of verl's registry.

Nothing here imports verl.

verl hands a loss one micro-batch, padded, with the token count of the whole mini-batch over all ranks, and averages the
gradients of its data-parallel ranks: the loss is multiplied by their number, so that the average is the sum.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evals.core.run_spec import VERIFIER_FILE, Cluster, VerlRun, parts_in_files
from evals.generation.checkpoint import Checkpoint
from evals.generation.thinking import case_of
from evals.grading import GradingPool, Verdict
from rlvr.engines.verl.launch import CLUSTER_VARIABLE, RUN_VARIABLE, STUDY_VARIABLE
from rlvr.methods.aggregation import Aggregation, Normaliser
from rlvr.methods.losses.base import PolicyLoss
from rlvr.methods.method import Method, compose


class Field:
    """The names under which the driver and the workers exchange values that verl has no name for."""

    ADVANTAGE = "rlvr_advantage"  # [B] of each rollout, of whole groups
    GROUP = "rlvr_group"  # [B] int64, the prompt of each rollout
    MINI_BATCH = "rlvr_mini_batch"  # [B] int64
    ROW = "rlvr_row"  # [B] int64, the rollout's place in the batch, by which workers undo their own reordering
    STEP = "rlvr_step"  # the rollout step, from 1
    FIRST_METRICS = "rlvr_first_metrics"  # the metrics of the token weights on the run's first batch
    TOKEN_WEIGHTS = "token_weights"  # [length] of each rollout, computed by workers
    WEIGHT_METRICS = "token_weight_metrics"  # of the whole batch, with each rollout as packed_metrics


@dataclass
class RegisteredLoss:
    """A policy loss with the signature that verl's ``register_policy_loss`` expects."""

    loss: PolicyLoss
    aggregation: Aggregation
    gradient: Tensor | None = None
    """[B, T] of the mini-batch's loss with respect to this micro-batch's log-probs, if the loss couples rollouts and
    was therefore computed on the whole mini-batch before; see engine.py."""
    token_sums: dict[str, float] = field(default_factory=dict)
    """Sums over the micro-batch's tokens of the metrics of the last call."""

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """This micro-batch's part of the loss [], times the data-parallel ranks; metrics go to ``token_sums``.

        The first four are [B, T], the advantages with their token weights. ``loss_agg_mode`` is ignored, the method has
        its own. ``global_batch_info`` of ``config`` has the mini-batch's counts.
        """
        if rollout_is_weights is not None:
            raise ValueError("rollout_is_weights are not supported")
        info: Mapping[str, Any] = config.global_batch_info
        mask = response_mask.bool()
        if self.gradient is not None:
            self.token_sums = {}
            # verl moves a micro-batch to the device after the gradient was taken from it.
            gradient = self.gradient.to(log_prob.device)
            return (gradient * log_prob).masked_fill(~mask, 0.0).sum() * info["dp_size"], {}
        if self.loss.coupling != "rollout":
            raise ValueError(f"{type(self.loss).__name__} couples rollouts; it runs in MethodEngine only")
        rollouts = torch.arange(len(mask), device=mask.device)
        token_loss, metrics = self.loss(
            log_prob, old_log_prob, advantages, mask, rollouts, torch.Generator(), self.aggregation
        )
        self.token_sums = {name: float(values.detach()[mask].sum()) for name, values in metrics.items()}
        normaliser = Normaliser(int(info["batch_num_tokens"]), int(info["global_batch_size"]))
        return self.aggregation(token_loss, mask, normaliser) * info["dp_size"], {}


def group_ids(names: Any) -> Tensor:
    """[B] int64: prompts numbered in the order in which their names first appear."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(str(name), len(numbers)) for name in names])


@dataclass(frozen=True)
class CurrentRun:
    """The run that this process works for, with its method, and the loss that is registered."""

    run: VerlRun
    cluster: Cluster
    method: Method
    loss: RegisteredLoss

    @classmethod
    def of(cls, run: VerlRun, cluster: Cluster) -> CurrentRun:
        method = compose(run.method, f"method {run.method_name}", run.training.max_new_tokens)
        return cls(run, cluster, method, RegisteredLoss(method.loss, method.aggregation))


@cache
def current_run() -> CurrentRun:
    """The run that the environment names."""
    run, cluster = VerlRun.read(Path(os.environ[RUN_VARIABLE])), Cluster.read(Path(os.environ[CLUSTER_VARIABLE]))
    for part in parts_in_files(run.method):  # a worker may have another working directory than the study
        part["file"] = str(Path(os.environ[STUDY_VARIABLE]) / part["file"])
    return CurrentRun.of(run, cluster)


_GRADING = threading.Lock()


@cache
def _pool() -> GradingPool:
    """The grader of this process, or the user's reward function in a sandbox that this process keeps."""
    copy = Path(os.environ[RUN_VARIABLE]).parent / "verl" / VERIFIER_FILE
    return GradingPool(workers=1, verifier=copy if current_run().run.verifier else None)


def grade(
    checkpoint: Checkpoint, prompt: Sequence[int], response: Sequence[int], finished: bool, truth: str
) -> Verdict:
    """Grade the tokens of a response to those of a prompt, as evaluation does.

    ``truth`` is the gold answer, or for a verifier the JSON of the problem's row.
    """
    with _GRADING:
        problem = json.loads(truth) if _pool().verifier else None
        gold = problem["answer"] if problem else truth
        return _pool().grade([case_of(checkpoint.tokenizer, prompt, response, finished, gold, problem)])[0]


def nested(rows: Sequence[Any]) -> Tensor:
    """A tensor of rows of unequal lengths, as verl passes them on."""
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def packed_metrics(metrics: Mapping[str, float]) -> Tensor:
    """[n] uint8, names and values as JSON: a tensor is all that workers can send with each rollout."""
    return torch.tensor(list(json.dumps(dict(metrics)).encode("utf-8")), dtype=torch.uint8)


def unpacked_metrics(packed: Tensor) -> dict[str, float]:
    """The metrics of :func:`packed_metrics`, without those that have no value."""
    metrics: dict[str, float] = json.loads(bytes(packed.tolist()))
    return {name: value for name, value in metrics.items() if not math.isnan(value)}
