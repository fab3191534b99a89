"""Mini-batches for the comparison with verl: ours has rubbish at padded positions, verl's copy has zeros there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

SPREADS = [0.0, 3e-4, 0.3, 3.0, 50.0]
"""Standard deviations of the log-ratio: none, GSPO's clip range, PPO's, beyond both, far outside every limit."""


@dataclass(frozen=True)
class MiniBatch:
    """B responses of up to T tokens: log_probs, old_log_probs and advantages [B, T], response_mask [B, T] bool."""

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    response_mask: Tensor
    group_ids: Tensor

    def rows(self, indices: Tensor) -> MiniBatch:
        """Some of the responses."""
        return MiniBatch(*(getattr(self, name)[indices] for name in self.__dataclass_fields__))

    def without_rubbish(self) -> MiniBatch:
        """The same with zeros at padded positions, as verl needs it."""
        return self.with_floats(lambda values: values.masked_fill(~self.response_mask, 0.0))

    def with_floats(self, change: Callable[[Tensor], Tensor]) -> MiniBatch:
        """The same with its numbers changed."""
        log_probs, old_log_probs, advantages = map(change, (self.log_probs, self.old_log_probs, self.advantages))
        return MiniBatch(log_probs, old_log_probs, advantages, self.response_mask, self.group_ids)

    def within(self, limit: float) -> MiniBatch:
        """The same with log-ratios of at most ``limit`` either way."""
        ratios = (self.log_probs - self.old_log_probs).clamp(-limit, limit)
        return MiniBatch(
            self.old_log_probs + ratios, self.old_log_probs, self.advantages, self.response_mask, self.group_ids
        )


@dataclass(frozen=True)
class Drawing:
    """What hypothesis chooses: a seed, the spread of the log-ratios, lengths, rewards, whether tokens are weighted."""

    seed: int
    spread: float
    lengths: list[int]
    rewards: list[float]
    weighted: bool

    def mini_batch(self, weighted: bool = True) -> MiniBatch:
        """Groups of four with GRPO's advantages, times token weights if those are drawn and ``weighted`` allows."""
        generator = torch.Generator().manual_seed(self.seed)
        batch, longest = len(self.lengths), max(*self.lengths, 1)
        mask = torch.arange(longest) < torch.tensor(self.lengths).unsqueeze(1)
        old = -4.0 * torch.rand(batch, longest, generator=generator, dtype=torch.float64) - 0.01
        new = old + self.spread * torch.randn(batch, longest, generator=generator, dtype=torch.float64)
        groups = torch.tensor(self.rewards, dtype=torch.float64).view(-1, 4)
        standardised = (groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-6)
        advantages = standardised.view(batch, 1).repeat(1, longest)
        weights = 0.8 + 0.4 * torch.rand(batch, longest, generator=generator, dtype=torch.float64)
        if weighted and self.weighted:
            advantages = advantages * weights
        for tensor, rubbish in ((new, torch.nan), (old, torch.inf), (advantages, -torch.inf)):
            tensor[~mask] = rubbish
        return MiniBatch(new, old, advantages, mask, torch.arange(batch) // 4)


drawings = st.builds(
    Drawing,
    seed=st.integers(0, 100_000),
    spread=st.sampled_from(SPREADS),
    lengths=st.lists(st.integers(0, 9), min_size=8, max_size=8).filter(any),
    rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8),
    weighted=st.booleans(),
)
"""Ragged lengths, empty and single-token responses; groups all right, all wrong and mixed."""

EXTREME = Drawing(0, 50.0, [0, 1, 9, 9, 4, 1, 0, 9], [1.0, 0.0, 0.0, 1.0] * 2, True)
UNIFORM = Drawing(1, 0.3, [3, 1, 9, 2, 5, 5, 7, 9], [1.0] * 4 + [0.0] * 4, False)
MIXED = Drawing(2, 0.3, [8, 1, 9, 2, 5, 5, 7, 9], [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0], True)
