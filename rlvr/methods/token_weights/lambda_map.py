"""From soft assignments to token weights: DelTA's range map and its normalisation."""

from __future__ import annotations

from torch import Tensor


def unit_interval_to_weights(
    soft: Tensor, acts: Tensor, lambda_min: float, lambda_max: float, range_map: bool, normalised: bool
) -> Tensor:
    """Weights [N] in float64 of soft assignments [N] in [0, 1], those off both sides counting as 0.

    With the range map lambda = lambda_min + (lambda_max - lambda_min) soft, so tokens of advantage 0 get lambda_min;
    without it lambda = soft, and they get 0 and leave the normaliser. Normalised weights are lambda over its mean.

    Args:
        soft: [N] in float64.
        acts: [N] bool, tokens with an advantage other than 0.
        lambda_min: lambda where soft is 0.
        lambda_max: lambda where soft is 1.
        range_map: whether soft assignments are mapped to that range.
        normalised: whether the weights have mean 1.
    """
    present = soft.masked_fill(~acts, 0.0)
    weights = lambda_min + (lambda_max - lambda_min) * present if range_map else present
    if not normalised:
        return weights
    mean = weights.mean() if range_map else weights[acts].mean()
    return weights / mean
