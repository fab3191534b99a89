"""Random ragged rollout batches for the tests of the methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor


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
        return LossInputs(
            self.log_probs.to(dtype),
            self.old_log_probs.to(dtype),
            self.advantages.to(dtype),
            self.response_mask,
            self.group_ids,
        )


def _draw(seed: int, spread: float = 0.3, *, batch: int = 8, longest: int = 7) -> LossInputs:
    """Draw float64 inputs: lengths 0 and 1 and ``longest`` always occur, log-ratios have deviation ``spread``."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (batch,), generator=generator)
    lengths[:3] = torch.tensor([0, 1, longest])
    lengths = lengths[torch.randperm(batch, generator=generator)]
    mask = torch.arange(longest) < lengths.unsqueeze(1)
    old = -torch.rand(batch, longest, generator=generator, dtype=torch.float64) * 4 - 0.01
    new = old + spread * torch.randn(batch, longest, generator=generator, dtype=torch.float64)
    advantages = torch.randn(batch, 1, generator=generator, dtype=torch.float64).repeat(1, longest)
    advantages[0] = 0.0
    for tensor, garbage in ((old, torch.inf), (new, torch.nan), (advantages, -torch.inf)):
        tensor[~mask] = garbage
    return LossInputs(new, old, advantages, mask, torch.arange(batch) // 4)


@pytest.fixture(scope="session")
def draw_loss_inputs() -> Callable[..., LossInputs]:
    """The function that draws loss inputs from a seed."""
    return _draw
