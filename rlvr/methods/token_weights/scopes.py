"""The parts of a rollout batch over which statistics are taken: all of it, each group, or each data-parallel rank."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import hyper_parameter
from rlvr.methods.rollout_batch import RolloutBatch

Scope = Literal["global", "group", "rank"]


def scope_field() -> Any:
    """The field ``scope`` of a weighting."""
    return hyper_parameter("global", "rollouts whose tokens' statistics are taken together")


def ranks_field() -> Any:
    """The field ``ranks`` of a weighting."""
    return hyper_parameter(8, "equal contiguous shards of the rollout batch that scope rank parts it into", minimum=1)


def token_scopes(batch: RolloutBatch, scope: Scope, ranks: int) -> list[Tensor]:
    """The real tokens of each part, in row-major order of the response mask: [N] bool each, none empty."""
    rollouts = batch.response_mask.shape[0]
    if scope == "global":
        of_rollout = torch.zeros(rollouts, dtype=torch.int64, device=batch.response_mask.device)
    elif scope == "group":
        of_rollout = batch.group_ids
    else:
        of_rollout = torch.arange(rollouts, device=batch.response_mask.device) * ranks // rollouts
    of_token = of_rollout.repeat_interleave(batch.response_mask.sum(dim=1))
    return [of_token == part for part in torch.unique(of_token)]
