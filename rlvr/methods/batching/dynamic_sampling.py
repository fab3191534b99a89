"""DAPO's dynamic sampling (arXiv 2503.14476): sample on until the batch is made of prompts with mixed outcomes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.methods.batching.reward_balanced import whole_groups_of
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.seams import Selection


@dataclass(frozen=True)
class DynamicSampling:
    """Keeps prompts whose rollouts are neither all right nor all wrong, the first ones that fill the batch.

    Rewards are those before any shaping, as in the authors' recipe. Each round samples another batch of prompts, where
    the recipe samples three times the batch at once. After ``max_rounds`` rounds, where the recipe stops the training,
    the first of the other prompts fill the batch up; their advantages are 0.
    """

    max_rounds: int = hyper_parameter(10, "rounds of sampling after which the batch is filled up", minimum=1)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(
        self,
        rewards: Tensor,
        group_ids: Tensor,
        target_size: int,
        whole_groups: bool,
        rounds_sampled: int,
        generator: torch.Generator,
    ) -> Selection | None:
        """The selection, or None for "sample more"; see :class:`rlvr.methods.seams.BatchSelection`.

        Groups are always kept whole.

        Raises:
            ValueError: groups of unequal sizes, or of a size that does not divide ``target_size``; or the buffer is
                still smaller than ``target_size`` after the last round.
        """
        groups = whole_groups_of(group_ids.cpu(), target_size)
        wanted = target_size // groups.shape[1]
        if len(groups) < wanted:
            if rounds_sampled >= self.max_rounds:
                raise ValueError(f"{rewards.numel()} rollouts after {rounds_sampled} rounds cannot fill {target_size}")
            return None
        of_group = rewards.cpu()[groups]
        mixed = of_group.amax(dim=1) > of_group.amin(dim=1)
        if int(mixed.sum()) < wanted and rounds_sampled < self.max_rounds:
            return None
        preferred = torch.cat([mixed.nonzero()[:, 0], (~mixed).nonzero()[:, 0]])[:wanted]
        indices = groups[preferred].flatten().sort().values
        right = int((rewards.cpu()[indices] > 0).sum())
        return Selection(indices, min(right, target_size - right) / target_size, 1.0 - target_size / rewards.numel())
