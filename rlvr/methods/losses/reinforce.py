"""REINFORCE: the policy gradient itself, without a ratio; the loss of GPG (arXiv 2504.02546)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, aggregation_constant_field, aggregation_field, check_aggregation
from rlvr.methods.hyper_parameter import check_hyper_parameters
from rlvr.methods.losses.ratio import approximate_kl, log_ratio
from rlvr.methods.precision import at_least_float32
from rlvr.methods.seams import Coupling


@dataclass(frozen=True)
class Reinforce:
    """-A log pi_theta. Off the sampling policy nothing corrects it and nothing bounds the step."""

    coupling: ClassVar[Coupling] = "rollout"

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
        signal = at_least_float32(advantages).masked_fill(~response_mask, 0.0)
        current = at_least_float32(log_probs).masked_fill(~response_mask, 0.0)
        return -signal * current, {"approximate_kl": approximate_kl(log_ratios)}
