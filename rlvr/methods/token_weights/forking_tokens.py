"""Forking tokens (Beyond the 80/20 rule, arXiv 2506.01939): only tokens of high entropy are trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.precision import computation_type
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.selected_tokens import Denominator, selection_weights
from rlvr.methods.token_weights.weight_statistics import weight_metrics


@dataclass(frozen=True)
class ForkingTokens:
    """Selects the tokens whose entropy reaches the ceil(top_ratio N)-th largest of the N tokens in scope.

    Ties with that value are all selected. The engine divides by all tokens of a mini-batch. With denominator "all" a
    selected token has weight 1, which is the paper's equation; with "selected" it has weight (tokens / selected tokens)
    of its mini-batch, which turns the token mean into the mean over selected tokens, as in the authors' code. The
    entropy is that of the sampling policy, where the authors' code takes the current policy's in each micro-batch.
    """

    needs_hidden_states: ClassVar[bool] = False
    sketch_dimensions: ClassVar[int | None] = None

    top_ratio: float = hyper_parameter(0.2, "part of the tokens that is trained on", above=0.0, maximum=1.0)
    denominator: Denominator = hyper_parameter("selected", "tokens that the token mean divides by")  # noqa: RUF009
    scope: Literal["mini_batch", "rollout_batch"] = hyper_parameter("mini_batch", "tokens that are ranked together")

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32, 0 where not selected and at padding, and metrics."""
        entropies = batch.entropies[batch.response_mask]
        mini_batches = batch.mini_batch_ids.repeat_interleave(batch.response_mask.sum(dim=1))
        scopes = mini_batches if self.scope == "mini_batch" else torch.zeros_like(mini_batches)
        selected = torch.zeros_like(entropies, dtype=torch.bool)
        for scope in torch.unique(scopes):
            members = scopes == scope
            selected[members] = self._top(entropies[members])
        padded = selection_weights(selected, batch, self.denominator, computation_type(entropies))
        return padded, weight_metrics(padded[batch.response_mask]) | {
            "selected_token_fraction": float(selected.double().mean())
        }

    def _top(self, entropies: Tensor) -> Tensor:
        """Which of the entropies [N], N >= 1, reach the ceil(top_ratio N)-th largest: [N] bool."""
        rank = math.ceil(self.top_ratio * entropies.numel())
        threshold = entropies.kthvalue(entropies.numel() - rank + 1).values
        return entropies >= threshold
