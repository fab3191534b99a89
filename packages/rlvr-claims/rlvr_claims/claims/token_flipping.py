"""Claim 1: an update makes tokens of rewarded rollouts less likely and tokens of punished ones more likely."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd
import torch

from evals.core.errors import InvalidInput
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, Measurement, beside, by_unit, measure, select
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import NEGATIVE, POSITIVE, Estimates, Layout, Level, Means, panel
from rlvr_claims.measures import MOVED, log_prob_difference, sweep

_THRESHOLD = 1e-5
_THRESHOLDS = (0.0, 1e-6, _THRESHOLD, 1e-4, 1e-3, 1e-2)
_UPDATES = ("as_trained", "joint", "positive_only", "negative_only", "null")
_SMALLEST_DRAWN = 1e-7


class TokenFlipping(Claim):
    """Displacements of every token under the run's own update, and under joint, one-sided and null updates."""

    size = (10.5, 3.4)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        for snapshot, probed in inputs.probed:
            for update in _UPDATES:
                for row in sweep(probed.displacements[update], snapshot.column("side"), _THRESHOLDS):
                    yield {**snapshot.identity, "update": update, **row}

    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        at = series[series["threshold"] == _THRESHOLD]

        def column(update: str, side: int, name: str) -> pd.Series:
            return by_unit(at, name, update=update, side=side)

        def noise(side: int) -> pd.Series:
            return column("null", side, "boosted") + column("null", side, "suppressed")

        def opposed(side: int, alone: str) -> pd.Series:
            return column("joint", side, "flip_rate") - column(alone, side, "flip_rate")

        yield measure(
            "The run's own update suppresses tokens of rewarded rollouts",
            "suppressed fraction, less all that a null update moves",
            column("as_trained", 1, "suppressed") - noise(1),
        )
        yield measure(
            "The run's own update boosts tokens of punished rollouts",
            "boosted fraction, less all that a null update moves",
            column("as_trained", -1, "boosted") - noise(-1),
        )
        yield measure(
            "Tokens of rewarded rollouts flip because of the punished ones",
            "flip rate under joint less that under positive-only SGD",
            opposed(1, "positive_only"),
        )
        yield measure(
            "Tokens of punished rollouts flip because of the rewarded ones",
            "flip rate under joint less that under negative-only SGD",
            opposed(-1, "negative_only"),
        )
        yield beside("flip rate in rewarded rollouts, as trained", column("as_trained", 1, "flip_rate"))
        yield beside("flip rate in punished rollouts, as trained", column("as_trained", -1, "flip_rate"))

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

    def title(self, findings: Findings) -> str:
        rewarded, punished = findings.measurements[4:6]
        return (
            f"{rewarded.estimate:.0%} of the tokens that move in rewarded rollouts move down, "
            f"{punished.estimate:.0%} in punished rollouts move up (threshold {_THRESHOLD:g} nats)"
        )

    method = (
        "At each kept step of each run every response token's log-probability was taken by the trainer's own "
        "forward pass before and after the step's optimizer updates (`as trained`: AdamW with its moments, all "
        "mini-batches). On the same rollouts and policy one step of plain SGD was made with all tokens (joint), "
        "with those of positive advantage and with those of negative advantage alone, the step size chosen so that "
        "the joint step moves log-probabilities as much (root mean square) as the run's own. A token counts as "
        f"boosted or suppressed beyond {_THRESHOLD:g} nats. The null update is a second forward pass without a step, "
        "cut into other batches: what it moves is rounding. Flip rates are of tokens that moved."
    )


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

    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        at = series[series["threshold"] == MOVED]
        by_side = {name: at[at["side"] == side].set_index("problem") for side, name, *_ in _SIDES}
        for moved, first, second in (("boosted", "right", "wrong"), ("suppressed", "wrong", "right")):
            yield measure(
                f"Tokens of {first} responses are {moved} more often than those of {second} ones",
                f"{moved} fraction of {first} responses' tokens less that of {second} ones'",
                by_side[first][moved] - by_side[second][moved],
                "problems",
            )
        quantities = {kind: f"{kind} fraction" for kind in ("boosted", "suppressed", "stable")}
        quantities["flip_rate"] = "flip rate, of tokens that moved"
        for (name, rows), (column, quantity) in product(by_side.items(), quantities.items()):
            yield beside(f"{quantity}, {name} responses", rows[column], "problems")

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

    def title(self, findings: Findings) -> str:
        estimates = {measurement.quantity: measurement.estimate for measurement in findings.measurements}
        sentence = "; ".join(
            f"{estimates[f'boosted fraction, {name} responses']:.0%} of the tokens of {name} responses are boosted, "
            f"{estimates[f'suppressed fraction, {name} responses']:.0%} suppressed"
            for _, name, *_ in _SIDES
        )
        return f"{sentence} (threshold {MOVED:g} nats)"

    method = (
        "Two checkpoints read the same graded responses. A token counts as boosted or suppressed where the trained "
        f"model's log-probability is more than {MOVED:g} nats above or below the base model's. Fractions are of "
        "each problem's tokens in right and in wrong responses; the interval is over problems that have them, so "
        "it holds the spread between problems and none between trainings. This is the sum of a whole training, not "
        "one update, and there is no null update, so what rounding moves is not known (in bfloat16 logits from 8 "
        "to 16 are 0.06 apart): hence the sweep. By having been drawn from it, the trained model's own responses "
        "are boosted on the whole, and the base model's suppressed; what training made of right and of wrong ones "
        "is the difference between these."
    )
