"""REINFORCE, the loss of GPG (arXiv 2504.02546), and CISPO (arXiv 2506.13585), which weighs it by a bounded ratio."""

from __future__ import annotations

from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter


@component("reinforce")
class Reinforce(PolicyLoss):
    """-A log pi_theta. Off the sampling policy nothing corrects it and nothing bounds the step."""

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-tokens.advantages * tokens.log_probs, {})


@component("cispo")
class CISPO(PolicyLoss):
    """-sg[clip(r, 1 - epsilon_low, 1 + epsilon_high)] A log pi_theta: REINFORCE with a bounded importance weight.

    Clipped importance-sampling policy optimization (arXiv 2506.13585). No token loses its gradient; a ratio outside the
    range counts as much as one at its end. With epsilon_low = 1 the lower side is open.
    """

    epsilon_low: float = hyper_parameter(1.0, "the weight is at least 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.28, "the weight is at most 1 plus this", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; clip fractions count tokens whose weight is bounded."""
        ratios = tokens.ratios.detach()
        lower, upper = 1.0 - self.epsilon_low, 1.0 + self.epsilon_high
        loss = -ratios.clamp(lower, upper) * tokens.advantages * tokens.log_probs
        return TokenLoss(loss, tokens.clip_fractions(ratios < lower, ratios > upper))
