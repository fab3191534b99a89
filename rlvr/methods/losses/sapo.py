"""SAPO, Soft Adaptive Policy Optimization (arXiv 2511.20347): a smooth gate where PPO has a clip."""

from __future__ import annotations

from typing import ClassVar

import torch

from rlvr.methods.aggregation import Mode
from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter


@component("sapo")
class SAPO(PolicyLoss):
    """-(4 / tau) sigmoid(tau (r - 1)) A, with tau_positive where A > 0 and tau_negative elsewhere.

    With p = sigmoid(tau (r - 1)) the factor on A grad log pi is 4 p (1 - p) r: 1 at r = 1, fading on both sides. Its
    value at r = 1 is 2 / tau, so losses compare with those of other methods by their gradients only.
    """

    default_aggregation: ClassVar[Mode] = "seq-mean-token-mean"

    tau_positive: float = hyper_parameter(1.0, "steepness of the gate where the advantage is positive", above=0.0)
    tau_negative: float = hyper_parameter(1.05, "steepness of the gate where the advantage is negative", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; nothing is clipped, so there are no clip fractions."""
        tau = torch.full_like(tokens.ratios, self.tau_negative).masked_fill(tokens.advantages > 0, self.tau_positive)
        gate = 4.0 / tau * torch.sigmoid(tau * (tokens.ratios - 1.0))
        return TokenLoss(-tokens.advantages * gate, {})
