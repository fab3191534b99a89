"""Token flipping: which tokens an update makes more likely, and which less (arXiv 2605.08666, section on flipping)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Flips:
    """Fractions of a set of tokens, which sum to 1 (NaN for an empty set).

    Attributes:
        boosted: log-probability grew by more than the threshold.
        suppressed: it fell by more than the threshold.
        stable: neither.
    """

    boosted: float
    suppressed: float
    stable: float


def flips(displacements: Tensor, chosen: Tensor, threshold: float) -> Flips:
    """Boosted, suppressed and stable among the ``chosen`` [N] bool of the ``displacements`` [N] of log-probabilities.

    Args:
        displacements: log pi_after(y) - log pi_before(y), both of the trainer's own forward pass.
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
    """Tokens of one side that moved against it, among those of that side that moved beyond the threshold.

    Args:
        displacements: [N].
        sides: [N], sign of each token's advantage.
        threshold: epsilon in nats.
        side: 1 for tokens of positive advantage, of which the suppressed ones flipped; -1 for the others.
    """
    found = flips(displacements, sides == side, threshold)
    flipped, followed = (found.suppressed, found.boosted) if side > 0 else (found.boosted, found.suppressed)
    moved = flipped + followed
    return flipped / moved if moved > 0 else math.nan


def sweep(displacements: Tensor, sides: Tensor, thresholds: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Fractions and flip rate of each side at each threshold, as rows of a series.

    Args:
        displacements: [N].
        sides: [N], 1 for tokens of right responses and -1 for those of wrong ones, or the sign of the advantage.
        thresholds: in nats.
    """
    for side in (1, -1):
        for threshold in thresholds:
            found = flips(displacements, sides == side, threshold)
            rate = flip_rate(displacements, sides, threshold, side)
            yield {"side": side, "threshold": threshold, **vars(found), "flip_rate": rate}
