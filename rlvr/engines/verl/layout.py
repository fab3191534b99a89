"""Where each rollout of a batch goes, so that verl's workers slice the mini-batches that the method asks for.

verl gives every data-parallel rank a contiguous share of the batch, and each rank slices its share into mini-batches of
one size. So the batch is ordered by rank, then by mini-batch. Mini-batches whose sizes differ are one to verl, and
our engine cuts it (cut_mini_batches.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlvr.methods.assignments import balanced_shares
from rlvr.methods.method import Method


def lay_out(method: Method, mini_batches: Sequence[Tensor], lengths: Tensor, ranks: int) -> Tensor:
    """The order [B] in which the rollouts have to stand for the method's mini-batches.

    Args:
        method: whose assignment made them.
        mini_batches: indices of each.
        lengths: [B] in tokens.
        ranks: data-parallel ranks.

    Raises:
        ValueError: they cannot be given to so many ranks.
    """
    in_order = rank_layout if method.assignment.equal_sizes else dealt_layout
    return in_order(mini_batches, lengths, ranks)


def rank_layout(mini_batches: Sequence[Tensor], lengths: Tensor, ranks: int) -> Tensor:
    """The order [B] in which the rollouts have to stand; the ranks' tokens are balanced within each mini-batch.

    Args:
        mini_batches: indices of each, all of one size.
        lengths: [B] in tokens.
        ranks: data-parallel ranks; they divide that size.

    Raises:
        ValueError: the sizes differ, or the ranks do not divide them.
    """
    sizes = sorted({part.numel() for part in mini_batches})
    if len(sizes) != 1 or sizes[0] % ranks:
        raise ValueError(f"mini-batches have {sizes} rollouts; accepted: one size that {ranks} ranks divide")
    shares = [[part[shard] for shard in balanced_shares(lengths[part], ranks)] for part in mini_batches]
    return torch.cat([of_rank[rank] for rank in range(ranks) for of_rank in shares])


def dealt_layout(mini_batches: Sequence[Tensor], lengths: Tensor, ranks: int) -> Tensor:
    """The order [B] for mini-batches of any sizes: dealt to the ranks one by one, the longest of each first.

    Args:
        mini_batches: indices of each.
        lengths: [B] in tokens.
        ranks: data-parallel ranks; they divide B.

    Raises:
        ValueError: they do not.
    """
    dealt = torch.cat([part[lengths[part].argsort(descending=True, stable=True)] for part in mini_batches])
    if len(dealt) % ranks:
        raise ValueError(f"the batch has {len(dealt)} rollouts; accepted: a multiple of the {ranks} ranks")
    return dealt.view(-1, ranks).T.flatten()


def whole_groups_fraction(ids: Tensor, groups: Tensor) -> float:
    """Part of the prompts whose rollouts all share a mini-batch."""
    lowest = {group: int(ids[groups == group].min()) for group in groups.unique().tolist()}
    return sum(int(ids[groups == group].max()) == low for group, low in lowest.items()) / len(lowest)
