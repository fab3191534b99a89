"""Losses without a clip: a trust region that leaves tokens out, or weights made for samples of another policy."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.aggregation import Mode
from rlvr.methods.losses.base import MAX_LOG_RATIO, Coupling, PolicyLoss, TokenLoss, Tokens
from rlvr.methods.parameters import component, hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DivergenceRegion(PolicyLoss):
    """The base of DPPO's two forms: -A sg[min(r, ratio_cap)] log pi_theta of the tokens within the region."""

    delta_low: float = hyper_parameter(0.15, "largest divergence where A < 0", above=0.0)
    delta_high: float = hyper_parameter(0.15, "largest divergence where A > 0", above=0.0)
    ratio_cap: float = hyper_parameter(20.0, "largest ratio that counts", above=1.0)

    @abstractmethod
    def divergence(self, old: Tensor, current: Tensor, tokens: Tokens) -> Tensor:
        """Compute how far the probabilities [B, T] are apart."""

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; clip fractions mark the tokens outside the region, which have no gradient."""
        advantages, current = tokens.advantages, tokens.log_probs.detach().exp()
        old = tokens.old_log_probs.exp()
        divergence = self.divergence(old, current, tokens)
        below = (advantages < 0) & (current < old) & ~(divergence <= self.delta_low)
        above = (advantages > 0) & (current > old) & ~(divergence <= self.delta_high)
        weights = tokens.ratios.detach().clamp(max=self.ratio_cap).masked_fill(below | above, 0.0)
        return TokenLoss(-weights * advantages * tokens.log_probs, tokens.clip_fractions(below, above))


@component("dppo_tv")
class DPPOTV(DivergenceRegion):
    """-A sg[min(r, cap)] log pi_theta, 0 where A > 0 and p - p_old > delta_high, or A < 0 and p_old - p > delta_low.

    Divergence proximal policy optimization by total variation (arXiv 2602.04879), p a token's probability: a rare token
    may change its ratio by much, a frequent one hardly, where PPO's clip does the opposite. Thresholds are those of the
    authors' runs.
    """

    def divergence(self, old: Tensor, current: Tensor, tokens: Tokens) -> Tensor:
        return (current - old).abs()


@component("dppo_kl")
class DPPOKL(DivergenceRegion):
    """-A sg[min(r, cap)] log pi_theta, 0 where the binary KL(p_old || p) exceeds delta and p moves with the sign of A.

    Divergence proximal policy optimization (arXiv 2602.04879): the divergence is that of "this token or another", p_old
    log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)), 1e-8 added to both probabilities of another token.
    """

    delta_low: float = hyper_parameter(0.05, "largest divergence where A < 0, in nats", above=0.0)
    delta_high: float = hyper_parameter(0.05, "largest divergence where A > 0, in nats", above=0.0)

    def divergence(self, old: Tensor, current: Tensor, tokens: Tokens) -> Tensor:
        others = ((1.0 - old + 1e-8) / (1.0 - current + 1e-8)).log()
        return -old * tokens.log_ratios.detach() + (1.0 - old) * others


@component("ipo")
class IPO(PolicyLoss):
    """-r A of the tokens with |p - p_old| <= epsilon, plus kl_coefficient (log r)^2 of every token.

    The trust region of INTELLECT-3's trainer, prime-rl: the same on both sides whatever the sign of A. It is applied to
    the policy that sampled (correction: bypass).
    """

    epsilon: float = hyper_parameter(0.1, "largest change of a token's probability", above=0.0, maximum=1.0)
    kl_coefficient: float = hyper_parameter(1e-3, "factor of the squared log-ratio", minimum=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; clip fractions mark the tokens outside the region that have an advantage."""
        advantages = tokens.advantages
        change = tokens.log_probs.detach().exp() - tokens.old_log_probs.exp()
        outside = (change.abs() > self.epsilon) & tokens.mask
        policy_loss = -(advantages * tokens.ratios).masked_fill(outside, 0.0)
        acts = outside & (advantages != 0)
        marks = tokens.clip_fractions(acts & (change < 0), acts & (change > 0))
        return TokenLoss(policy_loss + self.kl_coefficient * tokens.limited_log_ratios.square(), marks)


@component("m2po")
class M2PO(PolicyLoss):
    """-r A of the tokens left when those of the largest (log r)^2 go until the mean of the rest is below tau.

    Second-moment trust policy optimization (arXiv 2510.01161, section 5.2 and algorithm 1). Only tokens of the trust
    region are counted and may go: A > 0 and r > 1, or A < 0 and r < 1. The mean is over the mini-batch, as in the
    paper, where a public trainer takes a micro-batch's. Tokens as far out as the last one to go, go too. None of them
    leaves the normaliser.
    """

    coupling: ClassVar[Coupling] = "mini_batch"  # the second moment is that of all its tokens of the trust region

    tau: float = hyper_parameter(0.04, "largest mean of the squared log-ratios", above=0.0)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss; ``dropped_fraction`` marks the tokens that went."""
        log_ratios = tokens.log_ratios.detach()
        squares, in_region = log_ratios.square(), tokens.mask & (tokens.advantages * log_ratios.sign() > 0)
        descending = squares[in_region].double().sort(descending=True).values
        counts = torch.arange(descending.numel(), 0, -1, device=descending.device)
        means = descending.flip(0).cumsum(0).flip(0) / counts  # of the tokens from each one on
        gone = int((means >= self.tau).sum())
        dropped = torch.zeros_like(tokens.mask)
        if gone:
            dropped = in_region & (squares.double() >= descending[gone - 1])
        loss = -(tokens.advantages * tokens.ratios).masked_fill(dropped, 0.0)
        return TokenLoss(loss, {"dropped_fraction": dropped.to(loss.dtype)})


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
