"""Reward-balanced batches (Cancellation Hypothesis, arXiv 2605.08666): sample until right and wrong can be balanced."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.seams import Selection


@dataclass(frozen=True)
class RewardBalanced:
    """Picks the most balanced batch from the buffer and accepts it once min(N+, N-) / size reaches alpha.

    N+ counts rollouts with a reward above 0, N- the others. The pick starts from a random subset of the buffer and
    exchanges, as long as that improves the balance, a unit of the majority for a spare one of the minority: units are
    whole groups if these have to stay together, single rollouts otherwise. For single rollouts, and whenever half and
    half is out of reach, the result is the most balanced subset there is; otherwise it is at most half a group's size
    off. After ``max_rounds`` rounds of sampling it is taken as it is.
    """

    alpha: float = hyper_parameter(
        0.3, "smallest part of the batch that the rarer of right and wrong may be", minimum=0.0, maximum=0.5
    )
    max_rounds: int = hyper_parameter(4, "rounds of sampling after which the best batch is taken", minimum=1)

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

        Raises:
            ValueError: whole groups of unequal sizes, or of a size that does not divide ``target_size``; or the buffer
                is still smaller than ``target_size`` after the last round.
        """
        correct = (rewards > 0).long().cpu()
        buffered = correct.numel()
        last_round = rounds_sampled >= self.max_rounds
        if buffered < target_size:
            if last_round:
                raise ValueError(f"{buffered} rollouts after {rounds_sampled} rounds cannot fill {target_size}")
            return None
        units = whole_groups_of(group_ids.cpu(), target_size) if whole_groups else torch.arange(buffered).unsqueeze(1)
        kept = _most_balanced(correct[units].sum(dim=1), units.shape[1], target_size // units.shape[1], generator)
        indices = units[kept].flatten().sort().values
        right = int(correct[indices].sum())
        balance = min(right, target_size - right) / target_size
        if balance < self.alpha and not last_round:
            return None
        return Selection(indices, balance, 1.0 - target_size / buffered)


def whole_groups_of(group_ids: Tensor, target_size: int) -> Tensor:
    """Rollout indices [groups, group size] of group_ids [buffer], by ascending group id.

    Raises:
        ValueError: groups of unequal sizes, or of a size that does not divide ``target_size``.
    """
    sizes = torch.unique(group_ids, return_counts=True)[1]
    if int(sizes.min()) != int(sizes.max()) or target_size % int(sizes[0]):
        found = f"{int(sizes.min())} to {int(sizes.max())}"
        raise ValueError(f"whole groups need one size that divides {target_size}; the buffer's have {found} rollouts")
    return torch.argsort(group_ids, stable=True).view(sizes.numel(), -1)


def _most_balanced(correct: Tensor, unit_size: int, wanted: int, generator: torch.Generator) -> Tensor:
    """Indices of ``wanted`` units whose correct rollouts come nearest to half of all theirs.

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
