"""Statistics of token coefficients such as DelTA's lambda: by side, by class of token, against other columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

FloatArray = npt.NDArray[np.float64]


def class_enrichment(coefficients: FloatArray, classes: Sequence[str], wanted: str, fraction: float) -> float:
    """Share of class ``wanted`` among the tokens of highest coefficient, less its share among those of lowest.

    Args:
        coefficients: [N].
        classes: [N].
        wanted: one of them.
        fraction: of the tokens at either end, at most 0.5. Ties at the border count with the weight that makes both
            ends exactly so large.
    """
    if not 0 < fraction <= 0.5:
        raise ValueError(f"fraction is {fraction}; accepted: above 0, at most 0.5")
    is_wanted = np.array([each == wanted for each in classes], dtype=np.float64)
    top = end_weights(coefficients, fraction)
    bottom = end_weights(-coefficients, fraction)
    return float((top - bottom) @ is_wanted)


def end_weights(values: FloatArray, fraction: float) -> FloatArray:
    """Weights [N] that sum to 1 over the ``fraction`` of largest values, shared evenly among ties at the border."""
    size = fraction * len(values)
    threshold = np.sort(values)[::-1][min(len(values), math.ceil(size)) - 1]
    above, tied = values > threshold, values == threshold
    weights = above.astype(np.float64)
    weights[tied] = (size - above.sum()) / tied.sum()
    return np.asarray(weights / size)


def rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Spearman's correlation of [N] and [N]; NaN where one of them is constant or has fewer than three values."""
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])
