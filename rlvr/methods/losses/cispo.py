"""CISPO, clipped importance-sampling policy optimization (arXiv 2506.13585): the clip bounds a weight, no gradient."""

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
class CISPO:
    """-sg[clip(r, 1 - epsilon_low, 1 + epsilon_high)] A log pi_theta: REINFORCE with a bounded importance weight.

    No token loses its gradient; a ratio outside the range counts as much as one at its end. With epsilon_low = 1 the
    lower side is open. The log-ratio is limited to +-20 before it is clipped. The metrics' clip fractions count tokens
    whose weight is bounded.
    """

    coupling: ClassVar[Coupling] = "rollout"

    epsilon_low: float = hyper_parameter(1.0, "the weight is at least 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.28, "the weight is at most 1 plus this", above=0.0)
    aggregation: Aggregation = aggregation_field("token-mean")  # noqa: RUF009 (a field)
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
        ratios = log_ratios.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        signal = at_least_float32(advantages).masked_fill(~response_mask, 0.0)
        lower, upper = 1.0 - self.epsilon_low, 1.0 + self.epsilon_high
        current = at_least_float32(log_probs).masked_fill(~response_mask, 0.0)
        below, above = (ratios < lower).to(ratios.dtype), (ratios > upper).to(ratios.dtype)
        metrics = {
            "clip_fraction": below + above,
            "clip_fraction_lower": below,
            "clip_fraction_upper": above,
            "approximate_kl": approximate_kl(log_ratios),
        }
        return -ratios.clamp(lower, upper) * signal * current, metrics
