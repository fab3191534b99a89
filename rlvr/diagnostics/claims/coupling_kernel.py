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
from rlvr.diagnostics.claims.base import Claim, Need
from rlvr.diagnostics.claims.drawing import QUIET, SERIES, draw_estimate, finish
from rlvr.diagnostics.claims.findings import Findings, Measurement, beside, measure, select
from rlvr.diagnostics.claims.inputs import Inputs
from rlvr.diagnostics.head import HeadView
from rlvr.diagnostics.measures import rank_correlation
from rlvr.diagnostics.policy import PolicySnapshot
from rlvr.diagnostics.probes import Probed, head_view

_EDGES = (0.0, 0.5, 0.9, 0.99, 1.0)
"""Edges of bins of the tokens' probability: a pair is in a bin if both tokens are."""
_BINS = {f"{low:g} to {high:g}": (low, high) for low, high in pairwise(_EDGES)}
_LOW, *_, _HIGH = _BINS
_TOKENS_PER_BIN = 150
_FACTORS = ("representation", "distribution", "kernel")


class CouplingKernel(Claim):
    """The kernel and its two factors over same-token and different-token pairs, by confidence."""

    number = 2
    title = "Coupling kernel"
    paper = "2605.08666"
    needs = frozenset({Need.TOKEN_TABLES, Need.PROBES})

    def measure(self, inputs: Inputs) -> Findings:
        rows = [row for snapshot in inputs.snapshots for row in _rows(snapshot, inputs.probes[snapshot.unit])]
        series = pd.DataFrame(rows)
        return Findings(self._measurements(series), series)

    def _measurements(self, series: pd.DataFrame) -> list[Measurement]:
        def values(bin_: str, pairs: str, factor: str) -> pd.Series:
            return select(series, bin=bin_, pairs=pairs).dropna(subset=[factor]).set_index("unit")[factor]

        return [
            measure(
                "Occurrences of the same token couple more than different tokens do",
                "mean kernel over same-token less different-token pairs",
                values("all", "same token", "kernel") - values("all", "different tokens", "kernel"),
            ),
            measure(
                "Of the same token, uncertain occurrences have the larger distribution factor",
                f"mean distribution factor, both p in {_LOW} less both p in {_HIGH}",
                values(_LOW, "same token", "distribution") - values(_HIGH, "same token", "distribution"),
            ),
            measure(
                "Different uncertain tokens push each other down",
                f"mean kernel over different-token pairs, both p in {_LOW}",
                values(_LOW, "different tokens", "kernel"),
                direction="below",
            ),
            measure(
                "The representation factor is positive, so that the distribution factor decides the sign",
                "mean representation factor over different-token pairs",
                values("all", "different tokens", "representation"),
            ),
            measure(
                "The kernel predicts how a full update orders the tokens",
                "rank correlation of its first-order displacement and that of full SGD",
                values("all", "prediction", "kernel"),
            ),
        ]

    def draw(self, findings: Findings) -> Figure:
        """Draw the factors by confidence, for pairs of the same and of different tokens."""
        series = findings.series
        figure = new_figure(10.0, 3.2)
        titles = ("Representation factor", "Distribution factor", "Kernel: their product")
        for axes, factor, title in zip(figure.subplots(1, 3), _FACTORS, titles, strict=True):
            for pairs, colour, marker, shift in (
                ("same token", SERIES[0], "o", -0.08),
                ("different tokens", SERIES[1], "s", 0.08),
            ):
                for place, name in enumerate(_BINS):
                    rows = select(series, bin=name, pairs=pairs)
                    label = pairs if place == 0 else None
                    draw_estimate(axes, place + shift, beside("", rows[factor]), colour, marker, label)
            axes.axhline(0, color=QUIET, linewidth=0.8)
            axes.set_xticks(range(len(_BINS)), [name.replace(" to ", "\nto ") for name in _BINS])
            axes.set(title=title, xlabel="probability of both tokens", ylabel="mean over pairs")
        figure.axes[0].legend(fontsize=7)
        same, confidence = findings.measurements[:2]
        finding = (
            f"Pairs of the same token couple by {same.estimate:+.2g} more than pairs of different tokens, and "
            f"uncertain ones have a distribution factor larger by {confidence.estimate:+.2g}"
        )
        return finish(figure, finding, findings.measurements)

    method = (
        "Of each kept step at most 150 tokens were drawn from each bin of probability, and the kernel of the "
        "language-model head (inner products of its gradients of two tokens' log-probabilities, in float64, over "
        "the whole vocabulary) was taken over all pairs of a bin. The identity with autograd's gradients is a "
        "test. The mean over all pairs weighs the bins alike, so it is no mean over the tokens of a batch, most of "
        "which are nearly certain here."
    )


def _rows(snapshot: PolicySnapshot, probed: Probed) -> list[dict[str, Any]]:
    view = head_view(snapshot)
    probability = snapshot.column("old_log_prob").exp()
    rows: list[dict[str, Any]] = []

    def note(bin_: str, pairs: str, factor: str, value: float) -> None:
        rows.append({**snapshot.identity, "bin": bin_, "pairs": pairs, factor: value})

    def note_pairs(bin_: str, chosen: Tensor) -> None:
        values = _factors(view, chosen)
        same = view.token_ids[chosen][:, None] == view.token_ids[chosen][None]
        others = ~torch.eye(len(chosen), dtype=torch.bool)
        for pairs, mask in (("same token", same & others), ("different tokens", ~same)):
            for factor in _FACTORS if bool(mask.any()) or bin_ == "all" else ():
                note(bin_, pairs, factor, float(values[factor][mask].mean()))

    drawn = []
    for name, (low, high) in _BINS.items():
        members = ((probability > low) & (probability <= high)).nonzero()[:, 0]
        generator = generator_for("coupling", snapshot.unit)
        drawn.append(members[torch.randperm(len(members), generator=generator)[:_TOKENS_PER_BIN]])
        if len(drawn[-1]) >= 2:
            note_pairs(name, drawn[-1])
    note_pairs("all", torch.cat(drawn))
    joint, first_order = probed.displacements["joint"], probed.displacements["first_order"]
    moved = joint.abs() > 0
    note("all", "prediction", "kernel", rank_correlation(first_order[moved].numpy(), joint[moved].numpy()))
    return rows


def _factors(view: HeadView, chosen: Tensor) -> dict[str, Tensor]:
    representation = view.representation_factor(chosen, chosen)
    distribution = view.distribution_factor(chosen, chosen)
    return {"representation": representation, "distribution": distribution, "kernel": representation * distribution}
