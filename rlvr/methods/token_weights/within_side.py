"""DelTA's ablations without an opposite side: how near a token is to its own side's centre (arXiv 2605.21467)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.discriminant import TokenVectors
from rlvr.methods.token_weights.lambda_map import unit_interval_to_weights
from rlvr.methods.token_weights.scopes import token_scopes
from rlvr.methods.token_weights.side_weights import weigh_scopes
from rlvr.methods.token_weights.token_proxy import token_vectors

_WEISZFELD_STEPS = 20
_WEISZFELD_FLOOR = 1e-12
"""Smallest squared distance that a step divides by: a token on the median would have infinite weight."""


@dataclass(frozen=True)
class WithinSide:
    """Weights from alpha = sigmoid(-|v - m|^2 / scale), m the centre of the token's own side.

    The scale is the standard deviation of |v - m|^2 over the side, lagging one refinement as DelTA's does; range map
    and normalisation are DelTA's. alpha never exceeds one half. The centre is the mean weighted by |A| (the paper's
    formula; its scale is not published), or the geometric median with the same weights by 20 steps of Weiszfeld's
    algorithm from that mean, our reading of the paper's "l2-centroid".
    """

    needs_hidden_states: ClassVar[bool] = True
    sketch_dimensions: ClassVar[int | None] = None

    lambda_min: float = hyper_parameter(0.8, "weight, before normalisation, where alpha is 0", minimum=0.0, maximum=1.0)
    lambda_max: float = hyper_parameter(1.2, "weight, before normalisation, where alpha is 1", minimum=1.0)
    refinements: int = hyper_parameter(1, "refinement steps of the centres (the paper's K)", minimum=0)
    centre: Literal["mean", "geometric_median"] = hyper_parameter("mean", "what stands for a side")

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32 (mean 1 over the tokens, 0 at padding), and metrics.

        Raises:
            ValueError: the batch has no hidden states.
        """
        vectors = token_vectors(batch, "sampled_token_row", top_k=1)

        def weigh(part: TokenVectors) -> tuple[Tensor, Tensor] | None:
            acts = part.sides.any(dim=0)
            if not bool(acts.any()):
                return None
            soft, scales = self._assign(part)
            return unit_interval_to_weights(soft, acts, self.lambda_min, self.lambda_max, True, True), scales

        return weigh_scopes(batch, vectors, token_scopes(batch, "global", 1), weigh)

    def _assign(self, vectors: TokenVectors) -> tuple[Tensor, Tensor]:
        """Soft assignments [N] and final scales [2]."""
        squared_lengths = vectors.squared_lengths()
        centres = self._centres(vectors, None, squared_lengths)
        distances = vectors.own_distances(centres, squared_lengths)
        scales = vectors.deviations(distances)
        for _ in range(self.refinements):
            soft = torch.sigmoid(-distances / vectors.per_token(scales))
            centres = self._centres(vectors, soft, squared_lengths)
            scales = vectors.deviations(distances)
            distances = vectors.own_distances(centres, squared_lengths)
        return torch.sigmoid(-distances / vectors.per_token(scales)), scales

    def _centres(self, vectors: TokenVectors, soft: Tensor | None, squared_lengths: Tensor) -> Tensor:
        """Centres [2, D] of the sides, weighted by mass times ``soft`` [N]."""
        centres = vectors.centroids(soft)
        if self.centre == "mean":
            return centres
        for _ in range(_WEISZFELD_STEPS):
            nearness = vectors.own_distances(centres, squared_lengths).clamp(min=_WEISZFELD_FLOOR).rsqrt()
            centres = vectors.centroids(nearness if soft is None else soft * nearness)
        return centres
