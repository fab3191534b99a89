"""GSPO, Group Sequence Policy Optimization (arXiv 2507.18071): one importance ratio per response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, aggregation_constant_field, aggregation_field, check_aggregation
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.losses.ratio import MAX_LOG_SEQUENCE_RATIO, approximate_kl, log_ratio, mean_log_ratio
from rlvr.methods.precision import at_least_float32
from rlvr.methods.seams import Coupling


@dataclass(frozen=True)
class GSPO:
    """-min(s_i A, clip(s_i, 1 - epsilon_low, 1 + epsilon_high) A), s_i = exp(mean_t (log pi_theta - log pi_old)).

    Every token of response i carries the same ratio, the geometric mean of its tokens' ratios, hence the narrow clip
    range. No dual clip. seq-mean-token-mean gives the paper's objective.
    """

    coupling: ClassVar[Coupling] = "rollout"

    epsilon_low: float = hyper_parameter(
        3e-4, "the sequence ratio is clipped below 1 minus this", above=0.0, maximum=1.0
    )
    epsilon_high: float = hyper_parameter(4e-4, "the sequence ratio is clipped above 1 plus this", above=0.0)
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
        """Token loss [B, T] and metrics [B, T]; the first four inputs are [B, T], the others play no part.

        The clip fractions count tokens of responses whose gradient is stopped below or above the range.
        """
        log_ratios = log_ratio(log_probs, old_log_probs, response_mask)
        ratios = mean_log_ratio(log_ratios, response_mask).clamp(max=MAX_LOG_SEQUENCE_RATIO).exp()
        signal = at_least_float32(advantages).masked_fill(~response_mask, 0.0)
        lower, upper = 1.0 - self.epsilon_low, 1.0 + self.epsilon_high
        token_loss = torch.maximum(-signal * ratios, -signal * ratios.clamp(lower, upper))
        stopped_below = ((signal < 0) & (ratios < lower)).to(ratios.dtype)
        stopped_above = ((signal > 0) & (ratios > upper)).to(ratios.dtype)
        metrics = {
            "clip_fraction": stopped_below + stopped_above,
            "clip_fraction_lower": stopped_below,
            "clip_fraction_upper": stopped_above,
            "approximate_kl": approximate_kl(log_ratios),
        }
        return token_loss, metrics
