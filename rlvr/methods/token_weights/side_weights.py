"""Weights of the two sides, put together from the parts of a rollout batch, with the metrics of DelTA's family."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlvr.methods.precision import computation_type
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.discriminant import TokenVectors
from rlvr.methods.token_weights.weight_statistics import weight_metrics


def weigh_scopes(
    batch: RolloutBatch,
    vectors: TokenVectors,
    scopes: Sequence[Tensor],
    weigh: Callable[[TokenVectors], tuple[Tensor, Tensor] | None],
) -> tuple[Tensor, dict[str, float]]:
    """Weights [B, T], 1 in parts that ``weigh`` has nothing to say of, and metrics of the whole batch.

    Args:
        batch: the rollout batch.
        vectors: of its N real tokens.
        scopes: the parts, [N] bool each.
        weigh: weights [N of the part] and scales [2] of a part's vectors, or None. Scales are averaged over parts.
    """
    weights = torch.ones_like(vectors.mass)
    scales = []
    for part in scopes:
        found = weigh(vectors.select(part))
        if found is not None:
            weights[part] = found[0]
            scales.append(found[1])
    mean_scales = torch.stack(scales).mean(dim=0) if scales else torch.full((2,), torch.nan)
    positive, negative = vectors.sides
    padded = torch.zeros_like(batch.old_log_probs, dtype=computation_type(batch.old_log_probs))
    padded[batch.response_mask] = weights.to(padded.dtype)
    return padded, weight_metrics(weights) | {
        "positive_token_fraction": float(positive.double().mean()),
        "negative_token_fraction": float(negative.double().mean()),
        "token_weight_mean_positive": float(weights[positive].mean()),
        "token_weight_mean_negative": float(weights[negative].mean()),
        "margin_scale_positive": float(mean_scales[0]),
        "margin_scale_negative": float(mean_scales[1]),
    }
