"""A matrix [n, D] of token rows that is recomputed on each read, for when there is no room to hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Visit = Callable[[Tensor, Tensor], object]
"""Called with places [k] int64 among the n rows, on the CPU, and those rows [k, D]."""


@dataclass(frozen=True)
class RecomputedRows:
    """A matrix [n, D] whose rows are computed anew at every reading.

    Attributes:
        shape: n and D.
        dtype: of the rows.
        device: of the rows.
        read: calls its argument until every row was given once, in any order and in parts of any size.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    read: Callable[[Visit], None]

    def select(self, chosen: Tensor) -> RecomputedRows:
        """Select the rows at ``chosen`` [n] bool; the others are computed all the same."""
        kept = chosen.cpu()
        places = kept.long().cumsum(dim=0) - 1

        def read(visit: Visit) -> None:
            def of_chosen(at: Tensor, rows: Tensor) -> None:
                inside = kept[at]
                visit(places[at[inside]], rows[inside.to(rows.device)])

            self.read(of_chosen)

        return RecomputedRows((int(kept.sum()), self.shape[1]), self.dtype, self.device, read)

    def changed(self, change: Callable[[Tensor, Tensor], Tensor]) -> RecomputedRows:
        """Make other rows [k, D] of the same type by ``change`` from places [k] and rows [k, D]."""
        return RecomputedRows(
            self.shape,
            self.dtype,
            self.device,
            lambda visit: self.read(lambda at, rows: visit(at, change(at, rows).to(self.dtype))),
        )
