"""REINFORCE++ (arXiv 2501.03262): rewards standardised over all tokens of the batch, not over a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlvr.methods.advantages.groups import centred_rewards
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter

_VARIANCE_FLOOR = 1e-8


@dataclass(frozen=True)
class ReinforcePlusPlus:
    """A = (X - mean X) / sqrt(var X + 1e-8) over the valid tokens of the rollout batch; X is R, or R - group mean R.

    The method's return is the discounted reward-to-go of a token. With one reward for the whole response and no
    discount it is the same at each of its tokens, so a value per response, weighted by its length, says it all. The
    variance has n - 1 in its denominator. ``baseline`` "group_mean" is the paper's variant for several rollouts of a
    prompt.
    """

    baseline: Literal["none", "group_mean"] = hyper_parameter("none", "what is taken from a reward beforehand")

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
        """Advantages [B], in the type of ``rewards`` [B]; group_ids [B] int64, lengths [B] in tokens.

        Where all values are equal, they are 0.
        """
        values = rewards.double() if self.baseline == "none" else centred_rewards(rewards, group_ids)
        counts = lengths.to(values)
        tokens = counts.sum()
        with_tokens = values[counts > 0]
        if with_tokens.numel() == 0 or bool((with_tokens == with_tokens[0]).all()):
            return torch.zeros_like(rewards)
        mean = (values * counts).sum() / tokens
        variance = ((values - mean).square() * counts).sum() / (tokens - 1).clamp(min=1)
        return ((values - mean) * (variance + _VARIANCE_FLOOR).rsqrt()).to(rewards.dtype)
