"""GSPO, Group Sequence Policy Optimization (arXiv 2507.18071), and GSPO-token: one importance ratio per response."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.aggregation import Mode
from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter

MAX_LOG_SEQUENCE_RATIO = 10.0
"""Upper limit of the log of a sequence ratio, as in verl; a mean over tokens, so no lower limit is needed."""


@component("gspo")
class GSPO(PolicyLoss):
    """-min(s_i A, clip(s_i, 1 - epsilon_low, 1 + epsilon_high) A), s_i = exp(mean_t (log pi_theta - log pi_old)).

    Every token of response i carries the same ratio, the geometric mean of its tokens' ratios, hence the narrow clip
    range. No dual clip. seq-mean-token-mean gives the paper's objective.
    """

    default_aggregation: ClassVar[Mode] = "seq-mean-token-mean"

    epsilon_low: float = hyper_parameter(
        3e-4, "the sequence ratio is clipped below 1 minus this", above=0.0, maximum=1.0
    )
    epsilon_high: float = hyper_parameter(4e-4, "the sequence ratio is clipped above 1 plus this", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; clip fractions count tokens whose sequence ratio's gradient is stopped."""
        advantages = tokens.advantages
        ratios = self._log_ratios(tokens).clamp(max=MAX_LOG_SEQUENCE_RATIO).exp()
        lower, upper = 1.0 - self.epsilon_low, 1.0 + self.epsilon_high
        loss = torch.maximum(-advantages * ratios, -advantages * ratios.clamp(lower, upper))
        below, above = (advantages < 0) & (ratios < lower), (advantages > 0) & (ratios > upper)
        return TokenLoss(loss, tokens.clip_fractions(below, above))

    def _log_ratios(self, tokens: Tokens) -> Tensor:
        """Compute log s_i [B, 1]."""
        return tokens.mean(tokens.log_ratios)


@component("gspo_token")
class GSPOToken(GSPO):
    """-min(s A, clip(s, 1 - epsilon_low, 1 + epsilon_high) A) with s_it = sg[s_i] pi_theta / sg[pi_theta].

    s_i is GSPO's sequence ratio. Where a response's tokens have one advantage, the gradient is GSPO's; with token
    weights each token's gradient follows its own weight, where GSPO's follows their mean.
    """

    def _log_ratios(self, tokens: Tokens) -> Tensor:
        """Compute log s_it [B, T]."""
        return super()._log_ratios(tokens).detach() + tokens.log_ratios - tokens.log_ratios.detach()
