"""GRPO's group-relative advantage (arXiv 2402.03300): a reward in standard deviations from its group's mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter


@dataclass(frozen=True)
class GRPO:
    """A_i = (R_i - mean_j R_j) / (std_j R_j + epsilon), over the rollouts j of the same prompt.

    The standard deviation has n - 1 in its denominator. A group of one has mean 0 and standard deviation 1 by
    convention (as in verl), so its advantage is its reward over 1 + epsilon. A group of equal rewards has advantage
    exactly 0: rounding in the mean must not hand its tokens a sign.
    """

    epsilon: float = hyper_parameter(1e-6, "added to the standard deviation of the rewards", above=0.0)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
        """Advantages [B], in the type of ``rewards`` [B]; ``group_ids`` is [B] int64; ``lengths`` plays no part."""
        exact = rewards.double()
        groups, members = torch.unique(group_ids, return_inverse=True)
        sizes = torch.zeros(len(groups), dtype=torch.float64, device=rewards.device)
        sizes = sizes.index_add(0, members, torch.ones_like(exact))
        lone = sizes == 1
        means = torch.zeros_like(sizes).index_add(0, members, exact) / sizes
        centred = exact - means.masked_fill(lone, 0.0)[members]
        squares = torch.zeros_like(sizes).index_add(0, members, centred.square())
        deviations = (squares / (sizes - 1).clamp(min=1)).sqrt().masked_fill(lone, 1.0)
        highest = torch.full_like(sizes, -torch.inf).scatter_reduce(0, members, exact, "amax")
        lowest = torch.full_like(sizes, torch.inf).scatter_reduce(0, members, exact, "amin")
        uniform = (highest == lowest) & ~lone
        advantages = centred / (deviations + self.epsilon)[members]
        return advantages.masked_fill(uniform[members], 0.0).to(rewards.dtype)
