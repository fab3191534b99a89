"""Query-preserved mini-batches (Cancellation Hypothesis, arXiv 2605.08666): a prompt's rollouts stay together.

The shared parts of right and wrong responses to one prompt push in opposite directions and cancel, provided they meet
in the same optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters


@dataclass(frozen=True)
class QueryPreserved:
    """Groups are dealt to the mini-batches at random, whole; the parts differ by at most one group."""

    keeps_groups: ClassVar[bool] = True
    equal_sizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(
        self, rewards: Tensor, group_ids: Tensor, lengths: Tensor, updates: int, generator: torch.Generator
    ) -> list[Tensor]:
        """``updates`` index tensors of the rollouts; only ``group_ids`` [B] plays a part.

        Raises:
            ValueError: fewer groups than updates.
        """
        groups, members = torch.unique(group_ids, return_inverse=True)
        if not 1 <= updates <= groups.numel():
            raise ValueError(f"{groups.numel()} prompts cannot be split into {updates} mini-batches")
        mini_batch_of_group = torch.empty(groups.numel(), dtype=torch.int64)
        for number, part in enumerate(torch.randperm(groups.numel(), generator=generator).tensor_split(updates)):
            mini_batch_of_group[part] = number
        mini_batch_ids = mini_batch_of_group[members.cpu()]
        return [torch.nonzero(mini_batch_ids == number).flatten() for number in range(updates)]
