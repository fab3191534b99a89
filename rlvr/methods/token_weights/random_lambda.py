"""Random weights in DelTA's range: the control that has its spread and none of its information (arXiv 2605.21467)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.precision import computation_type
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.weight_statistics import weight_metrics


@dataclass(frozen=True)
class RandomLambda:
    """Independent uniform draws from [lambda_min, lambda_max] for every token, divided by their mean.

    Drawn anew for every rollout batch, tokens of advantage 0 included.
    """

    needs_hidden_states: ClassVar[bool] = False
    sketch_dimensions: ClassVar[int | None] = None

    lambda_min: float = hyper_parameter(0.8, "smallest draw", minimum=0.0, maximum=1.0)
    lambda_max: float = hyper_parameter(1.2, "largest draw", minimum=1.0)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32 (mean 1 over the tokens, 0 at padding), and metrics."""
        tokens = int(batch.response_mask.sum())
        draws = torch.rand(tokens, generator=batch.generator, dtype=torch.float64).to(batch.response_mask.device)
        weights = self.lambda_min + (self.lambda_max - self.lambda_min) * draws
        weights = weights / weights.mean()
        padded = torch.zeros_like(batch.old_log_probs, dtype=computation_type(batch.old_log_probs))
        padded[batch.response_mask] = weights.to(padded.dtype)
        return padded, weight_metrics(weights)
