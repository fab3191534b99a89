"""Corrections for a sampler that is not the policy before the update: another engine, or an older policy.

mu is the sampler's probability of a token, pi_old the trainer's before the update; w = pi_old / mu. A correction
multiplies the token losses of any loss by weights without a gradient. The mini-batch's normaliser stays that of all
tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.losses.base import MAX_LOG_RATIO, Tokens
from rlvr.methods.parameters import Component, component, hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True)
class Correction(Component, ABC):
    """The base of corrections."""

    kind: ClassVar[str] = "correction"

    def anchored(self, tokens: Tokens) -> Tokens:
        """Return the tokens with the policy as pi_old that the loss forms its ratios to."""
        return tokens

    @abstractmethod
    def weigh(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Compute weights [B, T] or [B, 1], and bool of one of these shapes: what was limited or left out."""

    def __call__(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute weights [B, T] without a gradient, 0 at padding, and metrics [B, T]."""
        with torch.no_grad():
            weights, corrected = self.weigh(tokens)
            weights, corrected = weights * tokens.mask, corrected & tokens.mask
        return weights, {"correction_weight": weights, "corrected_fraction": corrected.to(weights.dtype)}


@dataclass(frozen=True)
class RatioCorrection(Correction):
    """The base of corrections by w: of a token, the product of a response's, or their geometric mean."""

    level: Level = hyper_parameter("token", "what w is of: a token, a response's product, or its geometric mean")

    def ratios(self, tokens: Tokens) -> Tensor:
        """Compute w, [B, T] or [B, 1], its log limited to +-20."""
        logs = tokens.sampler_log_ratios
        if self.level == "sequence":
            logs = logs.sum(dim=1, keepdim=True)
        if self.level == "geometric":
            logs = tokens.mean(logs)
        return logs.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@component("truncated")
class Truncated(RatioCorrection):
    """Weights min(w, cap).

    Truncated importance sampling, TIS: by token, or of a whole response with level "sequence". The cap is verl's.
    """

    cap: float = hyper_parameter(2.0, "largest weight", above=0.0)

    def weigh(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        ratios = self.ratios(tokens)
        return ratios.clamp(max=self.cap), ratios > self.cap


@dataclass(frozen=True)
class Range(RatioCorrection):
    """The base of corrections that leave out what has its w outside a range."""

    lower: float | None = hyper_parameter(0.5, "smallest w that counts; null for none", minimum=0.0)
    upper: float = hyper_parameter(5.0, "largest w that counts", above=0.0)

    def outside(self, ratios: Tensor) -> Tensor:
        """Tell which of w are outside the range."""
        return (ratios > self.upper) | (ratios < (self.lower or 0.0))


@component("band")
class Band(Range):
    """Weights w where lower <= w <= upper, 0 elsewhere.

    IcePop (by token, 0.5 to 5, as in Ring-1T, arXiv 2510.18855); with level "sequence" and an upper bound alone masked
    importance sampling, MIS.
    """

    def weigh(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        ratios = self.ratios(tokens)
        outside = self.outside(ratios)
        return ratios.masked_fill(outside, 0.0), outside


@component("mask")
class Mask(Range):
    """Weights 1 where lower <= w <= upper, 0 elsewhere: what counts is not weighted.

    With level "sequence" or "geometric" a response counts as a whole or not at all.
    """

    def weigh(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        ratios = self.ratios(tokens)
        outside = self.outside(ratios)
        return torch.ones_like(ratios).masked_fill(outside, 0.0), outside


@component("off_policy_mask")
class OffPolicyMask(Correction):
    """Weight 0 where A < 0 and the response's mean of log mu - log pi_theta exceeds delta, 1 elsewhere.

    Off-policy sequence masking of DeepSeek-V3.2 (arXiv 2512.02556): wrong responses that the present policy would
    hardly give teach it nothing. The distance counts both the sampler's and that of the updates since. delta is not
    published; 0.5 is the example in TRL's documentation.
    """

    delta: float = hyper_parameter(0.5, "largest mean log-ratio of a wrong response, in nats a token", above=0.0)

    def weigh(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        distance = tokens.mean(-tokens.log_ratios - tokens.sampler_log_ratios)
        dropped = (tokens.advantages < 0) & (distance > self.delta)
        return torch.ones_like(tokens.advantages).masked_fill(dropped, 0.0), dropped


@component("bypass")
class Bypass(Correction):
    """The loss's own ratios are to the sampler, pi_theta / mu, as if it were the policy before the update.

    Clips and trust regions then also act on what sampler and trainer differ by; DPPO and IPO are meant so. verl calls
    it bypass mode.
    """

    def anchored(self, tokens: Tokens) -> Tokens:
        return tokens.relative_to_sampler()

    def weigh(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return torch.ones_like(tokens.advantages), torch.zeros_like(tokens.mask)
