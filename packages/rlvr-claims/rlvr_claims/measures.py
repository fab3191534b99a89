"""Statistics of tokens that several claims share: flips, log-probability differences and rank correlations."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata
from torch import Tensor

FloatArray = npt.NDArray[np.float64]

MOVED = 0.1  # nats beyond which a whole training counts as having moved a token


@dataclass(frozen=True)
class Flips:
    """Fractions of tokens that rose, fell and did neither by more than a threshold: arXiv 2605.08666, on flipping."""

    boosted: float
    suppressed: float
    stable: float


def flips(displacements: Tensor, chosen: Tensor, threshold: float) -> Flips:
    """Count boosted, suppressed and stable tokens among the ``chosen`` [N] bool; NaN if there are none.

    ``displacements`` [N] are log pi_after(y) - log pi_before(y), both of the trainer's own forward pass. The paper's
    value of the ``threshold`` epsilon >= 0, in nats, is not published, hence sweeps.
    """
    values = displacements[chosen]
    if len(values) == 0:
        return Flips(math.nan, math.nan, math.nan)
    boosted = float((values > threshold).double().mean())
    suppressed = float((values < -threshold).double().mean())
    return Flips(boosted, suppressed, 1.0 - boosted - suppressed)


def sweep(displacements: Tensor, sides: Tensor, thresholds: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield the fractions and the flip rate of each side at each threshold, as rows of a series.

    ``sides`` [N] are 1 for tokens of right responses and -1 for those of wrong ones, or the sign of the advantage. The
    flip rate is the share of tokens that moved against their side, among those of it that moved.
    """
    for side, threshold in product((1, -1), thresholds):
        counted = flips(displacements, sides == side, threshold)
        flipped, moved = counted.suppressed if side > 0 else counted.boosted, counted.boosted + counted.suppressed
        rate = flipped / moved if moved > 0 else math.nan
        yield {"side": side, "threshold": threshold, **vars(counted), "flip_rate": rate}


def rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Return Spearman's correlation of [N] and [N]; NaN where one is constant or has fewer than three values."""
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def log_prob_difference(frame: pd.DataFrame) -> pd.Series:
    """Return log pi_trained(y) - log pi_base(y) in float64: a difference of nearly equal numbers."""
    return frame["trained_log_prob"].astype("float64") - frame["base_log_prob"].astype("float64")
