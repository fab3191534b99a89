"""SAPO, Soft Adaptive Policy Optimization (arXiv 2511.20347): a smooth gate where PPO has a clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, aggregation_constant_field, aggregation_field, check_aggregation
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.losses.ratio import MAX_LOG_RATIO, approximate_kl, log_ratio
from rlvr.methods.precision import at_least_float32
from rlvr.methods.seams import Coupling


@dataclass(frozen=True)
class SAPO:
    """-(4 / tau) sigmoid(tau (r - 1)) A, with tau_positive where A > 0 and tau_negative elsewhere.

    With p = sigmoid(tau (r - 1)) the factor on A grad log pi is 4 p (1 - p) r: 1 at r = 1, fading on both sides. Its
    value at r = 1 is 2 / tau, so losses compare with those of other methods by their gradients only. The log-ratio is
    limited to +-20. Nothing is clipped, so there are no clip fractions.
    """

    coupling: ClassVar[Coupling] = "rollout"

    tau_positive: float = hyper_parameter(1.0, "steepness of the gate where the advantage is positive", above=0.0)
    tau_negative: float = hyper_parameter(1.05, "steepness of the gate where the advantage is negative", above=0.0)
    aggregation: Aggregation = aggregation_field("seq-mean-token-mean")  # noqa: RUF009 (a field)
    aggregation_constant: float | None = aggregation_constant_field()

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)
        check_aggregation(self)

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        group_ids: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Token loss [B, T] and metrics [B, T]; the first four inputs are [B, T], the others play no part."""
        log_ratios = log_ratio(log_probs, old_log_probs, response_mask)
        ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        signal = at_least_float32(advantages).masked_fill(~response_mask, 0.0)
        tau = torch.full_like(ratios, self.tau_negative).masked_fill(signal > 0, self.tau_positive)
        gate = 4.0 / tau * torch.sigmoid(tau * (ratios - 1.0))
        return -signal * gate, {"approximate_kl": approximate_kl(log_ratios)}
