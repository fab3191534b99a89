"""RLOO, REINFORCE leave-one-out (arXiv 2402.14740): a reward less the mean of the group's others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.methods.advantages.groups import centred_rewards, group_sums
from rlvr.methods.hyper_parameter import check_hyper_parameters


@dataclass(frozen=True)
class RLOO:
    """A_i = R_i - mean_(j != i) R_j = n / (n - 1) (R_i - mean_j R_j); 0 in a group of one, which has no others."""

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
        """Advantages [B], in the type of ``rewards`` [B]; ``group_ids`` is [B] int64; ``lengths`` plays no part."""
        _, sizes = group_sums(rewards, group_ids)
        factors = torch.where(sizes > 1, sizes / (sizes - 1).clamp(min=1), 0.0)
        return (factors * centred_rewards(rewards, group_ids)).to(rewards.dtype)
