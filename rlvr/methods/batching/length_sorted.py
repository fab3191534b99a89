"""Mini-batches of one length class: what verl's V0 trainer makes of a batch that it balances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.batching.ranks import balanced_shards, contiguous_mini_batches, ranks_field
from rlvr.methods.hyper_parameter import check_hyper_parameters


@dataclass(frozen=True)
class LengthSorted:
    """Each rank's share is sorted by length, short responses at both ends, and sliced: mini-batches differ in length.

    verl's V0 trainer of 0.9.1 does so since October 2025 (docs/methods/cancellation.md). Where wrong answers are longer
    it separates rewards too, and it scatters a prompt's rollouts.
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
        shards = [_short_ends(shard, lengths.cpu()) for shard in balanced_shards(lengths, self.ranks)]
        return contiguous_mini_batches(shards, updates)


def _short_ends(shard: Tensor, lengths: Tensor) -> Tensor:
    """The rollouts of a shard with the short ones at both ends and the long ones in the middle."""
    order = shard[lengths[shard].argsort(stable=True)]
    return torch.cat([order[::2], order[1::2].flip(0)])
