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
