"""Claim 4: the update of the output layer alone moves most tokens the way that the full update does."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor

from evals.tables.numbers import rounded
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Direction, Findings, Measurement, measure, select
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

    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        claimed = (
            "The output layer alone tells the direction that most tokens move in",
            "It tells more than the shares of boosted tokens do",
        )
        for pair, rows in series.groupby("pair", sort=False):
            most, more = claimed if pair == next(iter(_PAIRS)) else ("", "")
            direction: Direction | None = "above" if most else None
            excess = rows["observed"] - rows["expected"]
            yield measure(most, f"sign agreement, {pair}", rows["observed"], null=0.5, direction=direction)
            yield measure(more, f"sign agreement less chance agreement, {pair}", excess, direction=direction)

    def panels(self, findings: Findings) -> Layout:
        marks = []
        for pair, colour in zip(_PAIRS, SERIES, strict=False):
            rows = select(findings.series, pair=pair)
            marks.append(Means(rows, "step", "observed", colour, pair))
            marks.append(Means(rows, "step", "expected", colour, f"{pair}: by chance", "s", ":"))
        return [[panel("", *marks, x="rollout step", y="fraction of moved tokens", ylim=(0, 1))]]

    def title(self, findings: Findings) -> str:
        observed, excess = findings.measurements[:2]
        return (
            f"Output layer alone and full update agree on the direction of {observed.estimate:.0%} of the tokens, "
            f"{rounded(100 * excess.estimate, '+.0f')} points beside chance"
        )

    method = (
        "On the rollouts and the policy of each kept step, one step of plain SGD was made on all parameters, and "
        "one of the same size on the language-model head alone (an embedding that is tied to it stayed). "
        f"Counted are tokens that both move by more than {_THRESHOLD:g} nats. Chance agreement is that of two "
        "updates with the same shares of boosted tokens. `First order` is the sum over the coupling kernel. The "
        "run's own update is AdamW with its moments over all mini-batches, so it differs in more than the layers "
        "that it moves."
    )


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
