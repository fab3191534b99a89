"""The metrics that every token weighting reports."""

from __future__ import annotations

import math

from torch import Tensor


def weight_metrics(weights: Tensor) -> dict[str, float]:
    """Mean, 5th and 95th percentile (nearest rank) of the weights [N] of the real tokens; NaN without tokens."""
    if weights.numel() == 0:
        return dict.fromkeys(("token_weight_mean", "token_weight_p05", "token_weight_p95"), math.nan)
    return {
        "token_weight_mean": float(weights.double().mean()),
        "token_weight_p05": _nearest_rank(weights, 0.05),
        "token_weight_p95": _nearest_rank(weights, 0.95),
    }


def _nearest_rank(values: Tensor, level: float) -> float:
    """The smallest of ``values`` [N] that at least ``level`` of them do not exceed."""
    return float(values.kthvalue(max(1, math.ceil(level * values.numel()))).values)
