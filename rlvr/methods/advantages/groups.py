"""Statistics of the rollouts of one prompt, at each of its rollouts."""

from __future__ import annotations

import torch
from torch import Tensor


def group_sums(values: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of ``values`` [B] over each rollout's group, and the group's size: both [B] in float64."""
    _, members = torch.unique(group_ids, return_inverse=True)
    exact = values.double()
    zeros = torch.zeros(int(members.max()) + 1 if members.numel() else 0, dtype=torch.float64, device=values.device)
    sums = zeros.index_add(0, members, exact)
    sizes = zeros.index_add(0, members, torch.ones_like(exact))
    return sums[members], sizes[members]


def centred_rewards(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Rewards less their group's mean [B] in float64; exactly 0 in a group of equal rewards, as they are in one of one.

    Rounding in a mean must not hand the tokens of a uniform group a sign.
    """
    sums, sizes = group_sums(rewards, group_ids)
    exact = rewards.double()
    _, members = torch.unique(group_ids, return_inverse=True)
    extremes = torch.full((int(members.max()) + 1 if members.numel() else 0,), -torch.inf, dtype=torch.float64)
    extremes = extremes.to(rewards.device)
    highest = extremes.scatter_reduce(0, members, exact, "amax")[members]
    lowest = -extremes.scatter_reduce(0, members, -exact, "amax")[members]
    lone = sizes == 1
    centred = exact - (sums / sizes).masked_fill(lone, 0.0)
    return centred.masked_fill((highest == lowest) & ~lone, 0.0)
