"""Claim 6: the tokens that an update boosts are worth more than those that it suppresses, on either side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from evals.figures.style import new_figure
from evals.grading import GradingPool
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.phenomena.drawing import NEGATIVE, POSITIVE, SERIES, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.phenomena.valued_tokens import PLACES_PER_SIDE, SAMPLES, SIDES, value_tokens
from rlvr.diagnostics.probes import log_probs_of, score_gradient, stepped
from rlvr.diagnostics.token_table import numbers_within_groups
from rlvr.diagnostics.token_value import MAX_PROBABILITY
from rlvr.methods.method import compose

THRESHOLD = 1e-5
TOP_ENTROPY = 0.4
GROUP_SIZES = (2, 4)
REPEATS = (2, 4, 8)
COMPARED_AFTER = 4
_UNIT = "updates (run, step)"


def find(sources: Sources) -> Findings:
    """Values of sampled tokens, and how each update moved them."""
    rows: list[dict[str, Any]] = []
    with GradingPool(workers=1) as pool:
        for moment in sources.moments:
            rows += _rows(moment, sources, pool)
            print(f"{moment.unit}: valued", flush=True)
    columns = ["unit", "step", "side", "value", "standard_error", "entropy", "class", *_updates()]
    series = pd.DataFrame(rows, columns=columns)
    return Findings("Counterfactual token value", _METHOD, _measurements(series), series)


def _updates() -> list[str]:
    groups = [f"group_of_{size}" for size in GROUP_SIZES]
    return ["as_trained", "joint", *groups, *[f"repeated_{steps}" for steps in REPEATS]]


def _rows(moment: Moment, sources: Sources, pool: GradingPool) -> list[dict[str, Any]]:
    valued = value_tokens(moment, pool)
    if not valued:
        return []
    moved = _moved(moment, sources)
    return [
        {
            "unit": moment.unit,
            "step": moment.step,
            "side": int(moment.rows["side"].iloc[each.row]),
            "value": each.value.value,
            "standard_error": each.value.standard_error,
            "entropy": float(moment.rows["entropy"].iloc[each.row]),
            "class": moment.rows["token_class"].iloc[each.row],
        }
        | {name: float(displacement[each.row]) for name, displacement in moved.items()}
        for each in valued
    ]


def _moved(moment: Moment, sources: Sources) -> dict[str, Tensor]:
    """Update -> displacement [N] of every token: the run's, one step, steps on parts of the groups, several steps."""
    probed = sources.displacements[moment.unit]
    temperature = moment.run.training.temperature
    before = log_probs_of(moment.model, moment.tokens, temperature)
    found = {"as_trained": probed.by["as_trained"], "joint": probed.by["joint"]}
    for size in GROUP_SIZES:
        gradient = score_gradient(moment.model, moment.tokens, temperature, _signal_of_groups_of(moment, size))
        with stepped(moment.model, gradient, probed.step_size) as after:
            found[f"group_of_{size}"] = log_probs_of(after, moment.tokens, temperature) - before
    signal = moment.signal / len(moment.signal)
    nothing = {name: torch.zeros_like(value) for name, value in moment.model.named_parameters()}
    with stepped(moment.model, nothing, 0.0) as after:
        for steps in range(1, max(REPEATS) + 1):
            gradient = score_gradient(after, moment.tokens, temperature, signal)
            with torch.no_grad():
                for name, value in after.named_parameters():
                    value.add_(gradient[name], alpha=probed.step_size)
            if steps in REPEATS:
                found[f"repeated_{steps}"] = log_probs_of(after, moment.tokens, temperature) - before
    return found


