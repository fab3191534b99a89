"""Mini-batches of one advantage sign: a control that is broken on purpose (arXiv 2605.08666)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.advantages.groups import centred_rewards
from rlvr.methods.hyper_parameter import check_hyper_parameters


@dataclass(frozen=True)
class SignSeparated:
    """Rewarded and punished rollouts never share an optimizer step, so nothing that they have in common cancels.

    A rollout's sign is that of its reward less its group's mean. Mini-batches are shared out in proportion to the two
    signs, at least one each, and stand in random order; rollouts of sign 0 fill up the smaller ones. With one update,
    or one sign, there is nothing to separate.
    """

    keeps_groups: ClassVar[bool] = False
    equal_sizes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(
        self, rewards: Tensor, group_ids: Tensor, lengths: Tensor, updates: int, generator: torch.Generator
    ) -> list[Tensor]:
        """``updates`` index tensors of the rollouts; ``rewards`` and ``group_ids`` [B] play a part.

        Raises:
            ValueError: fewer rollouts than updates.
        """
        size = rewards.numel()
        if not 1 <= updates <= size:
            raise ValueError(f"{size} rollouts cannot be split into {updates} mini-batches")
        signs = centred_rewards(rewards, group_ids).sign().cpu()
        order = torch.randperm(size, generator=generator)
        positive, negative, neutral = (order[signs[order] == sign] for sign in (1, -1, 0))
        parts = _share_out(positive, negative, updates)
        parts = _fill_up(parts, neutral)
        return [parts[number] for number in torch.randperm(updates, generator=generator).tolist()]


def _share_out(positive: Tensor, negative: Tensor, updates: int) -> list[Tensor]:
    """``updates`` parts of one sign each; a sign never has more parts than rollouts, so parts may be empty."""
    signed = positive.numel() + negative.numel()
    if updates == 1 or not positive.numel() or not negative.numel():
        return list(torch.cat([positive, negative]).tensor_split(updates))
    share = min(max(round(updates * positive.numel() / signed), 1), updates - 1)
    return [*positive.tensor_split(share), *negative.tensor_split(updates - share)]


def _fill_up(parts: list[Tensor], neutral: Tensor) -> list[Tensor]:
    """Deal ``neutral`` rollouts one by one to whichever part is smallest."""
    sizes = [part.numel() for part in parts]
    extra: list[list[int]] = [[] for _ in parts]
    for rollout in neutral.tolist():
        smallest = sizes.index(min(sizes))
        sizes[smallest] += 1
        extra[smallest].append(rollout)
    return [torch.cat([part, torch.tensor(more, dtype=torch.int64)]) for part, more in zip(parts, extra, strict=True)]
