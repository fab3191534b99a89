"""KL-Cov and Clip-Cov (arXiv 2505.22617): both act on the few tokens whose covariance makes entropy fall."""

from __future__ import annotations

from typing import ClassVar

from evals.core.lazy_torch import torch
from rlvr.methods.losses.base import Coupling, PolicyLoss, TokenLoss, Tokens
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.parameters import component, hyper_parameter


@component("kl_cov")
class KLCov(PolicyLoss):
    """-r A for all tokens, + kl_coefficient |log r| for the top_fraction of them with the largest covariance.

    At least one token is penalised. Covariances are over the mini-batch, where verl takes them over a micro-batch.
    Nothing is clipped.
    """

    coupling: ClassVar[Coupling] = "mini_batch"  # covariances are ranked over all its tokens

    top_fraction: float = hyper_parameter(2e-4, "part of the tokens that is penalised", above=0.0, maximum=1.0)
    kl_coefficient: float = hyper_parameter(1.0, "factor of the penalty", minimum=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; ``penalised_fraction`` marks the tokens with the penalty."""
        penalised = torch.zeros_like(tokens.mask)
        if bool(tokens.mask.any()):
            covariances = tokens.covariances()
            largest = covariances.topk(max(1, int(covariances.numel() * self.top_fraction))).indices
            penalised[tokens.mask] = penalised[tokens.mask].index_fill(0, largest, True)
        penalty = self.kl_coefficient * tokens.log_ratios.abs() * penalised
        metrics = {"penalised_fraction": penalised.to(penalty.dtype)}
        return TokenLoss(-tokens.advantages * tokens.ratios + penalty, metrics)


@component("clip_cov")
class ClipCov(PolicyLoss):
    """PPO's clipped loss, without dual clip, with the loss of a random clip_fraction of the tokens set to 0.

    They are drawn among the tokens, not clipped anyway, whose covariance lies between covariance_low and
    covariance_high; at least one if there is any. Covariances are over the mini-batch, where verl takes them over a
    micro-batch.
    """

    coupling: ClassVar[Coupling] = "mini_batch"  # covariances and the draw are over all its tokens

    clip_fraction: float = hyper_parameter(2e-4, "part of the tokens that loses its gradient", above=0.0, maximum=1.0)
    covariance_low: float = hyper_parameter(1.0, "only tokens of a larger covariance are drawn")
    covariance_high: float = hyper_parameter(5.0, "only tokens of a smaller covariance are drawn")
    epsilon_low: float = hyper_parameter(0.2, "the ratio is clipped below 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.2, "the ratio is clipped above 1 plus this", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; ``covariance_clipped_fraction`` marks the tokens that were drawn."""
        clipped = Clipped(self.epsilon_low, self.epsilon_high, None).token_loss(tokens)
        drawn = torch.zeros_like(tokens.mask)
        if bool(tokens.mask.any()):
            covariances = tokens.covariances()
            free = clipped.metrics["clip_fraction"][tokens.mask] == 0
            eligible = free & (covariances > self.covariance_low) & (covariances < self.covariance_high)
            candidates = eligible.nonzero()[:, 0]
            count = max(1, int(self.clip_fraction * covariances.numel()))
            order = torch.randperm(candidates.numel(), generator=tokens.generator).to(candidates.device)
            drawn[tokens.mask] = drawn[tokens.mask].index_fill(0, candidates[order[:count]], True)
        metrics = {**clipped.metrics, "covariance_clipped_fraction": drawn.to(clipped.values.dtype)}
        return TokenLoss(clipped.values.masked_fill(drawn, 0.0), metrics)
