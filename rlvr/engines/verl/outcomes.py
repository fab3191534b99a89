"""Rewards and lengths of rollouts: their order, and the local engine's metrics of them by its names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def canonical_order(keys: Sequence[str], groups: Tensor) -> Tensor:
    """[B] rollouts by prompt as first met, then by their number: not in the order in which they happened to finish.

    Args:
        keys: verl's names of the rollouts, ``{prompt}_{number}_{part}``.
        groups: [B] prompts.
    """
    numbers = [int(key.rsplit("_", 2)[1]) for key in keys]
    return torch.tensor(sorted(range(len(keys)), key=lambda row: (int(groups[row]), numbers[row])))


def outcome_metrics(rewards: Tensor, groups: Tensor, lengths: Tensor, longest: int) -> dict[str, float]:
    """Means over all rollouts that were sampled.

    Args:
        rewards: [B].
        groups: [B] prompts, numbered from 0.
        lengths: [B] in tokens.
        longest: the longest response allowed.
    """
    means = torch.zeros(int(groups.max()) + 1).scatter_add_(0, groups, rewards) / torch.bincount(groups)
    return {
        "batch/reward_mean": float(rewards.mean()),
        "batch/response_length_mean": float(lengths.float().mean()),
        "batch/longest_fraction": float((lengths >= longest).float().mean()),
        "batch/groups_mixed_fraction": float(((means > 0) & (means < 1)).float().mean()),
        "batch/tokens": float(lengths.sum()),
        "batch/prompts_sampled": float(len(means)),
    }
