"""Random ragged rollout batches for the tests of the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.methods.losses.base import Tokens
from rlvr.methods.rollout_batch import RolloutBatch

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class LossInputs:
    """Arguments of a policy loss: B rollouts padded to T tokens, padding full of values that must not matter."""

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    response_mask: Tensor
    group_ids: Tensor

    def cast(self, dtype: torch.dtype) -> LossInputs:
        """The same values in another floating type."""
        old, advantages = self.old_log_probs.to(dtype), self.advantages.to(dtype)
        return LossInputs(self.log_probs.to(dtype), old, advantages, self.response_mask, self.group_ids)

    def part(self, rows: Any = slice(None), log_probs: Tensor | None = None) -> Five:
        """The five of some rollouts, with other log-probabilities of all rollouts if given."""
        log_probs = self.log_probs if log_probs is None else log_probs
        others = self.old_log_probs[rows], self.advantages[rows], self.response_mask[rows], self.group_ids[rows]
        return log_probs[rows], *others

    def tokens(self, rows: Any = slice(None), log_probs: Tensor | None = None, **given: Any) -> Tokens:
        """The same as a loss sees them, with what is ``given`` besides."""
        return Tokens(*self.part(rows, log_probs), torch.Generator(), **given)


def _draw(
    seed: int,
    spread: float = 0.3,
    *,
    batch: int = 8,
    longest: int = 7,
    lengths: Sequence[int] | None = None,
    rewards: Sequence[float] | None = None,
) -> LossInputs:
    """Draw float64 inputs of groups of four; log-ratios have deviation ``spread``.

    Unless given, ``lengths`` are random with 0, 1 and ``longest`` among them, and advantages, GRPO's of the rewards if
    these are given, are normal with the first one 0.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(2, longest + 1, (batch,), generator=generator)
    drawn[:3] = torch.tensor([0, 1, longest])
    drawn = drawn[torch.randperm(batch, generator=generator)]
    mask = torch.arange(longest) < (drawn if lengths is None else torch.tensor(lengths)).unsqueeze(1)
    old = -torch.rand(batch, longest, generator=generator, dtype=torch.float64) * 4 - 0.01
    new = old + spread * torch.randn(batch, longest, generator=generator, dtype=torch.float64)
    advantages = torch.randn(batch, 1, generator=generator, dtype=torch.float64).repeat(1, longest)
    advantages[0] = 0.0
    if rewards is not None:
        groups = torch.tensor(rewards, dtype=torch.float64).view(-1, 4)
        standardised = (groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-6)
        advantages = standardised.view(batch, 1).repeat(1, longest)
    for tensor, garbage in ((old, torch.inf), (new, torch.nan), (advantages, -torch.inf)):
        tensor[~mask] = garbage
    return LossInputs(new, old, advantages, mask, torch.arange(batch) // 4)


@pytest.fixture(scope="session")
def draw_loss_inputs() -> Callable[..., LossInputs]:
    """The function that draws loss inputs from a seed."""
    return _draw


def rollout_batch(lengths: Sequence[int], generator: torch.Generator, **given: Any) -> RolloutBatch:
    """A float64 batch of rollouts of these lengths, with what is ``given``; padding of log-probabilities is NaN."""
    count, longest = len(lengths), max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    old = -3 * torch.rand(count, longest, generator=generator, dtype=torch.float64)
    content: dict[str, Any] = {
        "advantages": torch.randn(count, generator=generator, dtype=torch.float64),
        "old_log_probs": old.masked_fill(~mask, torch.nan),
        "entropies": torch.zeros(count, longest, dtype=torch.float64),
        "response_mask": mask,
        "mini_batch_ids": torch.zeros(count, dtype=torch.int64),
        "group_ids": torch.arange(count) // 4,
        "token_ids": torch.zeros(count, longest, dtype=torch.int64),
        "temperature": 1.0,
        "generator": torch.Generator().manual_seed(generator.initial_seed()),
    }
    return RolloutBatch(**content | given)


def drawn_lengths(count: int, longest: int, generator: torch.Generator) -> list[int]:
    """Lengths with 0, 1 and ``longest`` among them."""
    return [0, 1, longest, *torch.randint(1, longest + 1, (count - 3,), generator=generator).tolist()]
