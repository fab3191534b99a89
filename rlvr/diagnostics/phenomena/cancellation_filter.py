"""Claim 5: within a whole group, opposed rollouts cancel what they share and leave what tells them apart."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from evals.core.random import generator_for
from evals.figures.style import new_figure
from rlvr.diagnostics.cancellation import halves, mean_overlap, opposed_term, update_norm
from rlvr.diagnostics.flipping import flips
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.masking import gradient_of_few
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.phenomena.drawing import SERIES, finish, points
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.token_classes import CLASSES

_GROUPS, _HALVES = 6, 20
THRESHOLD = 1e-5
_UNIT = "updates (run, step)"
_PARTS = ("whole group", "opposed pairs", "half a group", "rewarded only")


def find(sources: Sources) -> Findings:
    """Self and cross terms of groups and parts of groups, and what one-sided updates boost that joint ones do not."""
    rows = [row for moment in sources.moments for row in (*_norms(moment), *_classes(moment, sources))]
    series = pd.DataFrame(rows, columns=["unit", "step", "quantity", "name", "value"])
    return Findings("Cancellation as a filter", _METHOD, _measurements(series), series)


def _norms(moment: Moment) -> list[dict[str, Any]]:
    generator = generator_for("cancellation", moment.unit)
    firsts = moment.rows.groupby(["group", "sample"], sort=False)["advantage"].first()
    advantages = torch.tensor(firsts.to_numpy(), dtype=torch.float64)
    mixed = [group for group in moment.groups.unique().tolist() if bool(advantages[moment.groups == group].any())]
    order = torch.randperm(len(mixed), generator=generator)[:_GROUPS].tolist()
    values: dict[str, list[float]] = {name: [] for name in (*_PARTS, "overlap")}
    for group in (mixed[place] for place in order):
        members = (moment.groups == group).nonzero()[:, 0]
        gram, own = _gram(moment, members), advantages[members]
        whole = update_norm(gram, own)
        values["whole group"].append(whole.cancelled)
        values["opposed pairs"].append(opposed_term(gram, own) / whole.self_term)
        parts = [update_norm(gram[half][:, half], own[half]) for half in halves(len(members), _HALVES, generator)]
        # Of the means, so that halves with little to say say little.
        total = sum(part.self_term for part in parts)
        if total > 0:
            values["half a group"].append(sum(part.cross_term for part in parts) / total)
        rewarded = own > 0
        if int(rewarded.sum()) > 1:
            values["rewarded only"].append(update_norm(gram[rewarded][:, rewarded], own[rewarded]).cancelled)
        values["overlap"].append(mean_overlap(gram))
    return [_row(moment, "cross over self", name, sum(each) / len(each)) for name, each in values.items() if each]


def _gram(moment: Moment, members: Tensor) -> Tensor:
    """[B, B] inner products of the rollouts' gradients, of all parameters."""
    flat = []
    for rollout in members.tolist():
        gradient = gradient_of_few(moment, (moment.rollout_of == rollout).double())
        flat.append(torch.cat([value.flatten() for value in gradient.values()]).double())
    stacked = torch.stack(flat)
    return stacked @ stacked.T


def _classes(moment: Moment, sources: Sources) -> list[dict[str, Any]]:
    found = sources.displacements[moment.unit].by
    rewarded = moment.column("side") > 0
    rows = []
    for name in CLASSES:
        chosen = rewarded & torch.from_numpy((moment.rows["token_class"] == name).to_numpy())
        joint, alone = (flips(found[update], chosen, THRESHOLD).boosted for update in ("joint", "positive_only"))
        rows.append(_row(moment, "boosted jointly", name, joint))
        rows.append(_row(moment, "boosted by rewarded only", name, alone))
        rows.append(_row(moment, "filtered", name, alone - joint))
    return rows


