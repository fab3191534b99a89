"""DelTA, Discriminative Token Credit Assignment (arXiv 2605.21467), and the ablations of its paper.

A token counts for more the better its gradient tells rewarded responses from punished ones. The side centroids of the
tokens' vectors make a linear discriminant, refined by soft assignment, and the weight grows with the margin on the
token's own side. Only the projection of the vectors on the difference of the centroids is ever needed per token,
because their length cancels in the margin: they are read 2 K + 2 times in chunks, and no forward pass is added.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.parameters import component, hyper_parameter
from rlvr.methods.rollout_batch import RolloutBatch, computation_type
from rlvr.methods.token_weights.discriminant import VARIANCE_FLOOR, Proxy, TokenVectors, token_vectors
from rlvr.methods.token_weights.token_rules import Denominator, TokenWeights, selection_weights

if TYPE_CHECKING:
    from torch import Tensor

_WEISZFELD_STEPS = 20
_WEISZFELD_FLOOR = 1e-12
"""Smallest squared distance that a step divides by: a token on the median would have infinite weight."""


@dataclass(frozen=True)
class LambdaRange(TokenWeights):
    """The hyper-parameters that DelTA, its sketched form and its ablations without an opposite side share."""

    needs_hidden_states: ClassVar[bool] = True

    lambda_min: float = hyper_parameter(0.8, "unnormalised weight of the least telling token", minimum=0.0, maximum=1.0)
    lambda_max: float = hyper_parameter(1.2, "unnormalised weight of the most telling token", minimum=1.0)
    refinements: int = hyper_parameter(1, "refinement steps of the centroids (the paper's K)", minimum=0)


@dataclass(frozen=True)
class SideWeights(LambdaRange):
    """The base of weights from soft assignments of tokens to the two sides, the signs of the advantage."""

    @abstractmethod
    def _weigh_part(self, vectors: TokenVectors, batch: RolloutBatch) -> tuple[Tensor, Tensor] | None:
        """Compute weights [N] and the scales [2] of the margins; None if every weight is 1."""

    def _weigh_parts(
        self, batch: RolloutBatch, vectors: TokenVectors, parts: Sequence[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """Compute the weights [N] of the ``parts``, [N] bool each, and metrics with the mean scales of the parts."""
        weights = torch.ones_like(vectors.mass)
        scales = []
        for part in parts:
            weighed = self._weigh_part(vectors.select(part), batch)
            if weighed is not None:
                weights[part] = weighed[0]
                scales.append(weighed[1])
        mean_scales = torch.stack(scales).mean(dim=0) if scales else torch.full((2,), torch.nan)
        positive, negative = vectors.sides
        return weights, {
            "positive_token_fraction": float(positive.double().mean()),
            "negative_token_fraction": float(negative.double().mean()),
            "token_weight_mean_positive": float(weights[positive].mean()),
            "token_weight_mean_negative": float(weights[negative].mean()),
            "margin_scale_positive": float(mean_scales[0]),
            "margin_scale_negative": float(mean_scales[1]),
        }

    def _lambdas(self, soft: Tensor, acts: Tensor, range_map: bool = True, normalised: bool = True) -> Tensor:
        """Map soft assignments [N] in [0, 1] to weights [N], all in float64.

        With the range map lambda = lambda_min + (lambda_max - lambda_min) soft, so tokens of advantage 0, where
        ``acts`` [N] is false, get lambda_min; without it lambda = soft, and they get 0 and leave the normaliser.
        Normalised weights are lambda over its mean, or all 1 where every lambda is 0: then none is preferred.
        """
        present = soft.masked_fill(~acts, 0.0)
        weights = self.lambda_min + (self.lambda_max - self.lambda_min) * present if range_map else present
        if not normalised:
            return weights
        mean = (weights if range_map else weights[acts]).mean()
        return weights / mean if mean > 0 else torch.ones_like(weights)


@component("delta")
class DelTA(SideWeights):
    """Weights lambda_min + (lambda_max - lambda_min) sigmoid(margin / scale), divided by their mean over all tokens.

    Sides go by the sign of the advantage. Tokens of advantage 0 get lambda_min and enter the mean. If a side is empty
    there is nothing to tell apart and every weight is 1. Because of the division only lambda_max / lambda_min matters,
    so a range on both sides of 1 is no restriction. The last eight fields are the paper's ablations and the scope of
    its statistics; their defaults are the method.
    """

    scale: Literal["margin_deviation", "first_batch", "mean_distance", "one"] = hyper_parameter(
        "margin_deviation", "what margins are divided by: re-estimated, the run's first, a distance, or nothing"
    )
    assignment: Literal["soft", "hard"] = hyper_parameter("soft", "sigmoid of the margin, or 1 where it is positive")
    proxy: Proxy = hyper_parameter("sampled_token_row", "the gradient that stands in for a token's")
    top_k: int = hyper_parameter(20, "tokens that the hidden gradient's softmax is cut to", minimum=1)
    range_map: bool = hyper_parameter(True, "whether assignments are mapped to [lambda_min, lambda_max]")
    normalised: bool = hyper_parameter(True, "whether weights are divided by their mean")
    scope: Literal["global", "group", "rank"] = hyper_parameter("global", "tokens that share their statistics")
    ranks: int = hyper_parameter(8, "equal contiguous shards of the rollout batch of scope rank", minimum=1)

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Compute the weights [N], with mean 1 if normalised."""
        groups, rollouts = batch.group_ids, len(batch.group_ids)
        part_of_rollout = {
            "global": torch.zeros_like(groups),
            "group": groups,
            "rank": torch.arange(rollouts, device=groups.device) * self.ranks // rollouts,
        }[self.scope]
        part_of_token = batch.per_token(part_of_rollout)
        parts = [part_of_token == part for part in torch.unique(part_of_token)]
        return self._weigh_parts(batch, token_vectors(batch, self.proxy, self.top_k), parts)

    def _weigh_part(self, vectors: TokenVectors, batch: RolloutBatch) -> tuple[Tensor, Tensor] | None:
        if not bool(vectors.sides.any(dim=1).all()):
            return None
        shares = vectors.shares()
        margins = vectors.margins(shares)
        scales = self._initial_scales(vectors, margins, batch.first_metrics)
        for _ in range(self.refinements):
            shares = vectors.shares(self._soft(margins, vectors.per_token(scales)), shares)
            if self.scale == "margin_deviation":
                # Of the margins before this step: the paper's scale lags by one step.
                scales = vectors.deviations(margins)
            margins = vectors.margins(shares)
        soft = self._soft(margins, vectors.per_token(scales))
        return self._lambdas(soft, vectors.sides.any(dim=0), self.range_map, self.normalised), scales

    def _initial_scales(self, vectors: TokenVectors, margins: Tensor, first_metrics: Mapping[str, float]) -> Tensor:
        """Compute the scales [2] of the margins of the initial centroids."""
        if self.scale == "one":
            return margins.new_ones(2)
        if self.scale == "mean_distance":
            distances = vectors.own_distances(vectors.centroids(), vectors.squared_lengths())
            # The floor is for a side whose vectors are all alike; the other scales have one of their own.
            return torch.stack([distances[side].mean() for side in vectors.sides]).clamp(min=VARIANCE_FLOOR)
        names = ("margin_scale_positive", "margin_scale_negative")
        # The run's first batch has no earlier scales, and no batch has any if that one had one side only.
        if self.scale == "first_batch" and all(name in first_metrics for name in names):
            return margins.new_tensor([first_metrics[name] for name in names])
        return vectors.deviations(margins)

    def _soft(self, margins: Tensor, scales: Tensor) -> Tensor:
        """Compute assignments [N] of margins [N] and scales [N]."""
        return (margins > 0).double() if self.assignment == "hard" else torch.sigmoid(margins / scales)


