"""Claim 2: through the output layer, uncertain occurrences of the same token move each other most."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from evals.core.random import generator_for
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, by_name
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

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        factors = ("kernel", "distribution", "representation")
        long = series.melt(["unit", "bin", "pairs"], factors, "factor").dropna()
        return by_name(long, "factor", "bin", "pairs")

    def panels(self, findings: Findings) -> Layout:
        titles = {
            "representation": "Representation factor",
            "distribution": "Distribution factor",
            "kernel": "Kernel: their product",
        }
        bins = {name.replace(" to ", "\nto "): name for name in _BINS}

        found = self.values(findings.series)

        def estimates(factor: str, pairs: str, *style: Any) -> Estimates:
            values = {words: found.get(f"{factor}, {name}, {pairs}", []) for words, name in bins.items()}
            return Estimates(values, *style)

        def of_factor(factor: str, title: str) -> Panel:
            same = estimates(factor, "same token", SERIES[0], "o", "same token", -0.08)
            other = estimates(factor, "different tokens", SERIES[1], "s", "different tokens", 0.08)
            return panel(title, same, other, Level(0), x="probability of both tokens", y="mean over pairs")

        return [[of_factor(factor, title) for factor, title in titles.items()]]


def _pair_rows(view: HeadView, name: str, chosen: Tensor) -> Iterator[dict[str, Any]]:
    """Mean factors over the same-token and the different-token pairs of the tokens ``chosen`` [K] of a bin."""
    representation, distribution = view.representation_factor(chosen, chosen), view.distribution_factor(chosen, chosen)
    factors = {"representation": representation, "distribution": distribution, "kernel": representation * distribution}
    same = view.token_ids[chosen][:, None] == view.token_ids[chosen][None]
    others = ~torch.eye(len(chosen), dtype=torch.bool)
    for pairs, mask in (("same token", same & others), ("different tokens", ~same)):
        for factor, values in factors.items() if bool(mask.any()) or name == "all" else ():
            yield {"bin": name, "pairs": pairs, factor: float(values[mask].mean())}
