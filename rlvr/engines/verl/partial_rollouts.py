"""Rollouts of several policies: how old they are, and the weights that correct for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from evals.core.training_settings import PartialRollouts
from rlvr.engines.verl.metrics import PREFIX


def rollout_ages(tags: Sequence[Mapping[str, Any]], step: int) -> tuple[Tensor, dict[str, float]]:
    """Count the updates since vLLM was given each rollout [B], from verl's tags, and make metrics of them.

    Of step s, 0 means that the rollout is of the policy that s starts from alone, which is number s - 1 to verl.
    """
    first, last = (torch.tensor([tag[name] for tag in tags]) for name in ("min_global_steps", "max_global_steps"))
    ages = step - 1 - first
    return ages, {
        PREFIX + "rollout_age_mean": float(ages.double().mean()),
        PREFIX + "rollout_age_max": float(ages.max()),
        PREFIX + "rollouts_interrupted_fraction": float((last > first).double().mean()),
    }


def importance_weights(
    log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, partial: PartialRollouts
) -> tuple[Tensor, dict[str, float]]:
    """Compute the weights of tokens whatever policy drew them, and metrics of the weights; tensors are [B, T].

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
