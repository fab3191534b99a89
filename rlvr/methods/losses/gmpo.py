"""GMPO, Geometric-Mean Policy Optimization (arXiv 2507.20673): the geometric mean of a response's clipped ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, aggregation_constant_field, aggregation_field, check_aggregation
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.losses.ratio import MAX_LOG_RATIO, approximate_kl, log_ratio, mean_log_ratio
from rlvr.methods.precision import at_least_float32
from rlvr.methods.seams import Coupling


@dataclass(frozen=True)
class GMPO:
    """-A exp(mean_t l_t), l_t the log-ratio clipped to [-epsilon_low, epsilon_high] where that lowers the objective.

    So l_t has an upper bound where A > 0 and a lower one where A < 0, and a token beyond its bound has no gradient.
    The bounds are on the log-ratio. The advantage of a response is the mean over its tokens, which counts token
    weights. Every token carries its response's loss, so seq-mean-token-mean is the paper's mean over responses. The
    log-ratio is limited to +-20.
    """

    coupling: ClassVar[Coupling] = "rollout"

    epsilon_low: float = hyper_parameter(0.4, "log-ratios are clipped below minus this where A < 0", above=0.0)
    epsilon_high: float = hyper_parameter(0.4, "log-ratios are clipped above this where A > 0", above=0.0)
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
        limited = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        signal = at_least_float32(advantages).masked_fill(~response_mask, 0.0)
        below, above = (signal < 0) & (limited < -self.epsilon_low), (signal > 0) & (limited > self.epsilon_high)
        clipped = limited.masked_fill(below, -self.epsilon_low).masked_fill(above, self.epsilon_high)
        ratios = mean_log_ratio(clipped, response_mask).exp()
        lengths = response_mask.sum(dim=1, keepdim=True).clamp(min=1)
        response_advantages = signal.sum(dim=1, keepdim=True) / lengths
        metrics = {
            "clip_fraction": (below | above).to(ratios.dtype),
            "clip_fraction_lower": below.to(ratios.dtype),
            "clip_fraction_upper": above.to(ratios.dtype),
            "approximate_kl": approximate_kl(log_ratios),
        }
        return (-response_advantages * ratios) * response_mask, metrics
