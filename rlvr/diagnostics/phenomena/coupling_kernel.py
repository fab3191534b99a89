"""Claim 2: through the output layer, uncertain occurrences of the same token move each other most."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from evals.core.random import generator_for
from evals.figures.style import new_figure
from rlvr.diagnostics.coefficients import rank_correlation
from rlvr.diagnostics.coupling import distribution_factor, representation_factor
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.phenomena.drawing import SERIES, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.probes import head_view

BINS = (0.0, 0.5, 0.9, 0.99, 1.0)
"""Of the tokens' probability: a pair is in a bin if both tokens are."""
_TOKENS_PER_BIN = 150
_UNIT = "updates (run, step)"
_FACTORS = ("representation", "distribution", "kernel")


def find(sources: Sources) -> Findings:
    """The kernel and its two factors over same-token and different-token pairs, by confidence."""
    series = pd.DataFrame([row for moment in sources.moments for row in _rows(moment, sources)])
    return Findings("Coupling kernel", _METHOD, _measurements(series), series)


def _rows(moment: Moment, sources: Sources) -> list[dict[str, Any]]:
    view = head_view(moment)
    probability = moment.column("old_log_prob").exp()
    rows: list[dict[str, Any]] = []

    def note(bin_: str, pairs: str, factor: str, value: float) -> None:
        rows.append({"unit": moment.unit, "step": moment.step, "bin": bin_, "pairs": pairs} | {factor: value})

    chosen_everywhere = []
    for low, high in pairwise(BINS):
        members = ((probability > low) & (probability <= high)).nonzero()[:, 0]
        chosen = _sample(members, moment)
        chosen_everywhere.append(chosen)
        if len(chosen) < 2:
            continue
        values = _factors(view, chosen)
        same = view.token_ids[chosen][:, None] == view.token_ids[chosen][None]
        others = ~torch.eye(len(chosen), dtype=torch.bool)
        for pairs, mask in (("same token", same & others), ("different tokens", ~same)):
            if bool(mask.any()):
                for factor in _FACTORS:
                    note(f"{low:g} to {high:g}", pairs, factor, float(values[factor][mask].mean()))
    everything = torch.cat(chosen_everywhere)
    values = _factors(view, everything)
    same = view.token_ids[everything][:, None] == view.token_ids[everything][None]
    others = ~torch.eye(len(everything), dtype=torch.bool)
    for pairs, mask in (("same token", same & others), ("different tokens", ~same)):
        for factor in _FACTORS:
            note("all", pairs, factor, float(values[factor][mask].mean()))
    found = sources.displacements[moment.unit].by
    moved = found["joint"].abs() > 0
    correlation = rank_correlation(found["first_order"][moved].numpy(), found["joint"][moved].numpy())
    note("all", "prediction", "kernel", correlation)
    return rows


def _sample(members: Tensor, moment: Moment) -> Tensor:
    """At most so many of the tokens, the same whenever they are drawn."""
    generator = generator_for("coupling", moment.unit)
    return members[torch.randperm(len(members), generator=generator)[:_TOKENS_PER_BIN]]


def _factors(view: Any, chosen: Tensor) -> dict[str, Tensor]:
    representation = representation_factor(view, chosen, chosen)
    distribution = distribution_factor(view, chosen, chosen)
    return {"representation": representation, "distribution": distribution, "kernel": representation * distribution}


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    def values(bin_: str, pairs: str, factor: str) -> pd.Series:
        rows = series[(series["bin"] == bin_) & (series["pairs"] == pairs)].dropna(subset=[factor])
        return rows.set_index("unit")[factor]

    def difference(first: pd.Series, second: pd.Series) -> list[float]:
        found: list[float] = (first - second).dropna().tolist()
        return found

    low, high = _bin_names()[0], _bin_names()[-1]
    same_all, different_all = (values("all", pairs, "kernel") for pairs in ("same token", "different tokens"))
    return [
        measure(
            "Occurrences of the same token couple more than different tokens do",
            "mean kernel over same-token less different-token pairs",
            difference(same_all, different_all),
            _UNIT,
        ),
        measure(
            "Of the same token, uncertain occurrences have the larger distribution factor",
            f"mean distribution factor, both p in {low} less both p in {high}",
            difference(values(low, "same token", "distribution"), values(high, "same token", "distribution")),
            _UNIT,
        ),
        measure(
            "Different uncertain tokens push each other down",
            f"mean kernel over different-token pairs, both p in {low}",
            values(low, "different tokens", "kernel").tolist(),
            _UNIT,
            direction="below",
        ),
        measure(
            "The representation factor is positive, so that the distribution factor decides the sign",
            "mean representation factor over different-token pairs",
            values("all", "different tokens", "representation").tolist(),
            _UNIT,
        ),
        measure(
            "The kernel predicts how a full update orders the tokens",
            "rank correlation of its first-order displacement and that of full SGD",
            values("all", "prediction", "kernel").tolist(),
            _UNIT,
        ),
    ]


def _bin_names() -> list[str]:
    return [f"{low:g} to {high:g}" for low, high in pairwise(BINS)]


def draw(findings: Findings) -> Figure:
    """The factors by confidence, for pairs of the same and of different tokens."""
    figure = new_figure(10.0, 3.2)
    titles = ("Representation factor", "Distribution factor", "Kernel: their product")
    for axes, factor, title in zip(figure.subplots(1, 3), _FACTORS, titles, strict=True):
        for pairs, colour, marker, shift in (
            ("same token", SERIES[0], "o", -0.08),
            ("different tokens", SERIES[1], "s", 0.08),
        ):
            for place, name in enumerate(_bin_names()):
                rows = findings.series[(findings.series["bin"] == name) & (findings.series["pairs"] == pairs)]
                each = measure("", "", rows[factor].dropna().tolist(), _UNIT)
                label = pairs if place == 0 else None
                axes.vlines(place + shift, each.low, each.high, color=colour, linewidth=1.8)
                axes.plot(place + shift, each.estimate, marker, color=colour, markersize=5, label=label)
        axes.axhline(0, color="#9a9a9a", linewidth=0.8)
        axes.set_xticks(range(len(_bin_names())), [name.replace(" to ", "\nto ") for name in _bin_names()])
        axes.set(title=title, xlabel="probability of both tokens", ylabel="mean over pairs")
    figure.axes[0].legend(fontsize=7)
    same, confidence = findings.measurements[:2]
    finding = (
        f"Pairs of the same token couple by {same.estimate:+.2g} more than pairs of different tokens, and uncertain "
        f"ones have a distribution factor larger by {confidence.estimate:+.2g}"
    )
    return finish(figure, finding, findings.measurements)


_METHOD = (
    "Of each kept step at most 150 tokens were drawn from each bin of probability, and the kernel of the "
    "language-model head (inner products of its gradients of two tokens' log-probabilities, in float64, over the "
    "whole vocabulary) was taken over all pairs of a bin. The identity with autograd's gradients is a test. The mean "
    "over all pairs weighs the bins alike, so it is no mean over the tokens of a batch, most of which are nearly "
    "certain here."
)
