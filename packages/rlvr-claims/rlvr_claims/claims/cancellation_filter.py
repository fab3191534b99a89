"""Claim 5: within a whole group, opposed rollouts cancel what they share and leave what tells them apart.

arXiv 2605.08666: |sum_i A_i G_i|^2 = sum_i A_i^2 |G_i|^2 + sum_{i != j} A_i A_j <G_i, G_j>, with G_i the gradient of
the log-probability of rollout i. If all rollouts overlap by the same rho, the cross term of a whole group is
-rho sum A^2, because its advantages sum to 0.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from evals.core.random import generator_for
from evals.tables.numbers import rounded
from rlvr.tokens.table import CLASSES
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import NO_RESULTS, Findings, Measurement, beside, by_unit, measure, points, unmeasured
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

    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        def values(quantity: str, name: str) -> pd.Series:
            return by_unit(series, quantity=quantity, name=name)

        whole, form = values(_RATIO, "whole group"), values("filtered", "format")
        yield measure(
            "Rewarded and punished rollouts take away from each other",
            "cross terms of opposed pairs over self term, whole groups",
            values(_RATIO, "opposed pairs"),
            direction="below",
        )
        yield measure(
            "Whole groups cancel more than they add up",
            "cross term over self term, whole groups",
            whole,
            direction="below",
        )
        yield measure(
            "Groups that are cut in half cancel less",
            "cross over self, halves less whole groups",
            values(_RATIO, "half a group") - whole,
        )
        yield measure(
            "Rewarded rollouts alone add up",
            "cross over self, rewarded rollouts of a group",
            values(_RATIO, "rewarded only"),
        )
        yield measure(
            "Rewarded rollouts alone boost format that joint training leaves",
            "boosted fraction of format tokens, rewarded only less joint",
            form,
        )
        statement, results = "That is more so for format than for results", values("filtered", "result")
        if results.notna().any():
            words = "boosted fraction, rewarded only less joint, format less results"
            yield measure(statement, words, form - results)
        else:
            yield unmeasured(statement, NO_RESULTS)
        yield beside("mean cosine of two rollouts' gradients", values(_RATIO, "overlap"))

    def panels(self, findings: Findings) -> Layout:
        def values(quantity: str, names: tuple[str, ...]) -> dict[str, pd.Series]:
            return {name: by_unit(findings.series, quantity=quantity, name=name) for name in names}

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

    def title(self, findings: Findings) -> str:
        opposed, whole, _, _, form = findings.measurements[:5]
        by_opposed, by_all = (rounded(share.estimate, "+.0%") for share in (opposed, whole))
        return (
            f"Opposed rollouts add {by_opposed} of the self term to an update's squared length, all pairs "
            f"{by_all}; rewarded rollouts alone boost {points(form.estimate)} of the format tokens than "
            "joint updates"
        )

    method = (
        f"Of each kept step up to {_GROUPS} groups with both answers were drawn. Of each of their rollouts the "
        "gradient of its summed log-probability was taken over all parameters, and the squared length of the "
        f"advantage-weighted sum split into self and cross terms: for whole groups, for {_HALVES} random halves of "
        "each (ratio of the sums), and for the rewarded rollouts alone. With advantages that sum to 0, some "
        "cancellation follows from any overlap that all rollouts share; the mean cosine says how much there is. By "
        "class of token: the boosted fraction in rewarded rollouts after one SGD step on all tokens, and after one "
        "of the same size on those of positive advantage."
    )


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
