"""What came out of the rollouts: their order, and the local engine's metrics of them by its names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlvr.engines.verl.metrics import OURS


def canonical_order(keys: Sequence[str], groups: Tensor) -> Tensor:
    """[B] rollouts by prompt as first met, then by their number: not in the order in which they happened to finish.

    Args:
        keys: verl's names of the rollouts, ``{prompt}_{number}_{part}``.
        groups: [B] prompts.
    """
    numbers = [int(key.rsplit("_", 2)[1]) for key in keys]
    return torch.tensor(sorted(range(len(keys)), key=lambda row: (int(groups[row]), numbers[row])))


def truncations(extra_fields: Iterable[Any]) -> Tensor:
    """[B] bool, which rollouts were cut off at the longest length; from what the reward manager said beside rewards."""
    plain = [getattr(fields, "data", fields) for fields in extra_fields]  # tensordict wraps them or not
    return torch.tensor([bool(fields["reward_extra_info"]["truncated"]) for fields in plain])


def outcome_metrics(
    rewards: Tensor, groups: Tensor, lengths: Tensor, truncated: Tensor, discarded_fraction: float
) -> dict[str, float]:
    """Means over all rollouts that were sampled.

    Args:
        rewards: [B].
        groups: [B] prompts, numbered from 0.
        lengths: [B] in tokens.
        truncated: [B] bool, cut off at the longest length.
        discarded_fraction: part of them that is not trained on.
    """
    means = torch.zeros(int(groups.max()) + 1).scatter_add_(0, groups, rewards) / torch.bincount(groups)
    found = {
        "reward_mean": float(rewards.mean()),
        "response_length_mean": float(lengths.float().mean()),
        "truncation_rate": float(truncated.float().mean()),
        "groups_mixed_fraction": float(((means > 0) & (means < 1)).float().mean()),
        "tokens_generated": float(lengths.sum()),
        "prompts_sampled": float(len(means)),
        "rollouts_discarded_fraction": discarded_fraction,
    }
    return {OURS + name: value for name, value in found.items()}


def token_metrics(log_probs: Tensor, rollout_log_probs: Tensor, entropies: Tensor, mask: Tensor) -> dict[str, float]:
    """Means over the tokens that are trained on, whatever the loss's own aggregation; all [B, T].

    Args:
        log_probs: of the trainer before its updates.
        rollout_log_probs: of the same tokens, as the rollout engine gave them while it sampled.
        entropies: of the trainer.
        mask: true at response tokens.
    """
    return {
        OURS + "entropy": float(entropies[mask].mean()),
        OURS + "rollout_log_prob_difference_mean": float((log_probs - rollout_log_probs)[mask].abs().mean()),
    }
