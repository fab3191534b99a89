"""A rollout batch dealt to data-parallel ranks, as verl deals it: equal shares with equal work."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import hyper_parameter


def ranks_field() -> Any:
    """The field ``ranks`` of an assignment."""
    return hyper_parameter(8, "data-parallel ranks that the trainer is imitated with", minimum=1)


def balanced_shards(lengths: Tensor, ranks: int) -> list[Tensor]:
    """Rollout indices of each rank, ascending; sizes differ by at most one, total lengths by little.

    Rollouts are dealt from the longest down, to and fro over the ranks. verl solves the same partition with
    Karmarkar and Karp's algorithm; the shares are as even for batches of this kind.
    """
    order = lengths.cpu().argsort(descending=True, stable=True)
    turns = torch.arange(ranks).repeat(-(-order.numel() // ranks))[: order.numel()]
    rounds = torch.arange(order.numel()) // ranks
    rank_of = torch.where(rounds % 2 == 0, turns, ranks - 1 - turns)
    return [order[rank_of == rank].sort().values for rank in range(ranks)]


def contiguous_mini_batches(shards: list[Tensor], updates: int) -> list[Tensor]:
    """Mini-batch m is the m-th part of every rank's shard, as each worker slices its own."""
    parts = [shard.tensor_split(updates) for shard in shards]
    return [torch.cat([part[number] for part in parts]) for number in range(updates)]
