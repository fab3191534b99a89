"""Claim 5: within a whole group, opposed rollouts cancel what they share and leave what tells them apart.

arXiv 2605.08666: |sum_i A_i G_i|^2 = sum_i A_i^2 |G_i|^2 + sum_{i != j} A_i A_j <G_i, G_j>, with G_i the gradient of
the log-probability of rollout i. If all rollouts overlap by the same rho, the cross term of a whole group is
-rho sum A^2, because its advantages sum to 0.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from evals.core.random import generator_for
from rlvr.tokens.table import CLASSES
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, by_name
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import SERIES, Estimates, Layout, Level, panel
from rlvr_claims.measures import flips
from rlvr_claims.policy import PolicySnapshot
from rlvr_claims.probes import Probed, gradient_of_few

_GROUPS, _HALVES = 6, 20
_THRESHOLD = 1e-5
_PARTS = ("whole group", "opposed pairs", "half a group", "rewarded only")
_RATIO = "cross over self"


class CancellationFilter(Claim):
    """Self and cross terms of groups and parts of groups, and tokens that only one-sided updates boost."""

    size = (8.5, 3.2)
    columns = ("unit", "step", "quantity", "name", "value")

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        for snapshot, probed in inputs.probed:
            for quantity, name, value in (*_norms(snapshot), *_classes(snapshot, probed)):
                yield {**snapshot.identity, "quantity": quantity, "name": name, "value": value}

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        return by_name(series, "quantity", "name")

    def panels(self, findings: Findings) -> Layout:
        found = by_name(findings.series, "quantity", "name")

        def values(quantity: str, names: tuple[str, ...]) -> dict[str, Any]:
            return {name: found.get(f"{quantity}, {name}", []) for name in names}

        classes = (
            Estimates(values(quantity, CLASSES), colour, marker, quantity, shift)
            for quantity, colour, marker, shift in (
                ("boosted jointly", SERIES[0], "o", -0.1),
                ("boosted by rewarded only", SERIES[1], "s", 0.1),
            )
        )
        words = "ratio (-1: nothing of the update is left)"
        terms = Estimates(values(_RATIO, _PARTS)), Level(0)
        limits = (len(_PARTS) - 0.5, -0.5)
        boosted = f"boosted fraction (beyond {_THRESHOLD:g} nats)"
        return [
            [
                panel("Cross term over self term", *terms, x=words, level=True, ylim=limits),
                panel("Tokens of rewarded rollouts", *classes, x=boosted, level=True),
            ]
        ]


def _norms(snapshot: PolicySnapshot) -> list[tuple[str, str, float]]:
    generator = generator_for("cancellation", snapshot.unit)
    advantages = snapshot.of_rollouts("advantage")
    groups = snapshot.groups.unique().tolist()
    mixed = [group for group in groups if bool(advantages[snapshot.groups == group].any())]
    order = torch.randperm(len(mixed), generator=generator)[:_GROUPS].tolist()
    values: dict[str, list[float]] = {name: [] for name in (*_PARTS, "overlap")}
    for group in (mixed[number] for number in order):
        members = (snapshot.groups == group).nonzero()[:, 0]
        gram, of_members = _gram(snapshot, members), advantages[members]
        whole = update_norm(gram, of_members)
        values["whole group"].append(whole.cancelled)
        values["opposed pairs"].append(opposed_term(gram, of_members) / whole.self_term)
        parts = [
            update_norm(gram[half][:, half], of_members[half]) for half in halves(len(members), _HALVES, generator)
        ]
        # The ratio of the sums, so that halves with small terms count little.
        total = sum(part.self_term for part in parts)
        if total > 0:
            values["half a group"].append(sum(part.cross_term for part in parts) / total)
        rewarded = of_members > 0
        if int(rewarded.sum()) > 1:
            values["rewarded only"].append(update_norm(gram[rewarded][:, rewarded], of_members[rewarded]).cancelled)
        values["overlap"].append(mean_overlap(gram))
    return [(_RATIO, name, sum(ratios) / len(ratios)) for name, ratios in values.items() if ratios]


def _gram(snapshot: PolicySnapshot, members: Tensor) -> Tensor:
    """[B, B] inner products of the rollouts' gradients, of all parameters."""
    gradients = [gradient_of_few(snapshot, (snapshot.rollout_of == rollout).double()) for rollout in members.tolist()]
    total = torch.zeros(len(members), len(members), dtype=torch.float64)
    for name in gradients[0]:  # one parameter at a time: all of them in float64 are many times the model
        rows = torch.stack([gradient[name].flatten() for gradient in gradients]).double()
        total += rows @ rows.T
    return total


def _classes(snapshot: PolicySnapshot, probed: Probed) -> Iterator[tuple[str, str, float]]:
    rewarded = snapshot.column("side") > 0
    for name in CLASSES:
        chosen = rewarded & snapshot.of_class(name)
        updates = (probed.displacements[update] for update in ("joint", "positive_only"))
        joint, alone = (flips(displacements, chosen, _THRESHOLD).boosted for displacements in updates)
        yield "boosted jointly", name, joint
        yield "boosted by rewarded only", name, alone
        yield "filtered", name, alone - joint


@dataclass(frozen=True)
class UpdateNorm:
    """The squared length of sum_i A_i G_i in two parts."""

    self_term: float  # sum_i A_i^2 |G_i|^2
    cross_term: float  # sum over pairs of different rollouts, negative where they cancel

    @property
    def cancelled(self) -> float:
        """The cross term over the self term: -1 if nothing is left; NaN without any update."""
        return self.cross_term / self.self_term if self.self_term > 0 else math.nan


def update_norm(gram: Tensor, advantages: Tensor) -> UpdateNorm:
    """Return the two parts for the Gram matrix <G_i, G_j> [B, B] and advantages [B]."""
    weighted = advantages[:, None] * gram * advantages[None]
    self_term = float(weighted.diagonal().sum())
    return UpdateNorm(self_term, float(weighted.sum()) - self_term)


def opposed_term(gram: Tensor, advantages: Tensor) -> float:
    """Return the part of the cross term from pairs of opposite signs: the cancellation between the two sides."""
    weighted = advantages[:, None] * gram * advantages[None]
    return float(weighted[torch.sign(advantages)[:, None] * torch.sign(advantages)[None] < 0].sum())


def mean_overlap(gram: Tensor) -> float:
    """Return the mean cosine of the gradients of two different rollouts [B, B]."""
    lengths = gram.diagonal().clamp(min=1e-30).sqrt()
    cosines = gram / lengths[:, None] / lengths[None]
    return float((cosines.sum() - cosines.diagonal().sum()) / (len(gram) * (len(gram) - 1)))


def halves(size: int, count: int, generator: torch.Generator) -> list[Tensor]:
    """Draw ``count`` random halves of 0 .. size - 1, as index tensors."""
    return [torch.randperm(size, generator=generator)[: size // 2] for _ in range(count)]
