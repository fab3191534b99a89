"""The seams of a method: what an engine calls, and what every piece has to be.

Each piece is a frozen dataclass of its hyper-parameters and a pure function when called. None knows which engine calls
it. Arguments that a piece has no use for are part of its seam all the same, so that an engine calls every piece alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation
from rlvr.methods.rollout_batch import RolloutBatch

Coupling = Literal["rollout", "group", "mini_batch"]
"""The unit that micro-batches may not part, so that their losses add up to the mini-batch's."""


class RewardShaping(Protocol):
    """What is done to rewards before they become advantages; selection and metrics see them as they were."""

    def __call__(self, rewards: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Shaped rewards [B] of rewards [B] and lengths [B] in tokens; ``longest`` is the length limit in tokens."""
        ...


class Advantage(Protocol):
    """From rewards to advantages, before any rollout is dropped."""

    def __call__(self, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
        """Advantages [B] of rewards [B], group_ids [B] int64 and lengths [B] in tokens."""
        ...


class TokenWeights(Protocol):
    """How much each token's advantage counts, computed once per rollout batch."""

    @property
    def needs_hidden_states(self) -> bool:
        """Whether the batch has to hold the hidden states."""
        ...

    @property
    def sketch_dimensions(self) -> int | None:
        """Dimensions of the random projection of the hidden states that it takes in their place; None for none."""
        ...

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T] >= 0, zero at padding, and metrics of the rollout batch."""
        ...


class PolicyLoss(Protocol):
    """The token loss of the current policy against the one that sampled."""

    @property
    def aggregation(self) -> Aggregation:
        """How an engine has to aggregate the token loss."""
        ...

    @property
    def aggregation_constant(self) -> float | None:
        """The normaliser's constant length."""
        ...

    @property
    def coupling(self) -> Coupling:
        """Which rollouts a micro-batch may not part."""
        ...

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        group_ids: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Token loss [B, T] and metrics [B, T], 0 at padding; an engine averages metrics over the mini-batch's tokens.

        log_probs, old_log_probs and advantages (times the token weights) are [B, T], response_mask is [B, T] bool,
        group_ids is [B]; generator is a CPU generator of the optimizer step's own. Only log_probs carries a gradient.
        """
        ...


class Assignment(Protocol):
    """Which rollout goes to which optimizer mini-batch."""

    @property
    def keeps_groups(self) -> bool:
        """Whether all rollouts of a prompt stay together."""
        ...

    @property
    def equal_sizes(self) -> bool:
        """Whether all mini-batches are of one size wherever they can be."""
        ...

    def __call__(
        self, rewards: Tensor, group_ids: Tensor, lengths: Tensor, updates: int, generator: torch.Generator
    ) -> list[Tensor]:
        """``updates`` index tensors (int64) that part the rollouts 0 .. B-1; rewards, group_ids, lengths are [B]."""
        ...


@dataclass(frozen=True)
class Selection:
    """Rollouts chosen from the buffer.

    Attributes:
        indices: [target_size] int64 into the buffer, ascending.
        balance: min(correct, wrong) / target_size among the chosen, between 0 and 0.5.
        discarded_fraction: part of the buffer that was left out, in [0, 1).
    """

    indices: Tensor
    balance: float
    discarded_fraction: float


class BatchSelection(Protocol):
    """Which of the rollouts sampled so far make up the rollout batch, if it can be made up already."""

    def __call__(
        self,
        rewards: Tensor,
        group_ids: Tensor,
        target_size: int,
        whole_groups: bool,
        rounds_sampled: int,
        generator: torch.Generator,
    ) -> Selection | None:
        """The selection, or None for "not yet: sample more".

        rewards and group_ids are [buffer]; target_size counts rollouts; whole_groups forbids to part a group;
        rounds_sampled is at least 1.
        """
        ...
