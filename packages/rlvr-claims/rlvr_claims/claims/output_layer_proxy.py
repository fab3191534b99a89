"""Claim 4: the update of the output layer alone moves most tokens the way that the full update does."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor

from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, by_name, select
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import SERIES, Layout, Means, panel

_THRESHOLD = 1e-5
_PAIRS = {
    "head against full SGD": ("head_only", "joint"),
    "first order against full SGD": ("first_order", "joint"),
    "head against as trained": ("head_only", "as_trained"),
}


class OutputLayerProxy(Claim):
    """Signs of displacements under the head-only, the full-parameter and the run's own update."""

    size = (6.0, 3.4)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        for snapshot, probed in inputs.probed:
            for pair, (first, second) in _PAIRS.items():
                agreement = sign_agreement(probed.displacements[first], probed.displacements[second], _THRESHOLD)
                yield {**snapshot.identity, "pair": pair, **vars(agreement)}

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        return by_name(series.melt(["unit", "pair"], ["observed", "expected"], "share"), "share", "pair")

    def panels(self, findings: Findings) -> Layout:
        marks = []
        for pair, colour in zip(_PAIRS, SERIES, strict=False):
            rows = select(findings.series, pair=pair)
            marks.append(Means(rows, "step", "observed", colour, pair))
            marks.append(Means(rows, "step", "expected", colour, f"{pair}: by chance", "s", ":"))
        return [[panel("", *marks, x="rollout step", y="fraction of moved tokens", ylim=(0, 1))]]


@dataclass(frozen=True)
class Agreement:
    """Agreement of signs over the ``tokens`` that both updates move."""

    observed: float  # fraction that both move the same way
    expected: float  # fraction that two updates with the same numbers of boosted tokens would agree on by chance
    tokens: int


def sign_agreement(first: Tensor, second: Tensor, threshold: float) -> Agreement:
    """Compare the signs of two displacements [N], of tokens that both move by more than ``threshold`` nats.

    Chance is not one half: where most tokens rise under both updates, most agree even if the updates are unrelated.
    NaN where no token moves.
    """
    moved = (first.abs() > threshold) & (second.abs() > threshold)
    up_first, up_second = first[moved] > 0, second[moved] > 0
    if len(up_first) == 0:
        return Agreement(math.nan, math.nan, 0)
    share_first, share_second = float(up_first.double().mean()), float(up_second.double().mean())
    expected = share_first * share_second + (1 - share_first) * (1 - share_second)
    return Agreement(float((up_first == up_second).double().mean()), expected, len(up_first))
