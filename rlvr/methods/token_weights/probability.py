"""Weights that depend on a token's probability alone: low-probability re-weighting and Dominate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.precision import at_least_float32
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.weight_statistics import weight_metrics


@dataclass(frozen=True)
class LowProbability:
    """1 + alpha (1 - p): improbable tokens count for more (RLVR-Directions, arXiv 2603.22117).

    p is the sampling policy's probability. The weights are not normalised; their mean is above 1.
    """

    needs_hidden_states: ClassVar[bool] = False
    sketch_dimensions: ClassVar[int | None] = None

    alpha: float = hyper_parameter(0.2, "additional weight of a token of probability 0", minimum=0.0)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32, 0 at padding, and metrics."""
        return _padded(batch, 1.0 + self.alpha * (1.0 - _probabilities(batch)))


@dataclass(frozen=True)
class Dominate:
    """a p + 1 - a: improbable tokens count for less (Advantage Reweighting, arXiv 2505.12929).

    p is the sampling policy's probability. Not normalised; the mean is below 1.
    """

    needs_hidden_states: ClassVar[bool] = False
    sketch_dimensions: ClassVar[int | None] = None

    a: float = hyper_parameter(0.2, "part of the weight that falls with the probability", minimum=0.0, maximum=1.0)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32, 0 at padding, and metrics."""
        return _padded(batch, self.a * _probabilities(batch) + (1.0 - self.a))


def _probabilities(batch: RolloutBatch) -> Tensor:
    """Probability of each token under the sampling policy [B, T]; 1 at padding."""
    return at_least_float32(batch.old_log_probs).masked_fill(~batch.response_mask, 0.0).exp()


def _padded(batch: RolloutBatch, weights: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Weights [B, T] with zeros at padding, and their metrics."""
    masked = weights.masked_fill(~batch.response_mask, 0.0)
    return masked, weight_metrics(masked[batch.response_mask])
