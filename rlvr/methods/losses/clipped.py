"""The clipped surrogate of PPO and GRPO (arXiv 2402.03300), with DAPO's higher upper bound (arXiv 2503.14476)."""

from __future__ import annotations

import torch

from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter


@component("clipped")
class Clipped(PolicyLoss):
    """-min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A), never above -dual_clip A where A < 0.

    The dual clip stops a token that has become far more likely although its answer is wrong from dominating the
    batch. A non-negative token weight multiplies A and leaves the clip's decision as it is. The defaults are DAPO's.
    """

    epsilon_low: float = hyper_parameter(0.2, "the ratio is clipped below 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.28, "the ratio is clipped above 1 plus this", above=0.0)
    dual_clip: float | None = hyper_parameter(
        10.0, "largest ratio that counts for a negative advantage; null for no dual clip", above=1.0
    )

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; clip fractions mark tokens whose gradient the clip or the dual clip stops."""
        advantages, ratios = tokens.advantages, tokens.ratios
        lower, upper = 1.0 - self.epsilon_low, 1.0 + self.epsilon_high
        loss = torch.maximum(-advantages * ratios, -advantages * ratios.clamp(lower, upper))
        below, above = (advantages < 0) & (ratios < lower), (advantages > 0) & (ratios > upper)
        if self.dual_clip is not None:
            bounded = torch.minimum(loss, -advantages * self.dual_clip)
            loss = torch.where(advantages < 0, bounded, loss)
            above |= (advantages < 0) & (ratios > self.dual_clip)
        return TokenLoss(loss, tokens.clip_fractions(below, above))
