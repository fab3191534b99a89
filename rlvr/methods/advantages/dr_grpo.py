"""Dr.GRPO's advantage (arXiv 2503.20783): a reward less its group's mean, not divided by anything."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlvr.methods.advantages.groups import centred_rewards
from rlvr.methods.hyper_parameter import check_hyper_parameters


@dataclass(frozen=True)
class DrGRPO:
    """A_i = R_i - mean_j R_j over the rollouts j of the same prompt; a group of one keeps its reward."""

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
        """Advantages [B], in the type of ``rewards`` [B]; ``group_ids`` is [B] int64; ``lengths`` plays no part."""
        return centred_rewards(rewards, group_ids).to(rewards.dtype)
