"""Weights of a 0/1 selection of tokens under the two published denominators."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlvr.methods.rollout_batch import RolloutBatch

Denominator = Literal["selected", "all"]


def selection_weights(selected: Tensor, batch: RolloutBatch, denominator: Denominator, dtype: torch.dtype) -> Tensor:
    """Weights [B, T] of the ``selected`` tokens [N] bool, 0 elsewhere.

    The engine divides by all tokens of a mini-batch. With "all" a selected token has weight 1. With "selected" it has
    weight (tokens / selected tokens) of its mini-batch, which turns the token mean into the mean over selected tokens.
    """
    weights = selected.to(dtype)
    if denominator == "selected":
        mini_batches = batch.mini_batch_ids.repeat_interleave(batch.response_mask.sum(dim=1))
        for mini_batch in torch.unique(mini_batches):
            members = mini_batches == mini_batch
            weights[members] *= int(members.sum()) / max(int(selected[members].sum()), 1)
    padded = torch.zeros(batch.response_mask.shape, dtype=dtype, device=selected.device)
    padded[batch.response_mask] = weights
    return padded
