"""Cancellation within a group: the length of its summed update, and what opposed rollouts take away from it.

arXiv 2605.08666: |sum_i A_i G_i|^2 = sum_i A_i^2 |G_i|^2 + sum_{i != j} A_i A_j <G_i, G_j>, with G_i the gradient of
the log-probability of rollout i. If all rollouts overlap by the same rho, the cross term of a whole group is
-rho sum A^2, because its advantages sum to 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class UpdateNorm:
    """The squared length of sum_i A_i G_i, and its two parts.

    Attributes:
        self_term: sum_i A_i^2 |G_i|^2.
        cross_term: what pairs of different rollouts add, negative where they cancel.
    """

    self_term: float
    cross_term: float

    @property
    def squared_norm(self) -> float:
        """|sum_i A_i G_i|^2."""
        return self.self_term + self.cross_term

    @property
    def cancelled(self) -> float:
        """The cross term over the self term: -1 if nothing is left; NaN without any update."""
        return self.cross_term / self.self_term if self.self_term > 0 else math.nan


def update_norm(gram: Tensor, advantages: Tensor) -> UpdateNorm:
    """The parts for the Gram matrix <G_i, G_j> [B, B] and advantages [B]."""
    weighted = advantages[:, None] * gram * advantages[None]
    self_term = float(weighted.diagonal().sum())
    return UpdateNorm(self_term, float(weighted.sum()) - self_term)


def opposed_term(gram: Tensor, advantages: Tensor) -> float:
    """The part of the cross term that pairs of opposite signs add: what rewarded and punished rollouts cancel."""
    weighted = advantages[:, None] * gram * advantages[None]
    return float(weighted[torch.sign(advantages)[:, None] * torch.sign(advantages)[None] < 0].sum())


def mean_overlap(gram: Tensor) -> float:
    """Mean cosine of the gradients of two different rollouts [B, B]."""
    lengths = gram.diagonal().clamp(min=1e-30).sqrt()
    cosines = gram / lengths[:, None] / lengths[None]
    size = len(gram)
    return float((cosines.sum() - cosines.diagonal().sum()) / (size * (size - 1)))


def halves(size: int, count: int, generator: torch.Generator) -> list[Tensor]:
    """``count`` random halves of 0 .. size - 1, as index tensors."""
    return [torch.randperm(size, generator=generator)[: size // 2] for _ in range(count)]
