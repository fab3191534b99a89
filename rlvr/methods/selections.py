"""Selections: the rollouts, of all that were sampled so far, that make up the rollout batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, ClassVar

from evals.core.lazy_torch import torch
from rlvr.methods.parameters import Component, component, hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class BatchSelection(Component, ABC):
    """The base of batch selections, which choose among units: whole groups, or else single rollouts."""

    kind: ClassVar[str] = "selection"
    always_whole_groups: ClassVar[bool] = False

    max_rounds: int = hyper_parameter(4, "rounds of sampling after which the best batch is taken", minimum=1)

    @abstractmethod
    def choose(self, rewards: Tensor, wanted: int, generator: torch.Generator) -> tuple[Tensor, bool]:
        """Choose ``wanted`` of the units of rewards [units, size]; and whether the choice is good enough."""

    def __call__(
        self,
        rewards: Tensor,
        group_ids: Tensor,
        target_size: int,
        whole_groups: bool,
        rounds_sampled: int,
        generator: torch.Generator,
    ) -> Tensor | None:
        """Select rollouts of the buffer, indices [target_size], ascending; None for "not yet: sample more".

        Rewards [buffer] are those before any shaping. With ``whole_groups`` no group of group_ids [buffer] is parted.
        """
        exact, last_round = rewards.cpu(), rounds_sampled >= self.max_rounds
        if len(exact) < target_size:
            if last_round:
                raise ValueError(f"{len(exact)} rollouts after {rounds_sampled} rounds cannot fill {target_size}")
            return None
        units = torch.arange(len(exact))[:, None]
        if whole_groups or self.always_whole_groups:
            sizes = torch.unique(group_ids, return_counts=True)[1]
            smallest, largest = int(sizes.min()), int(sizes.max())
            if smallest != largest or target_size % smallest:
                raise ValueError(
                    f"whole groups need one size that divides {target_size}; the buffer's have {smallest} to {largest} "
                    "rollouts"
                )
            units = torch.argsort(group_ids.cpu(), stable=True).view(sizes.numel(), -1)  # by ascending group id
        chosen, good = self.choose(exact[units], target_size // units.shape[1], generator)
        if not good and not last_round:
            return None
        return units[chosen].flatten().sort().values


class GroupFilter(BatchSelection):
    """The base of selections that keep or drop each whole group whatever the others are."""

    always_whole_groups: ClassVar[bool] = True

    @abstractmethod
    def keeps(self, rewards: Tensor) -> Tensor:
        """Judge the groups of rewards [groups, size] one by one: [groups] bool, true for those to keep."""


@component("dynamic_sampling")
class DynamicSampling(GroupFilter):
    """Keeps prompts whose rollouts are neither all right nor all wrong, the first ones that fill the batch.

    DAPO's dynamic sampling (arXiv 2503.14476). Groups are always kept whole. Each round samples another batch of
    prompts, where the authors' recipe samples three times the batch at once; with verl each prompt that is dropped is
    replaced at once, up to as many prompts. After ``max_rounds`` rounds, where the recipe stops the training, the
    first of the other prompts fill the batch up; their advantages are 0.
    """

    max_rounds: int = hyper_parameter(10, "rounds of sampling after which the batch is filled up", minimum=1)

    def choose(self, rewards: Tensor, wanted: int, generator: torch.Generator) -> tuple[Tensor, bool]:
        mixed = self.keeps(rewards)
        preferred = torch.cat([mixed.nonzero()[:, 0], (~mixed).nonzero()[:, 0]])[:wanted]
        return preferred, int(mixed.sum()) >= wanted

    def keeps(self, rewards: Tensor) -> Tensor:
        return rewards.amax(dim=1) > rewards.amin(dim=1)


@component("reward_balanced")
class RewardBalanced(BatchSelection):
    """Picks the most balanced batch from the buffer and accepts it once min(N+, N-) / size reaches alpha.

    Reward-balanced batches (Cancellation Hypothesis, arXiv 2605.08666). N+ counts rollouts with a reward above 0, N-
    the others. The pick is the most balanced subset of the buffer. It starts from a random one and exchanges, as long
    as that improves the balance, a unit of the majority for a spare one of the minority; where that ends short of the
    best balance, which happens to whole groups only, the rest is searched exactly. After ``max_rounds`` rounds of
    sampling the pick is taken as it is.
    """

    alpha: float = hyper_parameter(0.3, "smallest share of the rarer of right and wrong", minimum=0.0, maximum=0.5)

    def choose(self, rewards: Tensor, wanted: int, generator: torch.Generator) -> tuple[Tensor, bool]:
        """Choose the units whose correct rollouts come nearest to half of all theirs.

        Units with the same number of correct rollouts are interchangeable, so the exchange works on how many of each
        number are kept and spare, and the units themselves are drawn in the end, the first in random order.
        """
        size = rewards.shape[1]
        correct = (rewards > 0).long().sum(dim=1)
        order = torch.randperm(correct.numel(), generator=generator)
        shuffled = correct[order]
        kept = torch.bincount(shuffled[:wanted], minlength=size + 1).tolist()
        spare = torch.bincount(shuffled[wanted:], minlength=size + 1).tolist()
        _exchange(kept, spare, wanted * size / 2)
        if size > 1:  # single rollouts are at the optimum
            kept = _most_balanced(kept, spare, wanted * size)
        chosen = torch.cat([order[shuffled == number][:count] for number, count in enumerate(kept)])
        return chosen, _balance(rewards[chosen]) >= self.alpha


def _balance(rewards: Tensor) -> float:
    """Compute the share of the rarer of right and wrong rollouts."""
    size, right = rewards.numel(), int((rewards > 0).sum())
    return min(right, size - right) / size


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


def _most_balanced(kept: list[int], spare: list[int], rollouts: int) -> list[int]:
    """Return how many units of each number of correct rollouts to keep, so that the most balanced ones are.

    ``kept`` itself if nothing is better, and otherwise counts that differ little from it. All kept units have so many
    ``rollouts``; the best balance has half of them correct.
    """

    def distance(correct: int) -> int:
        return abs(2 * correct - rollouts)

    wanted, reached = sum(kept), distance(sum(number * count for number, count in enumerate(kept)))
    if reached <= rollouts % 2:
        return kept
    # reachable[n][k]: bit s is set if k units of fewer than n correct rollouts each can have s correct ones together.
    reachable = [[1] + [0] * wanted]
    available = [drawn + other for drawn, other in zip(kept, spare, strict=True)]
    for number, count in enumerate(available):
        before = reachable[-1]
        ways = ([before[k - j] << (number * j) for j in range(min(count, k) + 1)] for k in range(wanted + 1))
        reachable.append([reduce(or_, each) for each in ways])
    sums = [correct for correct in range(rollouts + 1) if reachable[-1][wanted] >> correct & 1]
    left = min(sums, key=distance)
    if distance(left) >= reached:
        return kept
    chosen = list(kept)
    for number in reversed(range(len(kept))):
        counts = [
            count
            for count in range(min(available[number], wanted, left // number if number else wanted) + 1)
            if reachable[number][wanted - count] >> (left - number * count) & 1
        ]
        chosen[number] = min((abs(count - kept[number]), count) for count in counts)[1]
        wanted, left = wanted - chosen[number], left - number * chosen[number]
    return chosen
