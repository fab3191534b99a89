"""GPG's advantage (arXiv 2504.02546): centred rewards, larger the fewer rollouts have any reward."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlvr.methods.advantages.groups import centred_rewards
from rlvr.methods.hyper_parameter import check_hyper_parameters


@dataclass(frozen=True)
class GPG:
    """A_i = alpha (R_i - mean_j R_j), alpha = rollouts / rollouts with a reward other than 0.

    As in verl, alpha counts rewards other than 0, so with rewards of +-1 it is 1.
    """

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
        """Advantages [B], in the type of ``rewards`` [B]; ``group_ids`` is [B] int64; ``lengths`` plays no part."""
        alpha = rewards.numel() / max(1, int((rewards != 0).sum()))
        return (alpha * centred_rewards(rewards, group_ids)).to(rewards.dtype)
