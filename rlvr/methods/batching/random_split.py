"""Rollouts are dealt to the optimizer mini-batches at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters


@dataclass(frozen=True)
class RandomSplit:
    """A random partition whose parts differ by at most one rollout; a prompt's rollouts scatter."""

    keeps_groups: ClassVar[bool] = False
    equal_sizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(
        self, rewards: Tensor, group_ids: Tensor, lengths: Tensor, updates: int, generator: torch.Generator
    ) -> list[Tensor]:
        """``updates`` index tensors of the rollouts; group_ids [B] gives their number, the rest plays no part.

        Raises:
            ValueError: fewer rollouts than updates.
        """
        size = group_ids.numel()
        if not 1 <= updates <= size:
            raise ValueError(f"{size} rollouts cannot be split into {updates} mini-batches")
        return list(torch.randperm(size, generator=generator).tensor_split(updates))
