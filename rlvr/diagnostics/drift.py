"""Drift: how far training moves what it has no reason to move (arXiv 2604.13088, the learning tax)."""

from __future__ import annotations

import torch
from torch import Tensor


def log_odds(log_probs: Tensor) -> Tensor:
    """Log p / (1 - p) of log-probabilities, in float64; probabilities of 1 are taken as the next number below."""
    wide = log_probs.double().clamp(max=-1e-12)
    return wide - torch.log(-torch.expm1(wide))


def mean_drift(before: Tensor, after: Tensor, chosen: Tensor) -> float:
    """Mean absolute change of the log-odds of the ``chosen`` [N] bool of two sets of log-probabilities [N]."""
    return float((log_odds(after) - log_odds(before))[chosen].abs().mean())
