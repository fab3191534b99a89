"""Rollouts of several policies: how old they are, and the weights that correct for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evals.core.training_settings import PartialRollouts
from rlvr.engines.verl.metrics import PREFIX


@dataclass(frozen=True)
class Policies:
    """The policies that drew the rollouts of a step.

    Attributes:
        ages: [B] int64, steps since the first token was drawn; 0 if the policy that a step starts from drew it.
        numbers: [B] int64, policies that drew tokens.
    """

    ages: Tensor
    numbers: Tensor

    @classmethod
    def of(cls, tags: Sequence[Mapping[str, Any]], step: int) -> Policies:
        """Read them from verl's tags of the rollouts; a step starts from the policy of number ``step - 1``."""
        names = ("min_global_steps", "max_global_steps")
        first, last = (torch.tensor([int(tag[name]) for tag in tags]) for name in names)
        return cls(step - 1 - first, last - first + 1)

    def metrics(self) -> dict[str, float]:
        return {
            PREFIX + "rollout_age_mean": float(self.ages.double().mean()),
            PREFIX + "rollout_age_max": float(self.ages.max()),
            PREFIX + "rollouts_interrupted_fraction": float((self.numbers > 1).double().mean()),
        }


def importance_weights(
    log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, partial: PartialRollouts
) -> tuple[Tensor, dict[str, float]]:
    """Compute the weights of tokens that earlier policies drew, and metrics of them; tensors are [B, T].

    A weight is the token's probability under the policy that a step starts from over that under the policy that drew
    it, cut off at ``importance_limit`` (truncated importance sampling, Ionides 2008; between the policies of a
    training, AReaL, arXiv 2505.24298). Without a limit all are 1.
    """
    if (limit := partial.importance_limit) is None:
        return mask.float(), {}
    ratios = (log_probs.double() - rollout_log_probs.double()).masked_fill(~mask, 0.0).exp()
    of_tokens = ratios[mask]
    return ratios.clamp(max=limit).float() * mask, {
        PREFIX + "importance_ratio_mean": float(of_tokens.mean()),
        PREFIX + "importance_limited_fraction": float((of_tokens > limit).double().mean()),
    }
