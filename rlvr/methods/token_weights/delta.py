"""DelTA, Discriminative Token Credit Assignment (arXiv 2605.21467).

A token counts for more the better its gradient tells rewarded responses from punished ones. Its gradient stands in as
v = (1 - p) h, with p its probability and h the input of the language-model head: up to sign, the gradient of log p with
respect to the token's own row of that head. The side centroids of v make a linear discriminant, refined by soft
assignment, and the weight grows with the margin on the token's own side.

Only the projection of v on the difference of the centroids is ever needed per token, because |v|^2 cancels in the
margin. So the hidden states are read 2 K + 2 times in chunks, no forward pass is added, and nothing of size [N, D] is
made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.precision import at_least_float32, computation_type
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.weight_statistics import weight_metrics

_VARIANCE_FLOOR = 1e-8
_CHUNK_ELEMENTS = 1 << 20
"""Hidden-state entries converted to float32 at a time (4 MiB): stays in the cache, so that memory is read once."""


@dataclass(frozen=True)
class DelTA:
    """Weights lambda_min + (lambda_max - lambda_min) sigmoid(margin / scale), divided by their mean over all tokens.

    Sides go by the sign of the advantage, over the whole rollout batch. Tokens of advantage 0 get lambda_min and enter
    the mean. If a side is empty there is nothing to tell apart and every weight is 1. Because of the final division
    only lambda_max / lambda_min matters, so a range on both sides of 1 is no restriction.
    """

    needs_hidden_states: ClassVar[bool] = True

    lambda_min: float = hyper_parameter(
        0.8, "weight, before normalisation, of the least telling token", minimum=0.0, maximum=1.0
    )
    lambda_max: float = hyper_parameter(1.2, "weight, before normalisation, of the most telling token", minimum=1.0)
    refinements: int = hyper_parameter(1, "refinement steps of the centroids (the paper's K)", minimum=0)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32 (mean 1 over the tokens, 0 at padding), and metrics.

        Raises:
            ValueError: the batch has no hidden states.
        """
        if batch.hidden_states is None:
            raise ValueError("DelTA needs the hidden states of the rollout batch")
        advantages = batch.token_advantages.double()
        positive, negative = advantages > 0, advantages < 0
        weights = torch.ones_like(advantages)
        scales = torch.full((2,), torch.nan, dtype=torch.float64, device=advantages.device)
        if bool(positive.any()) and bool(negative.any()):
            probabilities = batch.old_log_probs[batch.response_mask].double().exp()
            soft, scales = self._soft_assignment(batch.hidden_states, 1.0 - probabilities, advantages)
            unnormalised = self.lambda_min + (self.lambda_max - self.lambda_min) * soft
            weights = unnormalised / unnormalised.mean()
        padded = torch.zeros_like(batch.old_log_probs, dtype=computation_type(batch.old_log_probs))
        padded[batch.response_mask] = weights.to(padded.dtype)
        return padded, weight_metrics(weights) | {
            "positive_token_fraction": float(positive.double().mean()),
            "negative_token_fraction": float(negative.double().mean()),
            "token_weight_mean_positive": float(weights[positive].mean()),
            "token_weight_mean_negative": float(weights[negative].mean()),
            "margin_scale_positive": float(scales[0]),
            "margin_scale_negative": float(scales[1]),
        }

    def _soft_assignment(self, hidden_states: Tensor, surprise: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Soft assignments [N] (0 where the advantage is 0) and final scales [2] of the positive and negative side.

        Args:
            hidden_states: [N, D] in any floating type.
            surprise: [N] 1 - p in float64.
            advantages: [N] in float64, both signs present.
        """
        sides = torch.stack((advantages > 0, advantages < 0))
        mass = advantages.abs()
        margins = _margins(hidden_states, surprise, _centroids(hidden_states, surprise, mass, sides), sides)
        scales = _scales(margins, sides)
        for _ in range(self.refinements):
            soft = torch.sigmoid(margins / _per_token(scales, sides))
            centroids = _centroids(hidden_states, surprise, mass * soft, sides)
            scales = _scales(margins, sides)  # of the margins before this step: the paper's scale lags by one step
            margins = _margins(hidden_states, surprise, centroids, sides)
        soft = torch.sigmoid(margins / _per_token(scales, sides))
        return soft.masked_fill(~sides.any(dim=0), 0.0), scales


def _chunks(hidden_states: Tensor) -> list[slice]:
    """Row ranges that cover [N, D] with at most _CHUNK_ELEMENTS entries each (or one row)."""
    rows = max(1, _CHUNK_ELEMENTS // hidden_states.shape[1])
    return [slice(start, start + rows) for start in range(0, hidden_states.shape[0], rows)]


def _centroids(hidden_states: Tensor, surprise: Tensor, mass: Tensor, sides: Tensor) -> Tensor:
    """Centroids [2, D], in float64, of v over each side, weighted by ``mass`` [N]."""
    shares = sides * mass
    shares = shares / shares.sum(dim=1, keepdim=True)
    coefficients = (shares * surprise).to(computation_type(hidden_states))
    centroids = torch.zeros(2, hidden_states.shape[1], dtype=torch.float64, device=hidden_states.device)
    for rows in _chunks(hidden_states):
        chunk = at_least_float32(hidden_states[rows])
        for centroid, coefficient in zip(centroids, coefficients[:, rows], strict=True):
            centroid += coefficient @ chunk  # a product with both rows at once is far slower on CPUs
    return centroids


def _margins(hidden_states: Tensor, surprise: Tensor, centroids: Tensor, sides: Tensor) -> Tensor:
    """How much nearer, in squared distance, v is to its own side's centroid: [N] in float64, 0 off both sides."""
    positive, negative = centroids
    direction = (positive - negative).to(computation_type(hidden_states))
    projections = [at_least_float32(hidden_states[rows]) @ direction for rows in _chunks(hidden_states)]
    scores = 2.0 * surprise * torch.cat(projections) + (negative.square().sum() - positive.square().sum())
    signs = sides[0].double() - sides[1].double()
    return torch.mul(scores, signs)


def _scales(margins: Tensor, sides: Tensor) -> Tensor:
    """Population standard deviation [2] of the margins of each side, with a floor."""
    variances = torch.stack([margins[side].var(correction=0) for side in sides])
    return variances.clamp(min=_VARIANCE_FLOOR).sqrt()


def _per_token(scales: Tensor, sides: Tensor) -> Tensor:
    """Scale [N] of each token's side; any positive number off both sides."""
    return torch.where(sides[0], scales[0], scales[1])
