"""DFPO, Drift Fixing Policy Optimization (arXiv 2604.13088), and GRPO-fix, the clip that the same paper proposes."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlvr.methods.losses.base import MAX_LOG_RATIO, Coupling, PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter


@component("dfpo")
class DFPO(PolicyLoss):
    """-w~_i A_i pi_theta / sg[pi_theta], w~ a transform, within the group, of stop-gradient sequence weights w_i.

    "min_replace" gives every response its group's smallest weight, so that sum_i w~_i A_i = 0 whenever the advantages
    sum to 0: a token that all responses share gets no push. "advantage_orthogonal" takes from w its component along A,
    w~ = w - (A.w / |A|^2) A, so that the sum is 0 in any case; a weight can become negative. Nothing is clipped. At
    w = 1 and with whole groups both are the plain group-advantage policy gradient.

    The paper's weights and hyper-parameters are not published; w is GSPO's length-normalised ratio ("sequence_mean")
    or the product of token ratios, its log limited to +-20. Groups are those within the mini-batch: batching has to
    keep them whole for the cancellation to be the group's. seq-mean-token-mean divides by each response's own length
    and breaks the exact cancellation of shared tokens; token-mean keeps it.
    """

    coupling: ClassVar[Coupling] = "group"

    transform: Literal["min_replace", "advantage_orthogonal"] = hyper_parameter(
        "min_replace", "how the weights of a group are changed"
    )
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
        _, members = torch.unique(tokens.group_ids, return_inverse=True)
        groups = int(members.max()) + 1
        if self.transform == "min_replace":
            smallest = torch.full_like(weights[:1], torch.inf).repeat(groups)
            smallest = smallest.scatter_reduce(0, members, weights.masked_fill(~present, torch.inf), "amin")
            return smallest[members].masked_fill(~present, 0.0)[:, None]
        advantages = tokens.mean(tokens.advantages)[:, 0]
        zeros = torch.zeros_like(weights[:1]).repeat(groups)
        products = zeros.index_add(0, members, advantages * weights)
        squares = zeros.index_add(0, members, advantages.square())
        along = torch.where(squares > 0, products / squares.clamp(min=torch.finfo(squares.dtype).tiny), 0.0)
        return (weights - along[members] * advantages).masked_fill(~present, 0.0)[:, None]


@component("grpo_fix")
class GRPOFix(PolicyLoss):
    """-clip(r, 1 - epsilon_low, 1 + epsilon_high) A: no gradient outside the range, on either side.

    PPO's minimum stops a token above the range only if its advantage is positive and below it only if negative, so a
    token that right and wrong responses share loses its gradient in some of them and keeps it in others. The appendix
    with the exact definition is not published; this is a reading of the paper's description.
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