@component("sketched_delta")
class SketchedDelTA(LambdaRange):
    """DelTA's weights, of hidden states that the engine has projected to sketch_dimensions random directions.

    For rollout batches whose hidden states fit nowhere. Projected vectors keep inner products in expectation (Johnson
    and Lindenstrauss), and margins are inner products, so the weights are DelTA's with noise that falls with the root
    of the dimensions; docs/results/performance.md has it measured. The engine projects while the old log-probs are
    computed, and never holds [N, D].
    """

    sketch_dimensions: int = hyper_parameter(64, "dimensions of the random projection", minimum=8)

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        hidden = batch.hidden_states
        if hidden is not None and hidden.shape[1] != self.sketch_dimensions:
            raise ValueError(
                f"hidden_states have {hidden.shape[1]} dimensions; the sketch has {self.sketch_dimensions}"
            )
        return DelTA(self.lambda_min, self.lambda_max, self.refinements).weigh(batch)


@dataclass(frozen=True)
class RankedByLambda(TokenWeights):
    """The base of selections of tokens with an advantage other than 0 by DelTA's lambda, ranked over the rollout batch.

    Ties are broken at random, so where DelTA has nothing to say every selection is a random one.
    """

    needs_hidden_states: ClassVar[bool] = True

    keep: Literal["top", "random", "bottom"] = hyper_parameter("top", "which end of the ranking is trained on")
    ratio: float = hyper_parameter(
        0.5, "part that is kept, of the tokens or their gradient mass", above=0.0, maximum=1.0
    )
    refinements: int = hyper_parameter(1, "refinement steps of DelTA's centroids", minimum=0)

    def _ranked(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """List the places of the tokens that may be kept, the first to keep first, and DelTA's metrics."""
        lambdas, metrics = DelTA(refinements=self.refinements).weigh(batch)
        candidates = (batch.token_advantages != 0).nonzero()[:, 0]
        order = candidates[torch.randperm(candidates.numel(), generator=batch.generator).to(candidates.device)]
        if self.keep != "random":
            compared = lambdas.to(computation_type(batch.old_log_probs))[order]
            order = order[compared.argsort(descending=self.keep == "top", stable=True)]
        return order, metrics


@component("lambda_selection")
class LambdaSelection(RankedByLambda):
    """Keeps part of the tokens with an advantage other than 0, ranked over the rollout batch by DelTA's lambda.

    The paper shows figures only: the ranking's scope, the denominator (the kept tokens of each mini-batch) and the
    exclusion of tokens of advantage 0 are ours.
    """

    denominator: Denominator = hyper_parameter("selected", "tokens that the token mean divides by")

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        order, metrics = self._ranked(batch)
        selected = torch.zeros_like(batch.token_advantages, dtype=torch.bool)
        selected[order[: math.ceil(self.ratio * order.numel())]] = True
        fraction = {"selected_token_fraction": float(selected.double().mean())}
        return selection_weights(selected, batch, self.denominator), metrics | fraction


@component("matched_lambda_selection")
class MatchedLambdaSelection(RankedByLambda):
    """Keeps of each side, from one end of the ranking, the fewest tokens with ``ratio`` of its mass |A| (1 - p).

    Not in the paper: a control for its selections, whose halves differ in their gradient and in the side that they come
    from. |A| (1 - p), the gradient mass, is half the L1 norm of a token's gradient with respect to the logits
    (RLVR-Directions, lemma 3.1).
    A kept token weighs its side's mass over what is kept of it, so whichever end is kept, each side has exactly the
    gradient mass that it has without selection.
    """

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        order, metrics = self._ranked(batch)
        advantages = batch.token_advantages.double()
        masses = -advantages.abs() * torch.expm1(batch.old_log_probs[batch.response_mask].double())
        weights = torch.zeros_like(masses)
        for name, side in (("positive", advantages > 0), ("negative", advantages < 0)):
            of_side = order[side[order]]
            reached = masses[of_side].cumsum(dim=0)
            kept = of_side[: int((reached < self.ratio * reached[-1:]).sum()) + 1]
            share = masses[kept].sum() / masses[of_side].sum()
            weights[kept] = 1.0 / share if share > 0 else 1.0  # a side without gradient keeps one token, which has none
            metrics[f"selected_mass_fraction_{name}"] = float(share)
        metrics["selected_token_fraction"] = float((weights > 0).double().mean())
        return weights.to(computation_type(batch.old_log_probs)), metrics


@component("within_side")
class WithinSide(SideWeights):
    """Weights from alpha = sigmoid(-|v - m|^2 / scale), m the centre of the token's own side.

    DelTA's ablations without an opposite side. The scale is the standard deviation of |v - m|^2 over the side, lagging
    one refinement as DelTA's does; range map and normalisation are DelTA's. alpha never exceeds one half. The centre is
    the mean weighted by |A| (the paper's formula; its scale is not published), or the geometric median with the same
    weights by 20 steps of Weiszfeld's algorithm from that mean, our reading of the paper's "l2-centroid".
    """

    centre: Literal["mean", "geometric_median"] = hyper_parameter("mean", "what stands for a side")

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        vectors = token_vectors(batch, "sampled_token_row", top_k=1)
        return self._weigh_parts(batch, vectors, [torch.ones_like(vectors.sides[0])])

    def _weigh_part(self, vectors: TokenVectors, batch: RolloutBatch) -> tuple[Tensor, Tensor] | None:
        acts = vectors.sides.any(dim=0)
        if not bool(acts.any()):
            return None
        squared_lengths = vectors.squared_lengths()
        centres = self._centres(vectors, squared_lengths)
        distances = vectors.own_distances(centres, squared_lengths)
        scales = vectors.deviations(distances)
        for _ in range(self.refinements):
            soft = torch.sigmoid(-distances / vectors.per_token(scales))
            centres = self._centres(vectors, squared_lengths, soft, centres)
            scales = vectors.deviations(distances)
            distances = vectors.own_distances(centres, squared_lengths)
        return self._lambdas(torch.sigmoid(-distances / vectors.per_token(scales)), acts), scales

    def _centres(
        self, vectors: TokenVectors, squared_lengths: Tensor, soft: Tensor | None = None, before: Tensor | None = None
    ) -> Tensor:
        """Compute the centres [2, D] of the sides, weighted by mass times ``soft`` [N].

        Where all of a side's soft assignments underflow, it keeps its centre ``before`` [2, D].
        """
        centres = vectors.centroids(soft, before)
        if self.centre == "mean":
            return centres
        for _ in range(_WEISZFELD_STEPS):
            nearness = vectors.own_distances(centres, squared_lengths).clamp(min=_WEISZFELD_FLOOR).rsqrt()
            centres = vectors.centroids(nearness if soft is None else soft * nearness, centres)
        return centres