def _row(moment: Moment, quantity: str, name: str, value: float) -> dict[str, Any]:
    return {"unit": moment.unit, "step": moment.step, "quantity": quantity, "name": name, "value": value}


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    def values(quantity: str, name: str) -> pd.Series:
        rows = series[(series["quantity"] == quantity) & (series["name"] == name)]
        return rows.set_index("unit")["value"]

    ratio = "cross over self"
    whole, half = values(ratio, "whole group"), values(ratio, "half a group")
    filtered = {name: values("filtered", name) for name in CLASSES}
    return [
        measure(
            "Rewarded and punished rollouts take away from each other",
            "cross terms of opposed pairs over self term, whole groups",
            values(ratio, "opposed pairs").tolist(),
            _UNIT,
            direction="below",
        ),
        measure(
            "Whole groups cancel more than they add up",
            "cross term over self term, whole groups",
            whole.tolist(),
            _UNIT,
            direction="below",
        ),
        measure(
            "Groups that are cut in half cancel less",
            "cross over self, halves less whole groups",
            (half - whole).tolist(),
            _UNIT,
        ),
        measure(
            "Rewarded rollouts alone add up",
            "cross over self, rewarded rollouts of a group",
            values(ratio, "rewarded only").tolist(),
            _UNIT,
        ),
        measure(
            "Rewarded rollouts alone boost format that joint training leaves",
            "boosted fraction of format tokens, rewarded only less joint",
            filtered["format"].tolist(),
            _UNIT,
        ),
        measure(
            "That is more so for format than for results",
            "boosted fraction, rewarded only less joint, format less results",
            (filtered["format"] - filtered["result"]).tolist(),
            _UNIT,
        ),
        measure("", "mean cosine of two rollouts' gradients", values(ratio, "overlap").tolist(), _UNIT, direction=None),
    ]


def draw(findings: Findings) -> Figure:
    """Cross terms of parts of groups, and what is boosted by class."""
    figure = new_figure(8.5, 3.2)
    terms, classes = figure.subplots(1, 2)
    series = findings.series
    for place, name in enumerate(_PARTS):
        rows = series[(series["quantity"] == "cross over self") & (series["name"] == name)]
        each = measure("", "", rows["value"].tolist(), _UNIT)
        terms.hlines(place, each.low, each.high, color=SERIES[0], linewidth=1.8)
        terms.plot(each.estimate, place, "o", color=SERIES[0], markersize=5)
    terms.axvline(0, color="#9a9a9a", linewidth=0.8)
    terms.set_yticks(range(len(_PARTS)), _PARTS)
    terms.set_ylim(len(_PARTS) - 0.5, -0.5)
    terms.set(title="Cross term over self term", xlabel="ratio (-1: nothing of the update is left)")
    for quantity, colour, marker, shift in (
        ("boosted jointly", SERIES[0], "o", -0.1),
        ("boosted by rewarded only", SERIES[1], "s", 0.1),
    ):
        for place, name in enumerate(CLASSES):
            rows = series[(series["quantity"] == quantity) & (series["name"] == name)]
            each = measure("", "", rows["value"].tolist(), _UNIT)
            label = quantity if place == 0 else None
            classes.hlines(place + shift, each.low, each.high, color=colour, linewidth=1.8)
            classes.plot(each.estimate, place + shift, marker, color=colour, markersize=5, label=label)
    classes.set_yticks(range(len(CLASSES)), CLASSES)
    classes.set(title="Tokens of rewarded rollouts", xlabel=f"boosted fraction (beyond {THRESHOLD:g} nats)")
    classes.legend(fontsize=7)
    opposed, whole, _, _, form = findings.measurements[:5]
    finding = (
        f"Opposed rollouts add {opposed.estimate:+.0%} of the self term to an update's squared length, all pairs "
        f"{whole.estimate:+.0%}; rewarded rollouts alone boost {points(form.estimate)} of the format tokens than joint "
        "updates"
    )
    return finish(figure, finding, findings.measurements)


_METHOD = (
    f"Of each kept step up to {_GROUPS} groups with both answers were drawn. Of each of their rollouts the gradient of "
    "its summed log-probability was taken over all parameters, and the squared length of the advantage-weighted sum "
    f"split into self and cross terms: for whole groups, for {_HALVES} random halves of each (ratio of the sums), and "
    "for the rewarded rollouts alone. With advantages that sum to 0, some cancellation follows from any overlap that "
    "all rollouts share; the mean cosine says how much there is. By class of token: the boosted fraction in rewarded "
    "rollouts after one SGD step on all tokens, and after one of the same size on those of positive advantage."
)
