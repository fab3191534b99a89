"""The clipped surrogate of PPO and GRPO (arXiv 2402.03300), with DAPO's higher upper bound (arXiv 2503.14476)."""

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
class Clipped:
    """-min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A), never above -dual_clip A where A < 0.

    The dual clip stops a token that has become far more likely although its answer is wrong from dominating the
    batch. A non-negative token weight multiplies A and leaves the clip's decision as it is. The log-ratio is limited
    to +-20. The defaults are DAPO's.
    """

    coupling: ClassVar[Coupling] = "rollout"

    epsilon_low: float = hyper_parameter(0.2, "the ratio is clipped below 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.28, "the ratio is clipped above 1 plus this", above=0.0)
    dual_clip: float | None = hyper_parameter(
        10.0, "largest ratio that counts for a negative advantage; null for no dual clip", above=1.0
    )
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
        """Token loss [B, T] and metrics [B, T]; the first four inputs are [B, T], the others play no part.

        Metrics: ``clip_fraction_lower`` marks tokens whose gradient is stopped below the range, ``..._upper`` above it
        (by the clip where A > 0, by the dual clip where A < 0), ``clip_fraction`` either; and ``approximate_kl``.
        """
        log_ratios = log_ratio(log_probs, old_log_probs, response_mask)
        ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        signal = at_least_float32(advantages).masked_fill(~response_mask, 0.0)
        lower, upper = 1.0 - self.epsilon_low, 1.0 + self.epsilon_high
        token_loss = torch.maximum(-signal * ratios, -signal * ratios.clamp(lower, upper))
        stopped_below = (signal < 0) & (ratios < lower)
        stopped_above = (signal > 0) & (ratios > upper)
        if self.dual_clip is not None:
            bounded = torch.minimum(token_loss, -signal * self.dual_clip)
            token_loss = torch.where(signal < 0, bounded, token_loss)
            stopped_above |= (signal < 0) & (ratios > self.dual_clip)
        metrics = {
            "clip_fraction": (stopped_below | stopped_above).to(ratios.dtype),
            "clip_fraction_lower": stopped_below.to(ratios.dtype),
            "clip_fraction_upper": stopped_above.to(ratios.dtype),
            "approximate_kl": approximate_kl(log_ratios),
        }
        return token_loss, metrics
