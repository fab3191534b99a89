"""The KL divergence to a reference policy, the one that the training started from: in the loss or in the reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.losses.base import MAX_LOG_RATIO, Tokens
from rlvr.methods.parameters import Component, component, hyper_parameter
from rlvr.methods.rollout_batch import at_least_float32

if TYPE_CHECKING:
    from torch import Tensor


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
