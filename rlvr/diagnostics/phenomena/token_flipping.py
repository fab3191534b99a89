"""Claim 1: an update makes tokens of rewarded rollouts less likely and tokens of punished ones more likely."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from evals.figures.style import new_figure
from rlvr.diagnostics.flipping import sweep
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.phenomena.drawing import NEGATIVE, POSITIVE, draw_means, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources

THRESHOLDS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
THRESHOLD = 1e-5
UPDATES = ("as_trained", "joint", "positive_only", "negative_only", "null")
_UNIT = "updates (run, step)"


def find(sources: Sources) -> Findings:
    """Displacements of every token under the run's own update, and under joint, one-sided and null updates."""
    series = pd.DataFrame([row for moment in sources.moments for row in _rows(moment, sources)])
    return Findings("Token flipping", _METHOD, _measurements(series), series)


def _rows(moment: Moment, sources: Sources) -> list[dict[str, Any]]:
    sides = moment.column("side")
    identity = {"unit": moment.unit, "step": moment.step}
    return [
        {**identity, "update": update, **row}
        for update in UPDATES
        for row in sweep(sources.displacements[moment.unit].by[update], sides, THRESHOLDS)
    ]


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    at = series[series["threshold"] == THRESHOLD]

    def column(update: str, side: int, name: str) -> pd.Series:
        chosen = at[(at["update"] == update) & (at["side"] == side)]
        return chosen.set_index("unit")[name]

    def noise(side: int) -> pd.Series:
        return column("null", side, "boosted") + column("null", side, "suppressed")

    positive, negative = column("as_trained", 1, "suppressed"), column("as_trained", -1, "boosted")
    rates = {(update, side): column(update, side, "flip_rate") for update in ("joint",) for side in (1, -1)}
    opposed = rates["joint", 1] - column("positive_only", 1, "flip_rate")
    opposed_negative = rates["joint", -1] - column("negative_only", -1, "flip_rate")
    return [
        measure(
            "The run's own update suppresses tokens of rewarded rollouts",
            "suppressed fraction, less all that a null update moves",
            (positive - noise(1)).tolist(),
            _UNIT,
        ),
        measure(
            "The run's own update boosts tokens of punished rollouts",
            "boosted fraction, less all that a null update moves",
            (negative - noise(-1)).tolist(),
            _UNIT,
        ),
        measure(
            "Tokens of rewarded rollouts flip because of the punished ones",
            "flip rate under joint less that under positive-only SGD",
            opposed.tolist(),
            _UNIT,
        ),
        measure(
            "Tokens of punished rollouts flip because of the rewarded ones",
            "flip rate under joint less that under negative-only SGD",
            opposed_negative.tolist(),
            _UNIT,
        ),
        measure("", "flip rate in rewarded rollouts, as trained", _rate(column, 1), _UNIT, direction=None),
        measure("", "flip rate in punished rollouts, as trained", _rate(column, -1), _UNIT, direction=None),
    ]


def _rate(column: Any, side: int) -> list[float]:
    values: list[float] = column("as_trained", side, "flip_rate").tolist()
    return values


def draw(findings: Findings) -> Figure:
    """Fractions over training, flip rates by update, and the sweep of the threshold."""
    series = findings.series
    figure = new_figure(10.5, 3.4)
    over_training, by_update, swept = figure.subplots(1, 3)
    at = series[series["threshold"] == THRESHOLD]
    trained = at[at["update"] == "as_trained"]
    for side, colour, name in ((1, POSITIVE, "rewarded"), (-1, NEGATIVE, "punished")):
        own = trained[trained["side"] == side]
        draw_means(over_training, own, "step", "boosted", colour, f"{name}: boosted")
        draw_means(over_training, own, "step", "suppressed", colour, f"{name}: suppressed", "s", "--")
        draw_means(
            swept,
            series[(series["update"] == "as_trained") & (series["side"] == side)].assign(
                threshold=lambda frame: frame["threshold"].clip(lower=1e-7)
            ),
            "threshold",
            "flip_rate",
            colour,
            f"{name}, as trained",
        )
    over_training.set(title="Fractions of tokens as trained", xlabel="rollout step", ylabel="fraction of tokens")
    over_training.set_ylim(0, None)
    over_training.legend(fontsize=7)
    null = series[series["update"] == "null"].assign(
        moved=lambda frame: frame["boosted"] + frame["suppressed"],
        threshold=lambda frame: frame["threshold"].clip(lower=1e-7),
    )
    draw_means(swept, null, "threshold", "moved", "black", "moved by a null update", "^", ":")
    swept.set(title="Threshold swept", xlabel="threshold (nats; 0 drawn at 1e-7)", ylabel="fraction", xscale="log")
    swept.axvline(THRESHOLD, color="#9a9a9a", linewidth=0.8)
    swept.legend(fontsize=7)
    updates = ["as_trained", "joint", "positive_only", "negative_only"]
    for side, colour, marker in ((1, POSITIVE, "o"), (-1, NEGATIVE, "s")):
        for place, update in enumerate(updates):
            values = at[(at["update"] == update) & (at["side"] == side)]["flip_rate"].dropna()
            if values.empty:
                continue
            each = measure("", "", values.tolist(), _UNIT)
            x = place + 0.12 * side
            by_update.vlines(x, each.low, each.high, color=colour, linewidth=1.8)
            label = ("rewarded" if side > 0 else "punished") if place == 0 else None
            by_update.plot(x, each.estimate, marker, color=colour, markersize=5, label=label)
    by_update.set_xticks(range(len(updates)), [name.replace("_", "\n") for name in updates])
    by_update.set(title="Flip rate by update", ylabel="moved against their side,\nof those that moved", ylim=(0, 1))
    by_update.legend(fontsize=7)
    rates = findings.measurements[4:6]
    finding = (
        f"{rates[0].estimate:.0%} of the tokens that move in rewarded rollouts move down, "
        f"{rates[1].estimate:.0%} in punished rollouts move up (threshold {THRESHOLD:g} nats)"
    )
    return finish(figure, finding, findings.measurements)


_METHOD = (
    "At each kept step of each run every response token's log-probability was taken by the trainer's own forward pass "
    "before and after the step's optimizer updates (`as trained`: AdamW with its moments, all mini-batches). On the "
    "same rollouts and policy one step of plain SGD was made with all tokens (joint), with those of positive advantage "
    "and with those of negative advantage alone, the step size chosen so that the joint step moves log-probabilities "
    "as much (root mean square) as the run's own. A token counts as boosted or suppressed beyond "
    f"{THRESHOLD:g} nats. The null update is a second forward pass without a step, cut into other batches: what it "
    "moves is rounding. Flip rates are of tokens that moved."
)
