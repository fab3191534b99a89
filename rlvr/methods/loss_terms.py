"""The terms beside a loss: a correction for the sampler, a divergence from a reference policy, entropy.

Corrections are for a sampler that is not the policy before the update: another engine, or an older policy. mu is the
sampler's probability of a token, pi_old the trainer's before the update; w = pi_old / mu. A correction multiplies the
token losses of any loss by weights without a gradient. The mini-batch's normaliser stays that of all tokens. The KL
divergence is to the policy that the training started from, in the loss or in the reward. An entropy bonus lets the loss
fall with the entropy of the current policy at the tokens of the responses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.losses.base import MAX_LOG_RATIO, Tokens
from rlvr.methods.parameters import Component, component, hyper_parameter
from rlvr.methods.rollout_batch import at_least_float32

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

    is_weighted: ClassVar[bool]  # whether what counts has the weight w, or 1

    def weigh(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        ratios = self.ratios(tokens)
        outside = (ratios > self.upper) | (ratios < (self.lower or 0.0))
        return (ratios if self.is_weighted else torch.ones_like(ratios)).masked_fill(outside, 0.0), outside


@component("band")
class Band(Range):
    """Weights w where lower <= w <= upper, 0 elsewhere.

    IcePop (by token, 0.5 to 5, as in Ring-1T, arXiv 2510.18855); with level "sequence" and an upper bound alone masked
    importance sampling, MIS.
    """

    is_weighted: ClassVar[bool] = True


@component("mask")
class Mask(Range):
    """Weights 1 where lower <= w <= upper, 0 elsewhere: what counts is not weighted.

    With level "sequence" or "geometric" a response counts as a whole or not at all.
    """

    is_weighted: ClassVar[bool] = False


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


@dataclass(frozen=True)
class ReferenceKL(Component):
    """The base of both places for the divergence."""

    kind: ClassVar[str] = "kl"


@component("loss_term")
class LossTerm(ReferenceKL):
    """Adds coefficient k to every token's loss; k1 = log pi - log ref, k2 = k1^2 / 2, k3 = ref / pi + k1 - 1, or r k3.

    k3 is GRPO's (arXiv 2402.03300) with its 0.04. ``unbiased_k3`` is r k3, the estimator of DeepSeek-V3.2 (arXiv
    2512.02556), whose gradient is that of the divergence although the tokens are the old policy's. The gradient of k1
    has mean 0: as a loss it is noise.
    """

    coefficient: float = hyper_parameter(0.04, "factor of the divergence", minimum=0.0)
    estimator: Literal["k1", "k2", "k3", "unbiased_k3"] = hyper_parameter("k3", "how the divergence is estimated")

    def of(self, tokens: Tokens, reference_log_probs: Tensor) -> Tensor:
        """Estimate the divergence [B, T]; gradients pass."""
        name = "k3" if self.estimator == "unbiased_k3" else self.estimator
        values = estimated(name, tokens.log_probs, reference_log_probs, tokens.mask)
        return tokens.ratios * values if self.estimator == "unbiased_k3" else values


@component("reward_term")
class RewardTerm(ReferenceKL):
    """R_i - coefficient sum_t k of the policy that sampled, before rewards become advantages; k as in loss_term.

    The penalty of PPO for language models (arXiv 2203.02155) and of REINFORCE++, RLOO and ReMax, of a response as a
    whole. The coefficient is verl's.
    """

    coefficient: float = hyper_parameter(0.001, "factor of the divergence", minimum=0.0)
    estimator: Literal["k1", "k2", "k3"] = hyper_parameter("k1", "how the divergence is estimated")

    def penalties(self, log_probs: Tensor, reference_log_probs: Tensor, mask: Tensor) -> Tensor:
        """Compute what is taken from each reward: [B]."""
        values = estimated(self.estimator, at_least_float32(log_probs), reference_log_probs, mask)
        return self.coefficient * values.double().sum(dim=1)


def estimated(estimator: Literal["k1", "k2", "k3"], log_probs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """Estimate KL(pi || reference) [B, T] from log-probs [B, T] of pi's samples, 0 at padding.

    The log-ratio is limited to +-20 as all log-ratios are.
    """
    difference = (log_probs - at_least_float32(reference)).masked_fill(~mask, 0.0)
    limited = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator == "k1":
        return limited
    if estimator == "k2":
        return 0.5 * limited.square()
    return torch.expm1(-limited) + limited


CONTROL = "entropy_control"
"""The metric of a step that the next step's coefficient is computed from."""


@dataclass(frozen=True)
class EntropyBonus(Component, ABC):
    """The base of entropy bonuses: the token loss has -c H(pi_theta) beside it."""

    kind: ClassVar[str] = "entropy_bonus"

    @abstractmethod
    def coefficient_at(self, entropy: float, before: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """Choose c, and metrics, for a rollout batch whose tokens have a mean ``entropy``.

        ``before`` are the metrics of the step before, empty at first.
        """


@component("fixed")
class Fixed(EntropyBonus):
    """-coefficient H(pi_theta) at every token."""

    coefficient: float = hyper_parameter(0.001, "factor of the entropy in nats", minimum=0.0)

    def coefficient_at(self, entropy: float, before: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        return self.coefficient, {}


@component("target")
class Target(EntropyBonus):
    """-c H(pi_theta) while the rollouts' mean entropy is at most the target; c grows by step below it, else falls.

    Adaptive entropy control of Skywork-OR1 (arXiv 2505.22312): c starts at ``start`` and stays within 0 and ``most``.
    Target and start are those of the authors' scripts, step and limit TRL's.
    """

    target: float = hyper_parameter(0.2, "entropy that is to be kept, in nats a token", above=0.0)
    start: float = hyper_parameter(0.0, "c at the first step", minimum=0.0)
    step: float = hyper_parameter(0.005, "change of c a step", above=0.0)
    most: float = hyper_parameter(1.0, "largest c", above=0.0)

    def coefficient_at(self, entropy: float, before: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        control = self.start
        if CONTROL in before:
            change = self.step if before["entropy"] < self.target else -self.step
            control = min(max(before[CONTROL] + change, 0.0), self.most)
        coefficient = control if entropy <= self.target else 0.0
        return coefficient, {CONTROL: control, "entropy_coefficient": coefficient}
