"""Claim 1 on any two checkpoints: which tokens of right and of wrong responses training made more likely."""

from __future__ import annotations

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.core.errors import UserError
from evals.figures.style import new_figure
from rlvr.diagnostics.flipping import sweep
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.phenomena.drawing import NEGATIVE, POSITIVE, draw_means, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.phenomena.token_directions import MOVED, UNIT, log_prob_difference

THRESHOLDS = (0.0, 1e-3, 1e-2, 0.03, MOVED, 0.3, 1.0)
_DRAWN_ZERO = 1e-4
_SIDES = ((1, "right", POSITIVE), (-1, "wrong", NEGATIVE))
_FRACTIONS = ("boosted", "suppressed", "stable")
_DRAWN = _FRACTIONS[:2]
"""Stable is the rest, and so much more on most pairs that nothing else would be seen beside it."""


def find(sources: Sources) -> Findings:
    """Boosted, suppressed and stable tokens of right and of wrong responses, problem by problem.

    Raises:
        UserError: the table is missing or changed, or its responses are not graded.
    """
    tokens = sources.compared_tokens()["given"]
    if "reward" not in tokens:
        raise UserError(f"{sources.comparison}/tokens.parquet: has no rewards; accepted: one made with --grades")
    rows = []
    for problem, frame in tokens.groupby("problem"):
        displacement = torch.from_numpy(log_prob_difference(frame).to_numpy().copy())
        sides = torch.from_numpy(frame["reward"].to_numpy(dtype="float64") * 2 - 1)
        rows += [{"problem": str(problem), **row} for row in sweep(displacement, sides, THRESHOLDS)]
    series = pd.DataFrame(rows)
    return Findings("Token flipping", _METHOD, _measurements(series), series)


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    at = series[series["threshold"] == MOVED]
    by_side = {name: at[at["side"] == side].set_index("problem") for side, name, _ in _SIDES}

    def differ(statement: str, fraction: str, first: str, second: str) -> Measurement:
        difference = by_side[first][fraction] - by_side[second][fraction]
        quantity = f"{fraction} fraction of {first} responses' tokens less that of {second} ones'"
        return measure(statement, quantity, difference.tolist(), UNIT)

    beside = [
        measure("", f"{fraction}, {name} responses", by_side[name][column].tolist(), UNIT, direction=None)
        for _, name, _ in _SIDES
        for fraction, column in (
            *((f"{each} fraction", each) for each in _FRACTIONS),
            ("flip rate, of tokens that moved", "flip_rate"),
        )
    ]
    more = "Tokens of {} responses are {} more often than those of {} ones"
    contrasts = (("boosted", "right", "wrong"), ("suppressed", "wrong", "right"))
    claimed = [differ(more.format(first, moved, second), moved, first, second) for moved, first, second in contrasts]
    return [*claimed, *beside]


def draw(findings: Findings) -> Figure:
    """Fractions at the threshold, and the threshold swept."""
    series = findings.series
    figure = new_figure(9.0, 3.5)
    fractions, swept = figure.subplots(1, 2)
    _draw_fractions(fractions, series[series["threshold"] == MOVED])
    drawn = series.assign(threshold=series["threshold"].clip(lower=_DRAWN_ZERO))
    for side, name, colour in _SIDES:
        own = drawn[drawn["side"] == side]
        draw_means(swept, own, "threshold", "boosted", colour, f"{name}: boosted")
        draw_means(swept, own, "threshold", "suppressed", colour, f"{name}: suppressed", "s", "--")
    swept.axvline(MOVED, color="#9a9a9a", linewidth=0.8)
    swept.set(
        title="Threshold swept", xlabel=f"threshold (nats; 0 drawn at {_DRAWN_ZERO:g})", ylabel="fraction of tokens",
        xscale="log", ylim=(0, None),
    )  # fmt: skip
    swept.legend(fontsize=7)
    found = {each.quantity: each.estimate for each in findings.measurements}
    finding = "; ".join(
        f"{found[f'boosted fraction, {name} responses']:.0%} of the tokens of {name} responses are boosted, "
        f"{found[f'suppressed fraction, {name} responses']:.0%} suppressed"
        for _, name, _ in _SIDES
    )
    return finish(figure, f"{finding} (threshold {MOVED:g} nats)", findings.measurements)


def _draw_fractions(axes: Axes, at: pd.DataFrame) -> None:
    for side, name, colour in _SIDES:
        for place, fraction in enumerate(_DRAWN):
            values = at[at["side"] == side][fraction].dropna().tolist()
            each = measure("", "", values, UNIT)
            x = place - 0.1 * side
            axes.vlines(x, each.low, each.high, color=colour, linewidth=1.8)
            label = None if place else f"{name} responses"
            axes.plot(x, each.estimate, "o" if side > 0 else "s", color=colour, markersize=5, label=label)
    axes.set_xticks(range(len(_DRAWN)), _DRAWN)
    axes.set(title="Tokens of graded responses", ylabel="fraction of tokens", ylim=(0, None), xlim=(-0.5, 1.5))
    axes.legend(fontsize=7)


_METHOD = (
    "Two checkpoints read the same graded responses. A token counts as boosted or suppressed where the trained model's "
    f"log-probability is more than {MOVED:g} nats above or below the base model's. Fractions are of each problem's "
    "tokens in right and in wrong responses; the interval is over problems that have them, so it holds the spread "
    "between problems and none between trainings. This is the sum of a whole training, not one update, and there is no "
    "null update, so what rounding moves is not known (in bfloat16 logits from 8 to 16 are 0.06 apart): hence the "
    "sweep. By having been drawn from it, the trained model's own responses are boosted on the whole, and the base "
    "model's suppressed; what training made of right and of wrong ones is the difference between these."
)
