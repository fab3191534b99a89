"""The log-ratio between the current and the sampling policy, and what every loss derives from it."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr.methods.precision import at_least_float32

MAX_LOG_RATIO = 20.0
"""exp(20) is about 5e8: far outside every clip range, and still finite times any advantage in float32."""


def log_ratio(log_probs: Tensor, old_log_probs: Tensor, response_mask: Tensor) -> Tensor:
    """Log-ratio log pi_theta - log pi_old [B, T], in float32 or better; exactly 0, with gradient 0, at padding.

    Padding is replaced before anything is computed from it, because 0 times an overflow met later would be NaN.
    """
    difference = at_least_float32(log_probs) - at_least_float32(old_log_probs)
    return difference.masked_fill(~response_mask, 0.0)


MAX_LOG_SEQUENCE_RATIO = 10.0
"""Upper limit of the log of a sequence ratio, as in verl; a mean over tokens, so no lower limit is needed."""


def mean_log_ratio(log_ratios: Tensor, response_mask: Tensor) -> Tensor:
    """Mean [B, 1] of each response's log-ratios [B, T], which are 0 at padding: the log of their geometric mean."""
    return log_ratios.sum(dim=1, keepdim=True) / response_mask.sum(dim=1, keepdim=True).clamp(min=1)


def approximate_kl(log_ratios: Tensor) -> Tensor:
    """Per-token estimate [B, T] of KL(pi_old || pi_theta) from samples of pi_old: r - 1 - log r, never negative.

    The log-ratio is limited to +-MAX_LOG_RATIO; the result carries no gradient.
    """
    limited = log_ratios.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(limited) - limited
