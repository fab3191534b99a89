"""Losses of one importance ratio, or one weight, per response."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.aggregation import Mode
from rlvr.methods.losses.base import MAX_LOG_RATIO, Coupling, PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_SEQUENCE_RATIO = 10.0
"""Upper limit of the log of a sequence ratio, as in verl; a mean over tokens, so no lower limit is needed."""


@component("gspo")
class GSPO(PolicyLoss):
    """-min(s_i A, clip(s_i, 1 - epsilon_low, 1 + epsilon_high) A), s_i = exp(mean_t (log pi_theta - log pi_old)).

    Group Sequence Policy Optimization (arXiv 2507.18071). Every token of response i carries the same ratio, the
    geometric mean of its tokens' ratios, hence the narrow clip range. No dual clip. seq-mean-token-mean gives the
    paper's objective.
    """

    default_aggregation: ClassVar[Mode] = "seq-mean-token-mean"

    epsilon_low: float = hyper_parameter(3e-4, "a sequence ratio is clipped below 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(4e-4, "a sequence ratio is clipped above 1 plus this", above=0.0)

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


@component("gmpo")
class GMPO(PolicyLoss):
    """-A exp(mean_t l_t), l_t the log-ratio clipped to [-epsilon_low, epsilon_high] where that lowers the objective.

    Geometric-Mean Policy Optimization (arXiv 2507.20673). So l_t has an upper bound where A > 0 and a lower bound where
    A < 0, and a token beyond its bound has no gradient. The bounds are on the log-ratio. The advantage of a response is
    the mean over its tokens, which counts token weights. Every token carries its response's loss, so
    seq-mean-token-mean is the paper's mean over responses.
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


@component("dfpo")
class DFPO(PolicyLoss):
    """-w~_i A_i pi_theta / sg[pi_theta], w~ a transform, within the group, of stop-gradient sequence weights w_i.

    Drift Fixing Policy Optimization (arXiv 2604.13088). "min_replace" gives every response its group's smallest weight,
    so that sum_i w~_i A_i = 0 whenever the advantages sum to 0: a token that all responses share gets no push.
    "advantage_orthogonal" takes from w its component along A, w~ = w - (A.w / |A|^2) A, so that the sum is 0 in any
    case; a weight can become negative. Nothing is clipped. At w = 1 and with whole groups both are the plain
    group-advantage policy gradient.

    The paper's weights and hyper-parameters are not published; w is GSPO's length-normalised ratio ("sequence_mean")
    or the product of token ratios, its log limited to +-20. Groups are those within the mini-batch: batching has to
    keep them whole for the cancellation to be the group's. seq-mean-token-mean divides by each response's own length
    and breaks the exact cancellation of shared tokens; token-mean keeps it.
    """

    coupling: ClassVar[Coupling] = "group"

    transform: Literal["min_replace", "advantage_orthogonal"] = hyper_parameter("min_replace", "change of the weights")
    weight: Literal["sequence_mean", "product"] = hyper_parameter("sequence_mean", "the weight of a response")

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; ``sequence_weight`` is w~.

        With token weights, a response's advantage in the transform is the mean over its tokens.
        """
        weights = self._transformed(tokens)
        slope_one = (tokens.log_ratios - tokens.log_ratios.detach()).exp()
        return TokenLoss(-weights * tokens.advantages * slope_one, {"sequence_weight": weights * tokens.mask})

    def _transformed(self, tokens: Tokens) -> Tensor:
        """Compute w~ [B, 1]; responses without tokens take no part."""
        log_ratios = tokens.log_ratios.detach()
        logs = tokens.mean(log_ratios) if self.weight == "sequence_mean" else log_ratios.sum(dim=1, keepdim=True)
        weights = logs[:, 0].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        present = tokens.mask.any(dim=1)
        groups, members = torch.unique(tokens.group_ids, return_inverse=True)
        if self.transform == "min_replace":
            smallest = weights.new_full(groups.shape, torch.inf)
            smallest = smallest.scatter_reduce(0, members, weights.masked_fill(~present, torch.inf), "amin")
            return smallest[members].masked_fill(~present, 0.0)[:, None]
        advantages = tokens.mean(tokens.advantages)[:, 0]
        zeros = weights.new_zeros(groups.shape)
        products = zeros.index_add(0, members, advantages * weights)
        squares = zeros.index_add(0, members, advantages.square())
        along = products / squares.clamp(min=torch.finfo(squares.dtype).tiny)  # 0 where all advantages are
        return (weights - along[members] * advantages)[:, None]
