"""Claim 10: unlikely tokens have most of the gradient, whose size is 2 |A| (1 - p) in the logits (lemma 3.1)."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, by_name, select
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import NEGATIVE, POSITIVE, QUIET, SERIES, Layout, Means, panel
from rlvr_claims.counterfactual import SIDES
from rlvr_claims.policy import PolicySnapshot
from rlvr_claims.probes import HeadView, head_view

UNLIKELY = 0.5  # probability below which a token counts as unlikely
_EDGES = torch.linspace(0, 1, 11, dtype=torch.float64)


class GradientMass(Claim):
    """Shares of tokens, of the gradient in the logits and of the gradient in the head, by probability."""

    size = (9.0, 3.4)
    columns = ("unit", "step", "quantity", "place", "value")

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        for snapshot in inputs.snapshots():
            for quantity, place, value in shares(snapshot):
                yield {**snapshot.identity, "quantity": quantity, "place": place, "value": value}

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        return by_name(series[series["quantity"].str.startswith(("unlikely", "punished"))], "quantity")

    def panels(self, findings: Findings) -> Layout:
        def means(quantity: str, *style: Any) -> Means:
            return Means(select(findings.series, quantity=quantity), "place", "value", *style)

        words: Any = {"x": "probability of the token", "y": "share", "ylim": (0, None)}
        whole = (
            means("tokens", QUIET, "tokens", "^"),
            means("logits", SERIES[0], "gradient in the logits (L1)"),
            means("head", SERIES[1], "gradient of the head (norms)", ".", "--"),
        )
        sides = (
            means(f"logits {SIDES[1]}", POSITIVE, f"{SIDES[1]} rollouts"),
            means(f"logits {SIDES[-1]}", NEGATIVE, f"{SIDES[-1]} rollouts", "s"),
        )
        by_side = panel("Gradient in the logits by side", *sides, **words)
        return [[panel("Tokens and gradient by probability", *whole, **words), by_side]]


def shares(snapshot: PolicySnapshot) -> Iterator[tuple[str, float, float]]:
    """Yield quantity, probability (the middle of its bin) and share, of the tokens that have a gradient."""
    size = snapshot.weighted_advantages.abs()
    if not bool(size.any()):  # every group was all right or all wrong
        return
    probability, sides = snapshot.column("old_log_prob").exp(), snapshot.column("side")
    logits = size * (1.0 - probability)
    masses = {"tokens": (size > 0).double(), "logits": logits, "head": size * head_norms(head_view(snapshot))}
    masses |= {f"logits {name}": logits * (sides == side) for side, name in SIDES.items()}
    for name, mass in masses.items():
        total = logits.sum() if name.startswith("logits") else mass.sum()
        for place, share in zip((_EDGES[:-1] + _EDGES[1:]) / 2, by_bin(probability, mass / total), strict=True):
            yield name, float(place), float(share)
        yield f"unlikely, {name}", UNLIKELY, float((mass / total)[probability < UNLIKELY].sum())
    yield "punished", np.nan, float(logits[sides < 0].sum() / logits.sum())


def head_norms(view: HeadView) -> Tensor:
    """Return the Frobenius norm [N] of each token's gradient of log pi(y) in the head, |e_y - p| |h| / T."""
    everything = torch.arange(len(view.token_ids))
    probabilities = view.probabilities
    of_token = probabilities[everything, view.token_ids]
    # |e_y - p|^2 = 1 - 2 p_y + |p|^2
    errors = (1.0 - 2.0 * of_token + probabilities.square().sum(dim=1)).clamp(min=0)
    return errors.sqrt() * view.hidden.square().sum(dim=1).sqrt() / view.temperature


def by_bin(probability: Tensor, mass: Tensor) -> Tensor:
    """Sum ``mass`` [N] over ten equal bins of ``probability`` [N]; the last one includes 1."""
    bins = (probability * (len(_EDGES) - 1)).long().clamp(max=len(_EDGES) - 2)
    return torch.zeros(len(_EDGES) - 1, dtype=torch.float64).index_add(0, bins, mass)
