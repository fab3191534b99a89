"""DAPO's soft overlong punishment (arXiv 2503.14476): a response pays for running into the length limit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter


@dataclass(frozen=True)
class Overlong:
    """R + min(0, -(length - (longest - buffer)) / buffer) penalty: 0 up to the buffer, then falling to -penalty.

    Groups of equal correctness get advantages of their own from it, of any size, because they are divided by a small
    standard deviation.
    """

    buffer: float = hyper_parameter(
        0.2, "part of the longest response that the penalty rises over", above=0.0, maximum=1.0
    )
    penalty: float = hyper_parameter(1.0, "taken from the reward of the longest response", minimum=0.0)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, rewards: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Shaped rewards [B] of rewards [B] and lengths [B] in tokens; ``longest`` is the length limit in tokens."""
        buffer = self.buffer * longest
        excess = (lengths.to(rewards) - (longest - buffer)).clamp(min=0.0)
        return rewards - self.penalty * excess / buffer
