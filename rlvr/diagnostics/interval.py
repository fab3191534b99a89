"""A measurement: an estimate, its interval, what was claimed of it, and the verdict that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import t as student_t

CONFIDENCE = 0.95
SUPPORTED, CONTRADICTED, UNDECIDED = "supported here", "contradicted here", "not distinguishable"
Direction = Literal["above", "below"]


@dataclass(frozen=True)
class Measurement:
    """One number that a claim says something about.

    Attributes:
        statement: what is claimed, as a sentence that the verdict answers.
        quantity: what was measured, with its unit.
        estimate: mean over units.
        low: lower end of the interval; NaN where there is none.
        high: its upper end.
        null: the value that would mean "no such effect".
        direction: the side of ``null`` that the claim is on; None for a measurement that nothing is claimed of.
        units: how many independent units the interval is over.
        unit: what such a unit is.
    """

    statement: str
    quantity: str
    estimate: float
    low: float
    high: float
    null: float
    direction: Direction | None
    units: int
    unit: str

    @property
    def verdict(self) -> str:
        """What the interval says of the claim; empty where nothing is claimed."""
        if self.direction is None:
            return ""
        sign = 1.0 if self.direction == "above" else -1.0
        low, high = sorted((sign * (self.low - self.null), sign * (self.high - self.null)))
        if math.isnan(low) or math.isnan(high):
            return UNDECIDED
        return SUPPORTED if low > 0 else CONTRADICTED if high < 0 else UNDECIDED


def measure(
    statement: str,
    quantity: str,
    values: Sequence[float],
    unit: str,
    null: float = 0.0,
    direction: Direction | None = "above",
) -> Measurement:
    """The mean of ``values``, one per unit (NaN for none), with Student's interval over units.

    An update is a unit where tokens share it: what moves one token of an update moves the others, so they are no
    independent evidence. Fewer than two units have no interval.
    """
    known = np.asarray([value for value in values if not math.isnan(value)], dtype=np.float64)
    low, high = t_interval(known)
    mean = float(known.mean()) if len(known) else math.nan
    return Measurement(statement, quantity, mean, low, high, null, direction, len(known), unit)


def t_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval of the mean of ``values``; NaN for fewer than two."""
    if len(values) < 2:
        return math.nan, math.nan
    reach = student_t.ppf(0.5 + confidence / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - reach), float(values.mean() + reach)
