"""The places of rollouts in a batch, so that verl's workers slice the mini-batches that the method asks for.

verl gives every data-parallel rank a contiguous share of the batch, and each rank slices its share into mini-batches of
one size. So the batch is ordered by rank, then by mini-batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlvr.methods.assignments import balanced_shares


def rank_layout(mini_batches: Sequence[Tensor], lengths: Tensor, ranks: int) -> Tensor:
    """The order [B] for mini-batches of one size; the ranks' tokens are balanced within each of them."""
    sizes = sorted({part.numel() for part in mini_batches})
    if len(sizes) != 1 or sizes[0] % ranks:
        raise ValueError(f"mini-batches have {sizes} rollouts; accepted: one size that {ranks} ranks divide")
    shares = [[part[shard] for shard in balanced_shares(lengths[part], ranks)] for part in mini_batches]
    return torch.cat([of_rank[rank] for rank in range(ranks) for of_rank in shares])


def whole_groups_fraction(ids: Tensor, groups: Tensor) -> float:
    """Part of the prompts whose rollouts all share a mini-batch."""
    whole: list[bool] = [ids[groups == group].unique().numel() == 1 for group in groups.unique()]
    return sum(whole) / len(whole)


def prompt_of(key: str) -> str:
    """The prompt in verl's name of a rollout, ``{prompt}_{number}_{part}``."""
    return key.rsplit("_", 2)[0]


def rollout_number(key: str) -> int:
    """The number of the rollout in its prompt's group, from verl's name of it."""
    return int(key.rsplit("_", 2)[1])