def _signal_of_groups_of(moment: Moment, size: int) -> Tensor:
    """[N] coefficients had every group only its first ``size`` rollouts, weights aside."""
    kept = numbers_within_groups(moment.groups) < size
    per_rollout = moment.rows.groupby(["group", "sample"], sort=False)["reward"].first()
    rewards = torch.tensor(per_rollout.to_numpy(), dtype=torch.float32)
    lengths = torch.tensor([len(response) for response in moment.tokens.responses])
    advantages = torch.zeros(len(kept), dtype=torch.float64)
    advantage = compose(moment.run.method).advantage
    advantages[kept] = advantage(rewards[kept], moment.groups[kept], lengths[kept]).double()
    return advantages[moment.rollout_of] / int(lengths[kept].sum())


def gap(rows: pd.DataFrame, update: str) -> float:
    """Mean value of the tokens that ``update`` boosts less that of those that it suppresses; NaN without either."""
    boosted = rows["value"][rows[update] > THRESHOLD]
    suppressed = rows["value"][rows[update] < -THRESHOLD]
    return float(boosted.mean() - suppressed.mean()) if len(boosted) and len(suppressed) else math.nan


def sampling_error(rows: pd.DataFrame, update: str) -> float:
    """Standard error of :func:`gap` that sampled continuations alone make, the tokens held fixed; NaN without one."""
    variances = rows["standard_error"] ** 2
    boosted, suppressed = variances[rows[update] > THRESHOLD], variances[rows[update] < -THRESHOLD]
    if not len(boosted) or not len(suppressed):
        return math.nan
    return math.sqrt(boosted.sum() / len(boosted) ** 2 + suppressed.sum() / len(suppressed) ** 2)


def _gaps(series: pd.DataFrame, update: str, side: int | None = None) -> np.ndarray:
    """The gap of each unit [U]."""
    chosen = series if side is None else series[series["side"] == side]
    return np.array([gap(chosen[chosen["unit"] == unit], update) for unit in series["unit"].unique()])


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    ranks = series.groupby("unit")["entropy"].rank(pct=True, ascending=False)
    top, rest = series[ranks <= TOP_ENTROPY], series[ranks > TOP_ENTROPY]
    difference = "gap in value, boosted less suppressed"
    return [
        measure(
            f"Boosted tokens are worth more than suppressed ones in {name} rollouts",
            f"{difference}, {name} rollouts, as trained (accuracy)",
            _gaps(series, "as_trained", side).tolist(),
            _UNIT,
        )
        for side, name in SIDES.items()
    ] + [
        measure(
            "The gap is larger among the uncertain",
            f"{difference}, top {TOP_ENTROPY:.0%} by entropy less the rest, as trained",
            (_gaps(top, "as_trained") - _gaps(rest, "as_trained")).tolist()
            if top["unit"].nunique() == rest["unit"].nunique()
            else [],
            _UNIT,
        ),
        measure(
            "The gap grows with the number of rollouts in a group",
            f"{difference}, groups of all rollouts less groups of {GROUP_SIZES[0]}, one SGD step",
            (_gaps(series, "joint") - _gaps(series, f"group_of_{GROUP_SIZES[0]}")).tolist(),
            _UNIT,
        ),
        measure(
            "The gap grows over repeated updates on one batch",
            f"{difference}, {COMPARED_AFTER} SGD steps less one",
            (_gaps(series, f"repeated_{COMPARED_AFTER}") - _gaps(series, "joint")).tolist(),
            _UNIT,
        ),
        measure(
            "",
            f"mean standard error of one token's value, {SAMPLES} continuations on either side",
            series.groupby("unit")["standard_error"].mean().tolist(),
            _UNIT,
            direction=None,
        ),
        measure(
            "",
            "standard error of one update's gap, as trained, from sampled continuations alone",
            [sampling_error(rows, "as_trained") for _, rows in series.groupby("unit")],
            _UNIT,
            direction=None,
        ),
        measure(
            "", f"{difference}, as trained, all tokens", _gaps(series, "as_trained").tolist(), _UNIT, direction=None
        ),
    ]


