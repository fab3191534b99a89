"""How well the output layer alone predicts the direction in which a token moves (arXiv 2605.08666, proxy check)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Agreement:
    """Of tokens that both updates move.

    Attributes:
        observed: fraction that both move the same way.
        expected: the fraction that two updates with the same numbers of boosted tokens would agree on by chance.
        tokens: how many there are.
    """

    observed: float
    expected: float
    tokens: int


def sign_agreement(first: Tensor, second: Tensor, threshold: float) -> Agreement:
    """Agreement of the signs of two displacements [N], of tokens that both move by more than ``threshold`` nats.

    Chance is not one half: where most tokens rise under both updates, most agree whatever the updates have to do with
    each other. NaN where no token moves.
    """
    moved = (first.abs() > threshold) & (second.abs() > threshold)
    up_first, up_second = first[moved] > 0, second[moved] > 0
    if len(up_first) == 0:
        return Agreement(math.nan, math.nan, 0)
    share_first, share_second = float(up_first.double().mean()), float(up_second.double().mean())
    expected = share_first * share_second + (1 - share_first) * (1 - share_second)
    return Agreement(float((up_first == up_second).double().mean()), expected, len(up_first))
