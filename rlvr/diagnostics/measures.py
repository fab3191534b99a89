"""Statistics of tokens that several claims share: flips, log-probability differences and rank correlations."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata
from torch import Tensor

FloatArray = npt.NDArray[np.float64]

MOVED = 0.1
"""Nats beyond which a whole training counts as having moved a token."""


@dataclass(frozen=True)
class Flips:
    """Fractions of tokens that rose, fell and did neither by more than a threshold: arXiv 2605.08666, on flipping."""

    boosted: float
    suppressed: float
    stable: float


def flips(displacements: Tensor, chosen: Tensor, threshold: float) -> Flips:
    """Count boosted, suppressed and stable tokens among the ``chosen`` [N] bool; NaN if there are none.

    Args:
        displacements: [N], log pi_after(y) - log pi_before(y), both of the trainer's own forward pass.
        chosen: the tokens that count.
        threshold: epsilon >= 0, in nats; the paper's value is not published, hence sweeps.
    """
    values = displacements[chosen]
    if len(values) == 0:
        return Flips(math.nan, math.nan, math.nan)
    boosted = float((values > threshold).double().mean())
    suppressed = float((values < -threshold).double().mean())
    return Flips(boosted, suppressed, 1.0 - boosted - suppressed)


def flip_rate(displacements: Tensor, sides: Tensor, threshold: float, side: int) -> float:
    """Return the share of tokens [N] that moved against their side [N], 1 or -1, among those of ``side`` that moved."""
    found = flips(displacements, sides == side, threshold)
    flipped, followed = (found.suppressed, found.boosted) if side > 0 else (found.boosted, found.suppressed)
    moved = flipped + followed
    return flipped / moved if moved > 0 else math.nan


def sweep(displacements: Tensor, sides: Tensor, thresholds: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield the fractions and the flip rate of each side at each threshold, as rows of a series.

    ``sides`` [N] are 1 for tokens of right responses and -1 for those of wrong ones, or the sign of the advantage.
    """
    for side in (1, -1):
        for threshold in thresholds:
            found = flips(displacements, sides == side, threshold)
            rate = flip_rate(displacements, sides, threshold, side)
            yield {"side": side, "threshold": threshold, **vars(found), "flip_rate": rate}


def rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Return Spearman's correlation of [N] and [N]; NaN where one is constant or has fewer than three values."""
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def log_prob_difference(frame: pd.DataFrame) -> pd.Series:
    """Return log pi_trained(y) - log pi_base(y) in float64: a difference of nearly equal numbers."""
    return frame["trained_log_prob"].astype("float64") - frame["base_log_prob"].astype("float64")
