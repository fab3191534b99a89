"""GRPO's advantage with one of its signs switched off: positive-only and negative-only training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rlvr.methods.advantages.grpo import GRPO
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter


@dataclass(frozen=True)
class OneSided:
    """GRPO's A_i where it has the given sign, 0 elsewhere.

    The other responses stay in the batch and in its normaliser, so that a token of the remaining sign gets exactly the
    gradient that it has in joint training.
    """

    sign: Literal["positive", "negative"] = hyper_parameter("positive", "advantages that are kept")
    epsilon: float = hyper_parameter(1e-6, "added to the standard deviation of the rewards", above=0.0)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
        """Advantages [B], in the type of ``rewards`` [B]; ``group_ids`` is [B] int64; ``lengths`` plays no part."""
        advantages = GRPO(self.epsilon)(rewards, group_ids, lengths)
        return advantages.clamp(min=0.0) if self.sign == "positive" else advantages.clamp(max=0.0)
