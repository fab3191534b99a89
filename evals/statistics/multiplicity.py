"""Correction for testing several hypotheses at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evals.statistics.accuracy import FloatArray


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Holm's adjusted p-values [..., M], in the order given, along the last axis.

    ``max over l <= j of min(1, (M - l + 1) p_(l))`` for the j-th smallest (Holm 1979, Scandinavian Journal of
    Statistics 6). Rejecting where the adjusted value is at most alpha keeps the chance of any false rejection at
    alpha, whatever the dependence between the tests.

    Raises:
        ValueError: a p-value is outside [0, 1] or NaN.
    """
    values = np.asarray(p_values, dtype=np.float64)
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise ValueError("p-values must lie in [0, 1]")
    order = np.argsort(values, axis=-1, kind="stable")
    factors = np.arange(values.shape[-1], 0, -1)
    ascending = np.minimum(1.0, factors * np.take_along_axis(values, order, axis=-1))
    adjusted = np.empty_like(values)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(ascending, axis=-1), axis=-1)
    return adjusted
