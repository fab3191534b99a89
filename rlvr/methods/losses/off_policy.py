"""Losses that were made for samples of another policy: tapered, quadratic, or with a soft weight per response."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.aggregation import Mode
from rlvr.methods.losses.base import MAX_LOG_RATIO, PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter


@component("topr")
class TOPR(PolicyLoss):
    """-A log pi_theta where A >= 0, -sg[min(w, 1)] A log pi_theta where A < 0; w is the product of a response's ratios.

    Tapered off-policy REINFORCE (arXiv 2503.14286): right responses are learned however improbable they have become,
    wrong ones are left alone once they are. ``level`` "token" takes each token's own ratio.
    """

    default_aggregation: ClassVar[Mode] = "seq-mean-token-sum"

    level: Literal["sequence", "token"] = hyper_parameter("sequence", "whose ratio tapers a negative advantage")

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; ``tapered_fraction`` marks the tokens of a weight below 1."""
        log_ratios = tokens.log_ratios.detach()
        logs = log_ratios.sum(dim=1, keepdim=True) if self.level == "sequence" else log_ratios
        weights = logs.clamp(-MAX_LOG_RATIO, 0.0).exp()
        weights = torch.where(tokens.advantages < 0, weights, torch.ones_like(weights))
        tapered = ((weights < 1) & tokens.mask).to(weights.dtype)
        return TokenLoss(-weights * tokens.advantages * tokens.log_probs, {"tapered_fraction": tapered})


@component("dro")
class DRO(PolicyLoss):
    """-(A log pi_theta - beta / 2 (log pi_theta - log pi_old)^2).

    Direct reward optimisation (arXiv 2405.19107) with the group's baseline in place of its value network, as trainers
    offer it. Nothing is clipped: the square pulls a token back that has moved A / beta nats.
    """

    beta: float = hyper_parameter(0.05, "factor of half the squared log-ratio", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        penalty = 0.5 * self.beta * tokens.limited_log_ratios.square()
        return TokenLoss(-tokens.advantages * tokens.log_probs + penalty, {})


@component("vespo")
class VESPO(PolicyLoss):
    """-sg[W^k exp(lambda (1 - W))] A log pi_theta, W the product of a response's ratios; k, lambda by the sign of A.

    Variational sequence-level soft policy optimization (arXiv 2602.10693). The weight is 1 at W = 1 and largest at
    W = k / lambda; a product over all tokens leaves 1 the sooner the longer a response is. Defaults are the authors'.
    """

    power_positive: float = hyper_parameter(2.0, "k where A >= 0", minimum=0.0)
    decay_positive: float = hyper_parameter(3.0, "lambda where A >= 0", above=0.0)
    power_negative: float = hyper_parameter(3.0, "k where A < 0", minimum=0.0)
    decay_negative: float = hyper_parameter(2.0, "lambda where A < 0", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; ``sequence_weight`` is the weight of each token's response."""
        logs = tokens.limited_log_ratios.detach().sum(dim=1, keepdim=True).clamp(math.log(1e-8), MAX_LOG_RATIO)
        negative = tokens.advantages < 0
        ones = torch.ones_like(tokens.advantages)
        powers = torch.where(negative, self.power_negative * ones, self.power_positive * ones)
        decays = torch.where(negative, self.decay_negative * ones, self.decay_positive * ones)
        weights = (powers * logs + decays * (1.0 - logs.exp())).exp()
        return TokenLoss(-weights * tokens.advantages * tokens.log_probs, {"sequence_weight": weights * tokens.mask})