def draw(findings: Findings) -> Figure:
    """Mean values of boosted and suppressed tokens, by side and by entropy, and the gap by update."""
    series = findings.series
    figure = new_figure(10.5, 6.0)
    (by_side, by_entropy), (by_group, by_repeats) = figure.subplots(2, 2)
    for place, side in enumerate(SIDES):
        rows = series[series["side"] == side]
        for moved, colour, marker, sign in (("boosted", POSITIVE, "o", 1), ("suppressed", NEGATIVE, "s", -1)):
            chosen = rows[sign * rows["as_trained"] > THRESHOLD]
            each = measure("", "", chosen.groupby("unit")["value"].mean().tolist(), _UNIT)
            label = moved if place == 0 else None
            by_side.vlines(place + 0.08 * sign, each.low, each.high, color=colour, linewidth=1.8)
            by_side.plot(place + 0.08 * sign, each.estimate, marker, color=colour, markersize=5, label=label)
    by_side.set_xticks(range(2), [f"{name}\nrollouts" for name in SIDES.values()])
    by_side.set(title="Value of moved tokens, as trained", ylabel="accuracy with the token\nless with another")
    by_side.axhline(0, color="#9a9a9a", linewidth=0.8)
    by_side.legend(fontsize=7)
    quintiles = np.ceil(5 * series.groupby("unit")["entropy"].rank(pct=True, ascending=False))
    _draw_gaps(by_entropy, [(f"{20 * q - 20}-\n{20 * q} %", series[quintiles == q], "as_trained") for q in range(1, 6)])
    by_entropy.set(
        title="Gap by entropy of the token", xlabel="from the most uncertain fifth on", ylabel="gap in value"
    )
    groups = [(f"{number}", series, f"group_of_{number}") for number in GROUP_SIZES]
    _draw_gaps(by_group, [*groups, ("all", series, "joint")])
    by_group.set(title="Gap by group size, one SGD step", xlabel="rollouts of a group", ylabel="gap in value")
    repeats = [(f"{number}", series, f"repeated_{number}") for number in REPEATS]
    _draw_gaps(by_repeats, [("1", series, "joint"), *repeats])
    by_repeats.set(title="Gap over repeated updates", xlabel="SGD steps on one batch", ylabel="gap in value")
    rewarded, punished = findings.measurements[:2]
    finding = (
        f"Boosted tokens are worth {rewarded.estimate:+.2f} more accuracy than suppressed ones in rewarded rollouts, "
        f"{punished.estimate:+.2f} in punished ones"
    )
    return finish(figure, finding, findings.measurements)


def _draw_gaps(axes: Any, rows: list[tuple[str, pd.DataFrame, str]]) -> None:
    for place, (_, chosen, update) in enumerate(rows):
        each = measure("", "", _gaps(chosen, update).tolist(), _UNIT)
        axes.vlines(place, each.low, each.high, color=SERIES[0], linewidth=1.8)
        axes.plot(place, each.estimate, "o", color=SERIES[0], markersize=5)
    axes.axhline(0, color="#9a9a9a", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [name for name, _, _ in rows])


_METHOD = (
    f"Of each kept step up to {PLACES_PER_SIDE} tokens of either side with probability below {MAX_PROBABILITY:g} "
    f"were drawn. From each, {SAMPLES} continuations were sampled after the token and {SAMPLES} before it, graded by "
    "the training's grader; the token's value is the difference of the two accuracies over one minus its "
    "probability, hence against its alternatives. Tokens count as boosted or suppressed beyond "
    f"{THRESHOLD:g} nats under the run's own update. The gap's interval is over updates and so holds the sampling "
    "error of the values. The budget: the standard error of a value is at most sqrt(1 / 2N) / (1 - p) with N "
    "continuations on either side; the last rows say what it was, what of it is left in the gap of one update, and the "
    "gap itself. For smaller groups the advantages were computed anew from the first rollouts of each group, and one "
    "SGD step was made of the size of the joint probe; for repeated updates such steps were made on one batch."
)
