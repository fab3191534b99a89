"""DelTA, Discriminative Token Credit Assignment (arXiv 2605.21467), and the ablations that change one step of it.

A token counts for more the better its gradient tells rewarded responses from punished ones. The side centroids of the
tokens' vectors make a linear discriminant, refined by soft assignment, and the weight grows with the margin on the
token's own side. Only the projection of the vectors on the difference of the centroids is ever needed per token,
because their length cancels in the margin: they are read 2 K + 2 times in chunks, and no forward pass is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.discriminant import TokenVectors
from rlvr.methods.token_weights.lambda_map import unit_interval_to_weights
from rlvr.methods.token_weights.scopes import Scope, ranks_field, scope_field, token_scopes
from rlvr.methods.token_weights.side_weights import weigh_scopes
from rlvr.methods.token_weights.token_proxy import Proxy, token_vectors


@dataclass(frozen=True)
class DelTA:
    """Weights lambda_min + (lambda_max - lambda_min) sigmoid(margin / scale), divided by their mean over all tokens.

    Sides go by the sign of the advantage. Tokens of advantage 0 get lambda_min and enter the mean. If a side is empty
    there is nothing to tell apart and every weight is 1. Because of the division only lambda_max / lambda_min matters,
    so a range on both sides of 1 is no restriction. The last six fields are the paper's ablations and the scope of its
    statistics; their defaults are the method.
    """

    needs_hidden_states: ClassVar[bool] = True
    sketch_dimensions: ClassVar[int | None] = None

    lambda_min: float = hyper_parameter(
        0.8, "weight, before normalisation, of the least telling token", minimum=0.0, maximum=1.0
    )
    lambda_max: float = hyper_parameter(1.2, "weight, before normalisation, of the most telling token", minimum=1.0)
    refinements: int = hyper_parameter(1, "refinement steps of the centroids (the paper's K)", minimum=0)
    scale: Literal["margin_deviation", "first_batch", "mean_distance", "one"] = hyper_parameter(
        "margin_deviation", "what margins are divided by: re-estimated, the run's first, a distance, or nothing"
    )
    assignment: Literal["soft", "hard"] = hyper_parameter("soft", "sigmoid of the margin, or 1 where it is positive")
    proxy: Proxy = hyper_parameter("sampled_token_row", "the gradient that stands in for a token's")  # noqa: RUF009
    top_k: int = hyper_parameter(20, "tokens that the hidden gradient's softmax is cut to", minimum=1)
    range_map: bool = hyper_parameter(True, "whether assignments are mapped to [lambda_min, lambda_max]")
    normalised: bool = hyper_parameter(True, "whether weights are divided by their mean")
    scope: Scope = scope_field()  # noqa: RUF009 (a field)
    ranks: int = ranks_field()

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32 (mean 1 over the tokens, 0 at padding), and metrics.

        Raises:
            ValueError: the batch has no hidden states.
        """
        vectors = token_vectors(batch, self.proxy, self.top_k)
        frozen = _first_scales(batch.first_metrics) if self.scale == "first_batch" else None

        def weigh(part: TokenVectors) -> tuple[Tensor, Tensor] | None:
            if not bool(part.sides.any(dim=1).all()):
                return None
            soft, scales = self._assign(part, frozen)
            acts = part.sides.any(dim=0)
            lambdas = unit_interval_to_weights(
                soft, acts, self.lambda_min, self.lambda_max, self.range_map, self.normalised
            )
            return lambdas, scales

        return weigh_scopes(batch, vectors, token_scopes(batch, self.scope, self.ranks), weigh)

    def _assign(self, vectors: TokenVectors, frozen: Tensor | None) -> tuple[Tensor, Tensor]:
        """Assignments [N] and final scales [2]; ``frozen`` [2] replaces the scales of this batch."""
        shares = vectors.shares()
        margins = vectors.margins(shares)
        scales = self._initial_scales(vectors, margins) if frozen is None else frozen
        for _ in range(self.refinements):
            shares = vectors.shares(self._soft(margins, vectors.per_token(scales)), shares)
            if self.scale == "margin_deviation":
                # Of the margins before this step: the paper's scale lags by one step.
                scales = vectors.deviations(margins)
            margins = vectors.margins(shares)
        return self._soft(margins, vectors.per_token(scales)), scales

    def _initial_scales(self, vectors: TokenVectors, margins: Tensor) -> Tensor:
        """The scales [2] of the margins of the initial centroids."""
        if self.scale == "one":
            return torch.ones(2, dtype=torch.float64, device=margins.device)
        if self.scale == "mean_distance":
            distances = vectors.own_distances(vectors.centroids(), vectors.squared_lengths())
            return torch.stack([distances[side].mean() for side in vectors.sides])
        return vectors.deviations(margins)

    def _soft(self, margins: Tensor, scales: Tensor) -> Tensor:
        """Assignments [N] of margins [N] and scales [N]."""
        return (margins > 0).double() if self.assignment == "hard" else torch.sigmoid(margins / scales)


def _first_scales(first_metrics: Mapping[str, float]) -> Tensor | None:
    """The scales [2] of the run's first rollout batch, None on it, or if it had one side only."""
    names = ("margin_scale_positive", "margin_scale_negative")
    if any(name not in first_metrics for name in names):
        return None
    return torch.tensor([first_metrics[name] for name in names], dtype=torch.float64)
