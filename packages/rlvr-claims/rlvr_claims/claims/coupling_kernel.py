"""Claim 2: through the output layer, uncertain occurrences of the same token move each other most."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from evals.core.random import generator_for
from evals.tables.numbers import rounded
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, Measurement, by_unit, measure
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import SERIES, Estimates, Layout, Level, Panel, panel
from rlvr_claims.measures import rank_correlation
from rlvr_claims.probes import HeadView, head_view

_EDGES = (0.0, 0.5, 0.9, 0.99, 1.0)  # edges of bins of the tokens' probability: a pair is in a bin if both tokens are
_BINS = {f"{low:g} to {high:g}": (low, high) for low, high in pairwise(_EDGES)}
_LOW, *_, _HIGH = _BINS
_TOKENS_PER_BIN = 150


class CouplingKernel(Claim):
    """The kernel and its two factors over same-token and different-token pairs, by confidence."""

    size = (10.0, 3.2)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        for snapshot, probed in inputs.probed:
            view = head_view(snapshot)
            probability = snapshot.column("old_log_prob").exp()
            drawn = {}
            for name, (low, high) in _BINS.items():
                members = ((probability > low) & (probability <= high)).nonzero()[:, 0]
                generator = generator_for("coupling", snapshot.unit)
                drawn[name] = members[torch.randperm(len(members), generator=generator)[:_TOKENS_PER_BIN]]
            for name, chosen in {**drawn, "all": torch.cat(list(drawn.values()))}.items():
                if len(chosen) >= 2 or name == "all":
                    for row in _pair_rows(view, name, chosen):
                        yield {**snapshot.identity, **row}
            joint, first_order = probed.displacements["joint"], probed.displacements["first_order"]
            moved = joint.abs() > 0
            correlation = rank_correlation(first_order[moved].numpy(), joint[moved].numpy())
            yield {**snapshot.identity, "bin": "all", "pairs": "prediction", "kernel": correlation}

    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        def values(bin_: str, pairs: str, factor: str) -> pd.Series:
            return by_unit(series, factor, bin=bin_, pairs=pairs).dropna()

        yield measure(
            "Occurrences of the same token couple more than different tokens do",
            "mean kernel over same-token less different-token pairs",
            values("all", "same token", "kernel") - values("all", "different tokens", "kernel"),
        )
        yield measure(
            "Of the same token, uncertain occurrences have the larger distribution factor",
            f"mean distribution factor, both p in {_LOW} less both p in {_HIGH}",
            values(_LOW, "same token", "distribution") - values(_HIGH, "same token", "distribution"),
        )
        yield measure(
            "Different uncertain tokens push each other down",
            f"mean kernel over different-token pairs, both p in {_LOW}",
            values(_LOW, "different tokens", "kernel"),
            direction="below",
        )
        yield measure(
            "The representation factor is positive, so that the distribution factor decides the sign",
            "mean representation factor over different-token pairs",
            values("all", "different tokens", "representation"),
        )
        yield measure(
            "The kernel predicts how a full update orders the tokens",
            "rank correlation of its first-order displacement and that of full SGD",
            values("all", "prediction", "kernel"),
        )

    def panels(self, findings: Findings) -> Layout:
        titles = {
            "representation": "Representation factor",
            "distribution": "Distribution factor",
            "kernel": "Kernel: their product",
        }
        bins = {name.replace(" to ", "\nto "): name for name in _BINS}

        def estimates(factor: str, pairs: str, *style: Any) -> Estimates:
            values = {words: by_unit(findings.series, factor, pairs=pairs, bin=name) for words, name in bins.items()}
            return Estimates(values, *style)

        def of_factor(factor: str, title: str) -> Panel:
            same = estimates(factor, "same token", SERIES[0], "o", "same token", -0.08)
            other = estimates(factor, "different tokens", SERIES[1], "s", "different tokens", 0.08)
            return panel(title, same, other, Level(0), x="probability of both tokens", y="mean over pairs")

        return [[of_factor(factor, title) for factor, title in titles.items()]]

    def title(self, findings: Findings) -> str:
        same, confidence = findings.measurements[:2]
        return (
            f"Pairs of the same token couple by {rounded(same.estimate, '+.2g')} more than pairs of different tokens, "
            f"and uncertain ones have a distribution factor larger by {rounded(confidence.estimate, '+.2g')}"
        )

    method = (
        "Of each kept step at most 150 tokens were drawn from each bin of probability, and the kernel of the "
        "language-model head (inner products of its gradients of two tokens' log-probabilities, in float64, over "
        "the whole vocabulary) was taken over all pairs of a bin. The identity with autograd's gradients is a "
        "test. The mean over all pairs weighs the bins alike, so it is no mean over the tokens of a batch, most of "
        "which are nearly certain here."
    )


def _pair_rows(view: HeadView, name: str, chosen: Tensor) -> Iterator[dict[str, Any]]:
    """Mean factors over the same-token and the different-token pairs of the tokens ``chosen`` [K] of a bin."""
    representation, distribution = view.representation_factor(chosen, chosen), view.distribution_factor(chosen, chosen)
    factors = {"representation": representation, "distribution": distribution, "kernel": representation * distribution}
    same = view.token_ids[chosen][:, None] == view.token_ids[chosen][None]
    others = ~torch.eye(len(chosen), dtype=torch.bool)
    for pairs, mask in (("same token", same & others), ("different tokens", ~same)):
        for factor, values in factors.items() if bool(mask.any()) or name == "all" else ():
            yield {"bin": name, "pairs": pairs, factor: float(values[mask].mean())}
