"""Reward shaping: a change of the rewards before they become advantages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rlvr.methods.parameters import Component, component, hyper_parameter


@dataclass(frozen=True)
class RewardShaping(Component, ABC):
    """The base of reward shapings. Only the advantage sees their result; selection and metrics see the rewards."""

    kind: ClassVar[str] = "reward_shaping"

    @abstractmethod
    def __call__(self, rewards: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Shape rewards [B] of responses of lengths [B]; ``longest`` is the length limit. Lengths are in tokens."""


@component("overlong")
class Overlong(RewardShaping):
    """R + min(0, -(length - (longest - buffer)) / buffer) penalty: 0 up to the buffer, then falling to -penalty.

    DAPO's soft overlong punishment (arXiv 2503.14476). Groups of equal correctness get advantages of their own from
    it, of any size, because they are divided by a small standard deviation.
    """

    buffer: float = hyper_parameter(
        0.2, "part of the longest response that the penalty rises over", above=0.0, maximum=1.0
    )
    penalty: float = hyper_parameter(1.0, "taken from the reward of the longest response", minimum=0.0)

    def __call__(self, rewards: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Shape rewards [B] of responses of lengths [B]; ``longest`` is the length limit. Lengths are in tokens."""
        buffer = self.buffer * longest
        excess = (lengths.to(rewards) - (longest - buffer)).clamp(min=0.0)
        return rewards - self.penalty * excess / buffer
