"""Losses that look at a whole mini-batch: KL-Cov and Clip-Cov (arXiv 2505.22617), and FIPO (arXiv 2603.19835).

The first two act on the few tokens whose covariance makes entropy fall, the third weighs a token by the drift of its
future.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

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


@component("fipo")
class FIPO(PolicyLoss):
    """DAPO's clipped loss on f_t A, f_t = sg[clip(exp(F_t), 1 - future_low, 1 + future_high)].

    F_t = sum_(k >= t) M_k 2^(-(k - t) / half_life) (log pi_theta - log pi_old)_k is the discounted drift of the rest of
    the response, the current token included; M_k leaves out tokens whose ratio exceeds dual_clip. Where A < 0 and the
    ratio exceeds safety_ratio, f_t is limited to [0.8, 1] (the released code, safety_rule "limit") or set to 1 (the
    paper, "reset"). A response with more than one token over the dual-clip bound is dropped, from the normaliser too.
    On the first update after a rollout F is 0 everywhere and this is DAPO's loss.
    """

    coupling: ClassVar[Coupling] = "mini_batch"  # dropped responses leave the mini-batch's normaliser

    half_life: float = hyper_parameter(32.0, "tokens over which the influence of the future halves", above=0.0)
    future_low: float = hyper_parameter(0.0, "f_t is at least 1 minus this", minimum=0.0, maximum=1.0)
    future_high: float | None = hyper_parameter(0.2, "f_t is at most 1 plus this; null: 10, as released", minimum=0.0)
    safety_ratio: float = hyper_parameter(10.0, "ratio above which a negative advantage is not amplified", above=1.0)
    safety_rule: Literal["limit", "reset"] = hyper_parameter("limit", "what happens to f_t there")
    epsilon_low: float = hyper_parameter(0.2, "the ratio is clipped below 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.28, "the ratio is clipped above 1 plus this", above=0.0)
    dual_clip: float = hyper_parameter(10.0, "largest ratio that counts for a negative advantage", above=1.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; ``future_weight`` is f_t, ``dropped_fraction`` marks the tokens of dropped responses."""
        advantages, mask, ratios = tokens.advantages, tokens.mask, tokens.ratios.detach()
        steps = tokens.limited_log_ratios.detach().masked_fill(ratios > self.dual_clip, 0.0)
        discount = 2.0 ** (-1.0 / self.half_life)
        futures = torch.zeros_like(steps)
        future = torch.zeros_like(steps[:, 0])
        for position in range(steps.shape[1] - 1, -1, -1):
            future = steps[:, position] + discount * future
            futures[:, position] = future
        highest = 10.0 if self.future_high is None else 1.0 + self.future_high
        weights = futures.exp().clamp(1.0 - self.future_low, highest)
        unsafe = (advantages < 0) & (ratios > self.safety_ratio)
        safe = weights.clamp(0.8, 1.0) if self.safety_rule == "limit" else torch.ones_like(weights)
        weights = torch.where(unsafe, safe, weights)
        clipped = Clipped(self.epsilon_low, self.epsilon_high, self.dual_clip)
        loss = clipped.token_loss(replace(tokens, given_advantages=weights * advantages))
        bounded = (advantages < 0) & (ratios > self.dual_clip)
        kept = mask & (bounded.sum(dim=1, keepdim=True) <= 1)
        dropped = (mask & ~kept).to(weights.dtype)
        metrics = {**loss.metrics, "future_weight": weights * mask, "dropped_fraction": dropped}
        return TokenLoss(loss.values, metrics, kept)
