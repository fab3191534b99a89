"""GMPO, Geometric-Mean Policy Optimization (arXiv 2507.20673): the geometric mean of a response's clipped ratios."""

from __future__ import annotations

from typing import ClassVar

from rlvr.methods.aggregation import Mode
from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter


@component("gmpo")
class GMPO(PolicyLoss):
    """-A exp(mean_t l_t), l_t the log-ratio clipped to [-epsilon_low, epsilon_high] where that lowers the objective.

    So l_t has an upper bound where A > 0 and a lower one where A < 0, and a token beyond its bound has no gradient.
    The bounds are on the log-ratio. The advantage of a response is the mean over its tokens, which counts token
    weights. Every token carries its response's loss, so seq-mean-token-mean is the paper's mean over responses.
    """

    default_aggregation: ClassVar[Mode] = "seq-mean-token-mean"

    epsilon_low: float = hyper_parameter(0.4, "log-ratios are clipped below minus this where A < 0", above=0.0)
    epsilon_high: float = hyper_parameter(0.4, "log-ratios are clipped above this where A > 0", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; clip fractions mark tokens whose gradient is stopped."""
        advantages, limited = tokens.advantages, tokens.limited_log_ratios
        below = (advantages < 0) & (limited < -self.epsilon_low)
        above = (advantages > 0) & (limited > self.epsilon_high)
        clipped = limited.masked_fill(below, -self.epsilon_low).masked_fill(above, self.epsilon_high)
        loss = -tokens.mean(advantages) * tokens.mean(clipped).exp() * tokens.mask
        return TokenLoss(loss, tokens.clip_fractions(below, above))
