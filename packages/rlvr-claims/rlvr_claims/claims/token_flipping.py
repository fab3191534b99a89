"""Claim 1: an update makes tokens of rewarded rollouts less likely and tokens of punished ones more likely."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import torch

from evals.core.errors import InvalidInput
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, by_name, select
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import NEGATIVE, POSITIVE, Estimates, Layout, Level, Means, panel
from rlvr_claims.measures import MOVED, log_prob_difference, sweep

_THRESHOLD = 1e-5
_THRESHOLDS = (0.0, 1e-6, _THRESHOLD, 1e-4, 1e-3, 1e-2)
_UPDATES = ("as_trained", "joint", "positive_only", "negative_only", "null")
_SMALLEST_DRAWN = 1e-7
_NAMES = {1: "rewarded", -1: "punished"}


class TokenFlipping(Claim):
    """Displacements of every token under the run's own update, and under joint, one-sided and null updates."""

    size = (10.5, 3.4)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        for snapshot, probed in inputs.probed:
            for update in _UPDATES:
                for row in sweep(probed.displacements[update], snapshot.column("side"), _THRESHOLDS):
                    yield {**snapshot.identity, "update": update, **row}

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        at = select(series, threshold=_THRESHOLD)
        at = at.assign(side=at["side"].map(_NAMES), moved=at["boosted"] + at["suppressed"])
        long = at.melt(["unit", "side", "update"], ["boosted", "suppressed", "moved", "flip_rate"], "number")
        return by_name(long, "side", "number", "update")

    def panels(self, findings: Findings) -> Layout:
        series = findings.series
        at = select(series, threshold=_THRESHOLD)
        drawn = series.assign(threshold=series["threshold"].clip(lower=_SMALLEST_DRAWN))
        along, swept, by_update = list[Means](), list[Means](), list[Estimates]()
        for side, colour, marker, name in ((1, POSITIVE, "o", "rewarded"), (-1, NEGATIVE, "s", "punished")):
            trained = select(at, update="as_trained", side=side)
            along.append(Means(trained, "step", "boosted", colour, f"{name}: boosted"))
            along.append(Means(trained, "step", "suppressed", colour, f"{name}: suppressed", "s", "--"))
            trained = select(drawn, update="as_trained", side=side)
            swept.append(Means(trained, "threshold", "flip_rate", colour, f"{name}, as trained"))
            of_side = {update: select(at, update=update, side=side) for update in _UPDATES[:-1]}
            rates = {update.replace("_", "\n"): rows["flip_rate"] for update, rows in of_side.items()}
            by_update.append(Estimates(rates, colour, marker, name, 0.12 * side))
        null = select(drawn, update="null").assign(moved=lambda frame: frame["boosted"] + frame["suppressed"])
        swept.append(Means(null, "threshold", "moved", "black", "moved by a null update", "^", ":"))
        share, against = "fraction of tokens", "moved against their side,\nof those that moved"
        words, border = "threshold (nats; 0 drawn at 1e-7)", Level(_THRESHOLD, upright=True)
        return [
            [
                panel("Fractions of tokens as trained", *along, x="rollout step", y=share, ylim=(0, None)),
                panel("Flip rate by update", *by_update, y=against, ylim=(0, 1)),
                panel("Threshold swept", *swept, border, x=words, y="fraction", xscale="log"),
            ]
        ]


_WIDE_THRESHOLDS = (0.0, 1e-3, 1e-2, 0.03, MOVED, 0.3, 1.0)
_DRAWN_ZERO = 1e-4
_SIDES = ((1, "right", POSITIVE, "o"), (-1, "wrong", NEGATIVE, "s"))


class TokenFlippingOfCheckpoints(Claim):
    """Token flipping between any two checkpoints: boosted, suppressed and stable tokens by verdict."""

    size = (9.0, 3.5)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        tokens = inputs.compared_tokens()["given"]
        if "reward" not in tokens:
            raise InvalidInput(f"{inputs.comparison}/tokens.parquet", "", "has no rewards", "one made with --grades")
        for problem, frame in tokens.groupby("problem"):
            displacement = torch.from_numpy(log_prob_difference(frame).to_numpy().copy())
            sides = torch.from_numpy(frame["reward"].to_numpy(dtype="float64") * 2 - 1)
            for row in sweep(displacement, sides, _WIDE_THRESHOLDS):
                yield {"problem": str(problem), **row}

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        at = select(series, threshold=MOVED)
        at = at.assign(side=at["side"].map({side: name for side, name, *_ in _SIDES}))
        long = at.melt(["problem", "side"], ["boosted", "suppressed", "stable", "flip_rate"], "number")
        return by_name(long, "side", "number", unit="problem")

    def panels(self, findings: Findings) -> Layout:
        series = findings.series
        drawn = series.assign(threshold=series["threshold"].clip(lower=_DRAWN_ZERO))
        fractions, swept = list[Estimates](), list[Means]()
        for side, name, colour, marker in _SIDES:
            # Stable is the rest, and on most pairs so much more that nothing else would be seen beside it.
            at = select(series, threshold=MOVED, side=side)
            moved = {fraction: at[fraction] for fraction in ("boosted", "suppressed")}
            fractions.append(Estimates(moved, colour, marker, f"{name} responses", -0.1 * side))
            rows = select(drawn, side=side)
            swept.append(Means(rows, "threshold", "boosted", colour, f"{name}: boosted"))
            swept.append(Means(rows, "threshold", "suppressed", colour, f"{name}: suppressed", "s", "--"))
        axes: Any = {"y": "fraction of tokens", "ylim": (0, None)}
        words, border = f"threshold (nats; 0 drawn at {_DRAWN_ZERO:g})", Level(MOVED, upright=True)
        return [
            [
                panel("Tokens of graded responses", *fractions, **axes, xlim=(-0.5, 1.5)),
                panel("Threshold swept", *swept, border, **axes, x=words, xscale="log"),
            ]
        ]
