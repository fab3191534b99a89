"""Side centroids and margins of token vectors v = c m, read in chunks so that nothing of their size [N, D] is made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.methods.precision import at_least_float32, computation_type

VARIANCE_FLOOR = 1e-8
_CHUNK_ELEMENTS = 1 << 20
"""Entries converted to float32 at a time (4 MiB): stays in the cache, so that memory is read once."""


@dataclass(frozen=True)
class TokenVectors:
    """N vectors v_n = coefficients_n rows_n, of tokens on one of two sides or on neither.

    Attributes:
        rows: [N, D] in any floating type.
        coefficients: [N] in float64.
        sides: [2, N] bool, tokens of positive and of negative advantage.
        mass: [N] in float64, the weight of each token in its side's centroid.
    """

    rows: Tensor
    coefficients: Tensor
    sides: Tensor
    mass: Tensor

    @property
    def signs(self) -> Tensor:
        """[N] in float64: 1, -1, or 0 off both sides."""
        return self.sides[0].double() - self.sides[1].double()

    def select(self, tokens: Tensor) -> TokenVectors:
        """The vectors at ``tokens`` [N] bool."""
        if bool(tokens.all()):
            return self
        return TokenVectors(self.rows[tokens], self.coefficients[tokens], self.sides[:, tokens], self.mass[tokens])

    def per_token(self, of_side: Tensor) -> Tensor:
        """A value [2] of each side at its tokens [N]; off both sides, the negative side's."""
        return torch.where(self.sides[0], of_side[0], of_side[1])

    def centroids(self, soft: Tensor | None = None, before: Tensor | None = None) -> Tensor:
        """[2, D] in float64: centroids weighted by mass, times ``soft`` [N].

        A side without any weight keeps its centroid ``before`` [2, D] (0 without one).
        """
        shares = self.sides * (self.mass if soft is None else self.mass * soft)
        totals = shares.sum(dim=1, keepdim=True)
        coefficients = (shares / totals.clamp(min=torch.finfo(torch.float64).tiny)) * self.coefficients
        narrow = coefficients.to(computation_type(self.rows))
        centroids = torch.zeros(2, self.rows.shape[1], dtype=torch.float64, device=self.rows.device)
        for chosen in _chunks(self.rows):
            chunk = at_least_float32(self.rows[chosen])
            for centroid, coefficient in zip(centroids, narrow[:, chosen], strict=True):
                centroid += coefficient @ chunk  # a product with both rows at once is far slower on CPUs
        return centroids if before is None else torch.where(totals > 0, centroids, before)

    def projections(self, direction: Tensor) -> Tensor:
        """Inner products of v and direction [N] in float64, for ``direction`` [D]."""
        narrow = direction.to(computation_type(self.rows))
        parts = [at_least_float32(self.rows[chosen]) @ narrow for chosen in _chunks(self.rows)]
        return self.coefficients * torch.cat(parts)

    def squared_lengths(self) -> Tensor:
        """|v|^2 [N] in float64."""
        parts = [at_least_float32(self.rows[chosen]).square().sum(dim=1) for chosen in _chunks(self.rows)]
        return self.coefficients.square() * torch.cat(parts)

    def margins(self, centroids: Tensor) -> Tensor:
        """How much nearer, in squared distance, v is to its own side's centroid: [N] in float64, 0 off both sides.

        |v|^2 cancels, so one projection on the difference of the centroids [2, D] is all that is needed.
        """
        positive, negative = centroids
        offset = negative.square().sum() - positive.square().sum()
        return torch.mul(self.signs, 2.0 * self.projections(positive - negative) + offset)

    def own_distances(self, centroids: Tensor, squared_lengths: Tensor) -> Tensor:
        """Squared distance [N] of v to its own side's centroid of [2, D], in float64; 0 off both sides."""
        own = self.per_token(centroids.square().sum(dim=1)) - 2.0 * torch.where(
            self.sides[0], self.projections(centroids[0]), self.projections(centroids[1])
        )
        return (squared_lengths + own).clamp(min=0.0) * self.sides.any(dim=0)

    def deviations(self, values: Tensor) -> Tensor:
        """Population standard deviation [2] of ``values`` [N] over each side, with a floor; the floor for no tokens."""
        variances = [
            values[side].var(correction=0) if bool(side.any()) else values.new_zeros(()) for side in self.sides
        ]
        return torch.stack(variances).clamp(min=VARIANCE_FLOOR).sqrt()


def _chunks(rows: Tensor) -> list[slice]:
    """Row ranges that cover [N, D] with at most _CHUNK_ELEMENTS entries each (or one row)."""
    size = max(1, _CHUNK_ELEMENTS // rows.shape[1])
    return [slice(start, start + size) for start in range(0, rows.shape[0], size)]
