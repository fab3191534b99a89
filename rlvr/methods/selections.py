"""Selections: the rollouts, of all that were sampled so far, that make up the rollout batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.parameters import Component, hyper_parameter


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


@dataclass(frozen=True)
class BatchSelection(Component, ABC):
    """The base of batch selections."""

    kind: ClassVar[str] = "selection"

    @abstractmethod
    def __call__(
        self,
        rewards: Tensor,
        group_ids: Tensor,
        target_size: int,
        whole_groups: bool,
        rounds_sampled: int,
        generator: torch.Generator,
    ) -> Selection | None:
        """Select the batch, or return None for "not yet: sample more".

        Args:
            rewards: [buffer], before any shaping.
            group_ids: [buffer].
            target_size: number of rollouts to choose.
            whole_groups: whether a group may not be parted.
            rounds_sampled: at least 1.
            generator: of random numbers on the CPU.

        Raises:
            ValueError: whole groups are of unequal sizes, or of a size that does not divide ``target_size``; or the
                buffer is still smaller than ``target_size`` after the last round.
        """


@dataclass(frozen=True)
class DynamicSampling(BatchSelection):
    """Keeps prompts whose rollouts are neither all right nor all wrong, the first ones that fill the batch.

    DAPO's dynamic sampling (arXiv 2503.14476). Groups are always kept whole. Each round samples another batch of
    prompts, where the authors' recipe samples three times the batch at once. After ``max_rounds`` rounds, where the
    recipe stops the training, the first of the other prompts fill the batch up; their advantages are 0.
    """

    name: ClassVar[str] = "dynamic_sampling"

    max_rounds: int = hyper_parameter(10, "rounds of sampling after which the batch is filled up", minimum=1)

    def __call__(
        self,
        rewards: Tensor,
        group_ids: Tensor,
        target_size: int,
        whole_groups: bool,
        rounds_sampled: int,
        generator: torch.Generator,
    ) -> Selection | None:
        """Select whole groups of mixed outcomes; see :class:`BatchSelection`."""
        groups = _whole_groups(group_ids.cpu(), target_size)
        wanted = target_size // groups.shape[1]
        if len(groups) < wanted:
            return _too_few(rewards, target_size, rounds_sampled, self.max_rounds)
        of_group = rewards.cpu()[groups]
        mixed = of_group.amax(dim=1) > of_group.amin(dim=1)
        if int(mixed.sum()) < wanted and rounds_sampled < self.max_rounds:
            return None
        preferred = torch.cat([mixed.nonzero()[:, 0], (~mixed).nonzero()[:, 0]])[:wanted]
        return _selection(groups[preferred], rewards)


@dataclass(frozen=True)
class RewardBalanced(BatchSelection):
    """Picks the most balanced batch from the buffer and accepts it once min(N+, N-) / size reaches alpha.

    Reward-balanced batches (Cancellation Hypothesis, arXiv 2605.08666). N+ counts rollouts with a reward above 0, N-
    the others. The pick starts from a random subset of the buffer and exchanges, as long as that improves the balance,
    a unit of the majority for a spare one of the minority: units are whole groups if these have to stay together,
    single rollouts otherwise. For single rollouts, and whenever half and half is out of reach, the result is the most
    balanced subset there is; otherwise it is at most half a group's size off. After ``max_rounds`` rounds of sampling
    it is taken as it is.
    """

    name: ClassVar[str] = "reward_balanced"

    alpha: float = hyper_parameter(
        0.3, "smallest part of the batch that the rarer of right and wrong may be", minimum=0.0, maximum=0.5
    )
    max_rounds: int = hyper_parameter(4, "rounds of sampling after which the best batch is taken", minimum=1)

    def __call__(
        self,
        rewards: Tensor,
        group_ids: Tensor,
        target_size: int,
        whole_groups: bool,
        rounds_sampled: int,
        generator: torch.Generator,
    ) -> Selection | None:
        """Select the most balanced rollouts; see :class:`BatchSelection`."""
        correct = (rewards > 0).long().cpu()
        if len(correct) < target_size:
            return _too_few(rewards, target_size, rounds_sampled, self.max_rounds)
        units = _whole_groups(group_ids.cpu(), target_size) if whole_groups else torch.arange(len(correct))[:, None]
        kept = _most_balanced(correct[units].sum(dim=1), units.shape[1], target_size // units.shape[1], generator)
        found = _selection(units[kept], rewards)
        return None if found.balance < self.alpha and rounds_sampled < self.max_rounds else found


def _selection(units: Tensor, rewards: Tensor) -> Selection:
    """Describe the choice of the rollouts in ``units`` [units, size]."""
    indices = units.flatten().sort().values
    size, right = indices.numel(), int((rewards.cpu()[indices] > 0).sum())
    return Selection(indices, min(right, size - right) / size, 1.0 - size / rewards.numel())


def _too_few(rewards: Tensor, target_size: int, rounds_sampled: int, max_rounds: int) -> None:
    """Ask for another round, or raise ValueError after the last one."""
    if rounds_sampled >= max_rounds:
        raise ValueError(f"{rewards.numel()} rollouts after {rounds_sampled} rounds cannot fill {target_size}")


def _whole_groups(group_ids: Tensor, target_size: int) -> Tensor:
    """Return rollout indices [groups, group size] of group_ids [buffer], by ascending group id.

    Raises:
        ValueError: groups of unequal sizes, or of a size that does not divide ``target_size``.
    """
    sizes = torch.unique(group_ids, return_counts=True)[1]
    if int(sizes.min()) != int(sizes.max()) or target_size % int(sizes[0]):
        found = f"{int(sizes.min())} to {int(sizes.max())}"
        raise ValueError(f"whole groups need one size that divides {target_size}; the buffer's have {found} rollouts")
    return torch.argsort(group_ids, stable=True).view(sizes.numel(), -1)


def _most_balanced(correct: Tensor, unit_size: int, wanted: int, generator: torch.Generator) -> Tensor:
    """Return indices of ``wanted`` units whose correct rollouts come nearest to half of all theirs.

    Units with the same number of correct rollouts are interchangeable, so the exchange works on how many units of each
    number are kept and spare, and the units themselves are drawn in the end, first come first kept in random order.

    Args:
        correct: [units] correct rollouts of each unit, 0 .. unit_size.
        unit_size: rollouts in a unit.
        wanted: number of units to keep, at most all.
        generator: decides which of the interchangeable units are kept.
    """
    order = torch.randperm(correct.numel(), generator=generator)
    shuffled = correct[order]
    kept = torch.bincount(shuffled[:wanted], minlength=unit_size + 1).tolist()
    spare = torch.bincount(shuffled[wanted:], minlength=unit_size + 1).tolist()
    _exchange(kept, spare, wanted * unit_size / 2)
    chosen = [order[shuffled == number][:count] for number, count in enumerate(kept)]
    return torch.cat(chosen)


def _exchange(kept: list[int], spare: list[int], half: float) -> None:
    """Swap units between ``kept`` and ``spare`` (counts by correct rollouts) in place until no swap nears ``half``."""
    while True:
        surplus = sum(number * count for number, count in enumerate(kept)) - half
        swaps = [
            (abs(surplus - (leaving - entering)), leaving, entering)
            for leaving, leaving_count in enumerate(kept)
            for entering, entering_count in enumerate(spare)
            if leaving_count and entering_count
        ]
        remaining, leaving, entering = min(swaps, default=(abs(surplus), 0, 0))
        if remaining >= abs(surplus):
            return
        times = max(1, min(kept[leaving], spare[entering], int(surplus / (leaving - entering))))
        kept[leaving] -= times
        spare[leaving] += times
        kept[entering] += times
        spare[entering] -= times
