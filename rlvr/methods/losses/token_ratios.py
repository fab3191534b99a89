"""Losses of each token's own importance ratio: without a bound, clipped, with a bounded weight, or gated smoothly."""

from __future__ import annotations

from typing import ClassVar

from evals.core.lazy_torch import torch
from rlvr.methods.aggregation import Mode
from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter


@component("reinforce")
class Reinforce(PolicyLoss):
    """-A log pi_theta. Off the sampling policy nothing corrects it and nothing bounds the step.

    The loss of GPG (arXiv 2504.02546).
    """

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-tokens.advantages * tokens.log_probs, {})


@component("clipped")
class Clipped(PolicyLoss):
    """-min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A), never above -dual_clip A where A < 0.

    The surrogate of PPO and GRPO (arXiv 2402.03300) with DAPO's higher upper bound (arXiv 2503.14476), whose values are
    the defaults. The dual clip stops a token that has become far more likely although its answer is wrong from
    dominating the batch. A non-negative token weight multiplies A and leaves the clip's decision as it is.
    """

    epsilon_low: float = hyper_parameter(0.2, "the ratio is clipped below 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.28, "the ratio is clipped above 1 plus this", above=0.0)
    dual_clip: float | None = hyper_parameter(10.0, "largest ratio that counts where A < 0; null for none", above=1.0)

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


@component("grpo_fix")
class GRPOFix(PolicyLoss):
    """-clip(r, 1 - epsilon_low, 1 + epsilon_high) A: no gradient outside the range, on either side.

    The clip that the DFPO paper proposes (arXiv 2604.13088). PPO's minimum stops a token above the range only if its
    advantage is positive and below it only if negative, so a token that right and wrong responses share loses its
    gradient in some of them and keeps it in others. The appendix with the exact definition is not published; this is a
    reading of the paper's description.
    """

    epsilon_low: float = hyper_parameter(0.2, "no gradient below 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.28, "no gradient above 1 plus this", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; clip fractions count tokens outside the range that have an advantage."""
        advantages, ratios = tokens.advantages, tokens.ratios
        lower, upper = 1.0 - self.epsilon_low, 1.0 + self.epsilon_high
        acts = advantages != 0
        marks = tokens.clip_fractions(acts & (ratios < lower), acts & (ratios > upper))
        return TokenLoss(-advantages * ratios.clamp(lower, upper), marks)


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


@component("sapo")
class SAPO(PolicyLoss):
    """-(4 / tau) sigmoid(tau (r - 1)) A, with tau_positive where A > 0 and tau_negative elsewhere.

    Soft Adaptive Policy Optimization (arXiv 2511.20347). With p = sigmoid(tau (r - 1)) the factor on A grad log pi is
    4 p (1 - p) r: 1 at r = 1, fading on both sides. The gate is 2 / tau at r = 1, so losses compare with those of other
    methods by their gradients only.
    """

    default_aggregation: ClassVar[Mode] = "seq-mean-token-mean"

    tau_positive: float = hyper_parameter(1.0, "steepness of the gate where the advantage is positive", above=0.0)
    tau_negative: float = hyper_parameter(1.05, "steepness of the gate where the advantage is negative", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; nothing is clipped, so there are no clip fractions."""
        tau = torch.full_like(tokens.ratios, self.tau_negative).masked_fill(tokens.advantages > 0, self.tau_positive)
        gate = 4.0 / tau * torch.sigmoid(tau * (tokens.ratios - 1.0))
        return TokenLoss(-tokens.advantages * gate, {})
