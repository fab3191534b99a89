"""Metrics of a rollout batch and the numbering of its mini-batches, for both engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rollout_metrics(
    rewards: Tensor, groups: Tensor, lengths: Tensor, truncated: Tensor, discarded_fraction: float
) -> dict[str, float]:
    """Means and counts over all rollouts that were sampled, of [B] each; a fraction of them is not trained on."""
    numbers = groups.unique(return_inverse=True)[1]
    means = torch.zeros(int(numbers.max()) + 1).scatter_add_(0, numbers, rewards) / torch.bincount(numbers)
    return {
        "reward_mean": float(rewards.mean()),
        "response_length_mean": float(lengths.float().mean()),
        "truncation_rate": float(truncated.double().mean()),
        "groups_mixed_fraction": float(((means > 0) & (means < 1)).float().mean()),
        "tokens_generated": int(lengths.sum()),
        "prompts_sampled": len(means),
        "rollouts_discarded_fraction": discarded_fraction,
    }


def mini_batch_ids(mini_batches: Sequence[Tensor], rollouts: int) -> Tensor:
    """[B] int64, the mini-batch that each rollout belongs to; -1 for none."""
    ids = torch.full((rollouts,), -1)
    for number, indices in enumerate(mini_batches):
        ids[indices] = number
    return ids
