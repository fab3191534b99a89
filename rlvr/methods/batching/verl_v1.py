"""Mini-batches in prompt order within ranks: what verl's V1 trainer makes of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.batching.ranks import balanced_shards, contiguous_mini_batches, ranks_field
from rlvr.methods.hyper_parameter import check_hyper_parameters


@dataclass(frozen=True)
class VerlV1:
    """Each rank's share stays in prompt order and is sliced: most of a prompt's rollouts share a mini-batch, not all.

    The V1 trainer of verl 0.9.1 and every verl before October 2025 do so (docs/methods/cancellation.md).
    """

    keeps_groups: ClassVar[bool] = False
    equal_sizes: ClassVar[bool] = True

    ranks: int = ranks_field()

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(
        self, rewards: Tensor, group_ids: Tensor, lengths: Tensor, updates: int, generator: torch.Generator
    ) -> list[Tensor]:
        """``updates`` index tensors of the rollouts; only ``lengths`` [B] plays a part.

        Raises:
            ValueError: fewer rollouts than ranks times updates.
        """
        if self.ranks * updates > lengths.numel():
            raise ValueError(
                f"{lengths.numel()} rollouts cannot be split over {self.ranks} ranks and {updates} updates"
            )
        return contiguous_mini_batches(balanced_shards(lengths, self.ranks), updates)
