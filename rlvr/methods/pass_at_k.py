"""Advantages that train for one success among several attempts at a problem."""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

from evals.core.errors import InvalidInput
from evals.core.lazy_torch import torch
from rlvr.methods.advantages import Advantage, Groups
from rlvr.methods.parameters import component, hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor


@component("best_of_group")
class BestOfGroup(Advantage):
    """A_i = (largest R - second largest R) / (std_j R_j + epsilon) of the group's best rollout, 0 of every other.

    Policy gradient for pass@k with k the size of the group (arXiv 2503.19595). With rewards of 0 and 1 a group trains
    only if exactly one of its rollouts is right. A group of one has advantage 0.
    """

    epsilon: float = hyper_parameter(1e-6, "added to the standard deviation of the rewards", above=0.0)

    def of(self, groups: Groups) -> Tensor:
        advantages = torch.zeros_like(groups.rewards)
        for rows in _rows_of_groups(groups):
            if len(rows) > 1:
                (best, second), (winner, _) = groups.rewards[rows].topk(2)
                advantages[rows[winner]] = (best - second) / (groups.deviations[rows[winner]] + self.epsilon)
        return advantages


@component("pkpo")
class PKPO(Advantage):
    """A_i = n / C(n, k) sum over the subsets I of k rollouts with i of (max over I of R - max over I without i of R).

    Pass@k policy optimization (arXiv 2505.15201, its estimator with the baseline of k - 1 others), times n, because an
    engine takes the mean over rollouts where the paper has the sum: an unbiased gradient of the expected largest reward
    of k attempts, which with rewards of 0 and 1 is pass@k. Only the subsets in which i has the largest reward count.
    A group that has lost rollouts and has fewer than k has advantage 0.
    """

    k: int = hyper_parameter(4, "attempts of which one has to succeed, at most the rollouts of a prompt", minimum=2)

    def of(self, groups: Groups) -> Tensor:
        if (largest := int(groups.sizes.max())) < self.k:
            raise InvalidInput("method", "advantage.k", f"is {self.k}", f"at most the rollouts of a prompt, {largest}")
        advantages = torch.zeros_like(groups.rewards)
        for rows in _rows_of_groups(groups):
            size = len(rows)
            if size < self.k:
                continue
            order = groups.rewards[rows].argsort(stable=True)
            ascending = groups.rewards[rows[order]]
            # Of the subsets with their largest reward at i, C(j, k - 2) have their second largest at j.
            counts = torch.tensor([comb(j, self.k - 2) for j in range(size)]).to(ascending)
            sums = ascending * (counts.cumsum(0) - counts) - ((counts * ascending).cumsum(0) - counts * ascending)
            advantages[rows[order]] = sums * (size / comb(size, self.k))
        return advantages


def _rows_of_groups(groups: Groups) -> list[Tensor]:
    """List the rollouts of every group."""
    return [(groups.members == number).nonzero()[:, 0] for number in groups.members.unique()]
