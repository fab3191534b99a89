"""The base of token weightings: it pads weights and computes the metrics that all of them report."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.parameters import Component
from rlvr.methods.rollout_batch import RolloutBatch, computation_type

if TYPE_CHECKING:
    from torch import Tensor

Denominator = Literal["selected", "all"]


@dataclass(frozen=True)
class TokenWeights(Component, ABC):
    """The base of token weightings."""

    kind: ClassVar[str] = "token_weights"
    needs_hidden_states: ClassVar[bool] = False  # whether the rollout batch has to hold the hidden states

    @property
    def sketch_dimensions(self) -> int | None:
        """The dimensions of the random projection that replaces the hidden states; None for no projection."""
        return None

    @abstractmethod
    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Compute the weights [N] >= 0 of the real tokens, and metrics of this weighting."""

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Compute weights [B, T], 0 at padding, in the type of ``old_log_probs`` or float32, and metrics."""
        weights, metrics = self.weigh(batch)
        padded = torch.zeros_like(batch.old_log_probs, dtype=computation_type(batch.old_log_probs))
        padded[batch.response_mask] = weights.to(padded.dtype)
        return padded, weight_metrics(weights) | metrics


def selection_weights(selected: Tensor, batch: RolloutBatch, denominator: Denominator) -> Tensor:
    """Compute the weights [N] of the ``selected`` tokens [N] bool; the others have weight 0.

    The engine divides by all tokens of a mini-batch. With "all" a selected token has weight 1. With "selected" it has
    weight (tokens / selected tokens) of its mini-batch, which turns the token mean into the mean over selected tokens.
    """
    weights = selected.to(computation_type(batch.old_log_probs))
    if denominator == "selected":
        mini_batches = batch.per_token(batch.mini_batch_ids)
        for mini_batch in torch.unique(mini_batches):
            members = mini_batches == mini_batch
            weights[members] *= int(members.sum()) / max(int(selected[members].sum()), 1)
    return weights


def weight_metrics(weights: Tensor) -> dict[str, float]:
    """Compute mean, 5th and 95th percentile (nearest rank) of the real tokens' weights [N]; NaN without tokens."""
    names = ("token_weight_mean", "token_weight_p05", "token_weight_p95")
    if weights.numel() == 0:
        return dict.fromkeys(names, math.nan)
    ranks = [max(1, math.ceil(level * weights.numel())) for level in (0.05, 0.95)]
    values = [weights.double().mean(), *(weights.kthvalue(rank).values for rank in ranks)]
    return dict(zip(names, map(float, values), strict=True))
