"""Assignments: the optimizer mini-batch of each rollout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evals.core.lazy_torch import torch
from rlvr.methods.advantages import Groups
from rlvr.methods.parameters import Component, component, hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Rollouts:
    """A rollout batch: rewards [B], group_ids [B] int64, and lengths [B] in tokens."""

    rewards: Tensor
    group_ids: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Assignment(Component, ABC):
    """The base of assignments."""

    kind: ClassVar[str] = "assignment"
    keeps_groups: ClassVar[bool] = False  # whether all rollouts of a prompt stay together
    equal_sizes: ClassVar[bool] = True  # whether all mini-batches are of one size wherever they can be

    @abstractmethod
    def split(self, rollouts: Rollouts, updates: int, generator: torch.Generator) -> list[Tensor]:
        """Split the rollouts 0 .. B-1 into ``updates`` index tensors (int64)."""

    def __call__(
        self, rewards: Tensor, group_ids: Tensor, lengths: Tensor, updates: int, generator: torch.Generator
    ) -> list[Tensor]:
        """Split the rollouts 0 .. B-1 into ``updates`` index tensors (int64); the other tensors are [B]."""
        return self.split(Rollouts(rewards, group_ids, lengths), updates, generator)


@component("random_split")
class RandomSplit(Assignment):
    """A random partition whose parts differ by at most one rollout; a prompt's rollouts scatter."""

    def split(self, rollouts: Rollouts, updates: int, generator: torch.Generator) -> list[Tensor]:
        size = rollouts.rewards.numel()
        _check_updates(updates, size, "rollouts")
        return list(torch.randperm(size, generator=generator).tensor_split(updates))


@component("query_preserved")
class QueryPreserved(Assignment):
    """Groups are dealt to the mini-batches at random, whole; the parts differ by at most one group.

    Query-preserved mini-batches (Cancellation Hypothesis, arXiv 2605.08666). The shared parts of right and wrong
    responses to one prompt push in opposite directions and cancel, provided they meet in the same optimizer step.
    """

    keeps_groups: ClassVar[bool] = True

    def split(self, rollouts: Rollouts, updates: int, generator: torch.Generator) -> list[Tensor]:
        groups, members = torch.unique(rollouts.group_ids, return_inverse=True)
        _check_updates(updates, groups.numel(), "prompts")
        mini_batch_of_group = torch.empty(groups.numel(), dtype=torch.int64)
        for number, part in enumerate(torch.randperm(groups.numel(), generator=generator).tensor_split(updates)):
            mini_batch_of_group[part] = number
        mini_batch_ids = mini_batch_of_group[members.cpu()]
        return [torch.nonzero(mini_batch_ids == number).flatten() for number in range(updates)]


@component("sign_separated")
class SignSeparated(Assignment):
    """Rewarded and punished rollouts never share an optimizer step, so nothing that they have in common cancels.

    A control that is broken on purpose (arXiv 2605.08666). A rollout's sign is that of its reward less its group's
    mean. Mini-batches are shared out in proportion to the two signs, at least one each, and stand in random order;
    rollouts of sign 0 fill up the smaller ones. With one update, or one sign, there is nothing to separate.
    """

    equal_sizes: ClassVar[bool] = False

    def split(self, rollouts: Rollouts, updates: int, generator: torch.Generator) -> list[Tensor]:
        size = rollouts.rewards.numel()
        _check_updates(updates, size, "rollouts")
        signs = Groups.of(rollouts.rewards, rollouts.group_ids, rollouts.lengths).centred.sign().cpu()
        order = torch.randperm(size, generator=generator)
        positive, negative, neutral = (order[signs[order] == sign] for sign in (1, -1, 0))
        if updates == 1 or not positive.numel() or not negative.numel():
            parts = list(torch.cat([positive, negative]).tensor_split(updates))
        else:
            signed = positive.numel() + negative.numel()
            share = min(max(round(updates * positive.numel() / signed), 1), updates - 1)
            parts = [*positive.tensor_split(share), *negative.tensor_split(updates - share)]
        for rollout in neutral:
            sizes = [part.numel() for part in parts]
            smallest = sizes.index(min(sizes))
            parts[smallest] = torch.cat([parts[smallest], rollout[None]])
        return [parts[number] for number in torch.randperm(updates, generator=generator).tolist()]


@component("verl_v1")
class VerlV1(Assignment):
    """Each rank's share stays in prompt order and is sliced: most of a prompt's rollouts share a mini-batch, not all.

    The V1 trainer of verl 0.9.1 and every verl before October 2025 do so (docs/methods/cancellation.md).
    """

    ranks: int = hyper_parameter(8, "data-parallel ranks that the trainer is imitated with", minimum=1)

    def split(self, rollouts: Rollouts, updates: int, generator: torch.Generator) -> list[Tensor]:
        lengths, size = rollouts.lengths, rollouts.lengths.numel()
        if self.ranks * updates > size:
            raise ValueError(f"{size} rollouts cannot be split over {self.ranks} ranks and {updates} updates")
        shares = [self._in_order(share, lengths.cpu()) for share in balanced_shares(lengths, self.ranks)]
        # Mini-batch m is the m-th part of every rank's share, as each worker slices its own.
        parts = [share.tensor_split(updates) for share in shares]
        return [torch.cat([part[number] for part in parts]) for number in range(updates)]

    def _in_order(self, share: Tensor, lengths: Tensor) -> Tensor:
        """Return the rollouts of a rank's share in the order that they are sliced in."""
        return share


@component("length_sorted")
class LengthSorted(VerlV1):
    """Each rank's share is sorted by length, short responses at both ends, and sliced: mini-batches differ in length.

    verl's V0 trainer of 0.9.1 does so since October 2025 (docs/methods/cancellation.md). Where wrong answers are longer
    it separates rewards too, and it scatters a prompt's rollouts.
    """

    def _in_order(self, share: Tensor, lengths: Tensor) -> Tensor:
        order = share[lengths[share].argsort(stable=True)]
        return torch.cat([order[::2], order[1::2].flip(0)])


def mini_batch_ids(mini_batches: Sequence[Tensor], rollouts: int) -> Tensor:
    """Number the mini-batch that each rollout belongs to: [B] int64; -1 for none."""
    ids = torch.full((rollouts,), -1)
    for number, indices in enumerate(mini_batches):
        ids[indices] = number
    return ids


def balanced_shares(lengths: Tensor, ranks: int) -> list[Tensor]:
    """Deal rollouts to ranks as verl does: indices of each, ascending; equal numbers and nearly equal total lengths.

    Rollouts are dealt from the longest down, to and fro over the ranks. verl solves the same partition with
    Karmarkar and Karp's algorithm; the shares are as even for batches of this kind.
    """
    order = lengths.cpu().argsort(descending=True, stable=True)
    turns = torch.arange(ranks).repeat(-(-order.numel() // ranks))[: order.numel()]
    rounds = torch.arange(order.numel()) // ranks
    rank_of = torch.where(rounds % 2 == 0, turns, ranks - 1 - turns)
    return [order[rank_of == rank].sort().values for rank in range(ranks)]


def _check_updates(updates: int, available: int, unit: str) -> None:
    if not 1 <= updates <= available:
        raise ValueError(f"{available} {unit} cannot be split into {updates} mini-batches")
