"""Reward shaping, a change of the rewards beforehand, and advantages: from rewards to the value of each rollout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.errors import InvalidInput
from evals.core.lazy_torch import torch
from rlvr.methods.parameters import Component, component, hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """Rollouts with the statistics of their groups (the rollouts of one prompt); all [B], in float64."""

    rewards: Tensor
    sizes: Tensor  # of the rollout's group
    centred: Tensor
    """The reward less its group's mean, which counts as 0 in a group of one; exactly 0 in a larger group of equal
    rewards, because rounding in a mean must not hand the tokens of such a group a sign."""
    deviations: Tensor
    """The standard deviation of its group, with n - 1 in the denominator; 1 in a group of one, as in verl."""
    lengths: Tensor  # in tokens, of their own type
    members: Tensor  # int64, the group's number, from 0

    def sums(self, values: Tensor) -> Tensor:
        """Sum values [B] over each rollout's group."""
        totals = torch.zeros(int(self.members.max()) + 1, dtype=values.dtype, device=values.device)
        return totals.index_add(0, self.members, values)[self.members]

    @classmethod
    def of(cls, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Groups:
        """Compute the statistics of rewards [B] in the groups of group_ids [B]."""
        exact = rewards.double()
        groups, members = torch.unique(group_ids, return_inverse=True)
        zeros = torch.zeros(len(groups), dtype=torch.float64, device=rewards.device)
        sizes = zeros.index_add(0, members, torch.ones_like(exact))
        lone = sizes == 1
        means = zeros.index_add(0, members, exact) / sizes
        centred = exact - means.masked_fill(lone, 0.0)[members]
        highest = (zeros - torch.inf).scatter_reduce(0, members, exact, "amax")
        lowest = (zeros + torch.inf).scatter_reduce(0, members, exact, "amin")
        centred = centred.masked_fill(((highest == lowest) & ~lone)[members], 0.0)
        squares = zeros.index_add(0, members, centred.square())
        deviations = (squares / (sizes - 1).clamp(min=1)).sqrt().masked_fill(lone, 1.0)
        return cls(exact, sizes[members], centred, deviations[members], lengths, members)


@dataclass(frozen=True)
class RewardShaping(Component, ABC):
    """The base of reward shapings. Only the advantage sees their result; selection and metrics see the rewards."""

    kind: ClassVar[str] = "reward_shaping"
    replaces_rewards: ClassVar[bool] = False  # what was taken from a reward before is lost, or changes its sign

    @abstractmethod
    def __call__(
        self, rewards: Tensor, lengths: Tensor, longest: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """Shape rewards [B] of responses of lengths [B]; ``longest`` is the length limit. Lengths are in tokens.

        ``generator`` is that of the step's rewards alone.
        """


@component("overlong")
class Overlong(RewardShaping):
    """R + min(0, -(length - (longest - buffer)) / buffer) penalty: 0 up to the buffer, then falling to -penalty.

    DAPO's soft overlong punishment (arXiv 2503.14476). Groups of equal correctness get advantages of their own from
    it, of any size, because they are divided by a small standard deviation.
    """

    buffer: float = hyper_parameter(0.2, "part of the length limit that the penalty rises over", above=0.0, maximum=1.0)
    penalty: float = hyper_parameter(1.0, "taken from the reward of the longest response", minimum=0.0)

    def __call__(
        self, rewards: Tensor, lengths: Tensor, longest: int, generator: torch.Generator | None = None
    ) -> Tensor:
        buffer = self.buffer * longest
        excess = (lengths.to(rewards) - (longest - buffer)).clamp(min=0.0)
        return rewards - self.penalty * excess / buffer


@component("random_rewards")
class RandomRewards(RewardShaping):
    """1 with the probability of the batch's mean reward, whatever a response is, else 0 (arXiv 2506.10947).

    A control: what such a run gains, no reward has taught.
    """

    replaces_rewards: ClassVar[bool] = True

    def __call__(
        self, rewards: Tensor, lengths: Tensor, longest: int, generator: torch.Generator | None = None
    ) -> Tensor:
        if generator is None:
            raise ValueError("random rewards need the generator of the step")
        rate = float(rewards.double().mean().clamp(0.0, 1.0))
        return (torch.rand(len(rewards), generator=generator) < rate).to(rewards)


@component("flipped_rewards")
class FlippedRewards(RewardShaping):
    """1 - R with the probability ``rate``, drawn for each response: a grader that errs (arXiv 2505.22653)."""

    replaces_rewards: ClassVar[bool] = True

    rate: float = hyper_parameter(0.4, "share of the rewards that are flipped", minimum=0.0, maximum=1.0)

    def __call__(
        self, rewards: Tensor, lengths: Tensor, longest: int, generator: torch.Generator | None = None
    ) -> Tensor:
        if generator is None:
            raise ValueError("flipped rewards need the generator of the step")
        return torch.where(torch.rand(len(rewards), generator=generator) < self.rate, 1.0 - rewards, rewards)


class TextShaping(RewardShaping):
    """The base of reward shapings that see what the responses say; of the engines ``local`` gives their texts."""

    replaces_rewards: ClassVar[bool] = True

    @abstractmethod
    def of_texts(self, rewards: Tensor, group_ids: Tensor, texts: Sequence[str]) -> Tensor:
        """Shape rewards [B] of responses with these texts [B], in the groups of group_ids [B]."""

    def __call__(
        self, rewards: Tensor, lengths: Tensor, longest: int, generator: torch.Generator | None = None
    ) -> Tensor:
        raise ValueError("this reward shaping needs the texts of the responses, which the engine does not give")


@component("majority_vote")
class MajorityVote(TextShaping):
    """1 for the most frequent answer of a group, right or wrong, else 0 (test-time RL, arXiv 2504.16084).

    An answer is what the last box of a response holds. Of answers that are equally frequent the first one wins; a
    response without a box, or with one that is not closed, has 0.
    """

    def of_texts(self, rewards: Tensor, group_ids: Tensor, texts: Sequence[str]) -> Tensor:
        keys = list(zip(group_ids.tolist(), map(_last_box, texts), strict=True))
        votes = Counter(key for key in keys if key[1] is not None)
        winners = {group: answer for (group, answer), _ in reversed(votes.most_common())}
        return torch.tensor([answer is not None and winners[group] == answer for group, answer in keys]).to(rewards)


def _last_box(text: str) -> str | None:
    """The content of the last ``\\boxed{...}`` of a text, braces within it included; None where it is not closed."""
    _, box, rest = text.rpartition("\\boxed{")
    depth = 1 if box else 0
    for position, character in enumerate(rest if box else ""):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:position].strip()
    return None


@dataclass(frozen=True)
class Advantage(Component, ABC):
    """The base of advantages; a subclass gives the formula over :class:`Groups`."""

    kind: ClassVar[str] = "advantage"

    @abstractmethod
    def of(self, groups: Groups) -> Tensor:
        """Compute the advantages [B] in float64."""

    def __call__(self, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
        """Compute advantages [B], in the type of rewards [B], of group_ids [B] int64 and lengths [B] in tokens."""
        return self.of(Groups.of(rewards, group_ids, lengths)).to(rewards.dtype)


@component("grpo")
class GRPO(Advantage):
    """A_i = (R_i - mean_j R_j) / (std_j R_j + epsilon), over the rollouts j of the same prompt (arXiv 2402.03300).

    The standard deviation has n - 1 in its denominator. A group of one has mean 0 and standard deviation 1 by
    convention (as in verl), so its advantage is its reward over 1 + epsilon.
    """

    epsilon: float = hyper_parameter(1e-6, "added to the standard deviation of the rewards", above=0.0)

    def of(self, groups: Groups) -> Tensor:
        return groups.centred / (groups.deviations + self.epsilon)


@component("one_sided")
class OneSided(GRPO):
    """GRPO's A_i where it has the given sign, 0 elsewhere: positive-only and negative-only training.

    The other responses stay in the batch and in its normaliser, so that a token of the remaining sign gets exactly the
    gradient that it has in joint training.
    """

    sign: Literal["positive", "negative"] = hyper_parameter("positive", "advantages that are kept")

    def of(self, groups: Groups) -> Tensor:
        advantages = super().of(groups)
        return advantages.clamp(min=0.0) if self.sign == "positive" else advantages.clamp(max=0.0)


@component("dr_grpo")
class DrGRPO(Advantage):
    """A_i = R_i - mean_j R_j over the rollouts j of the same prompt; a group of one keeps its reward.

    Dr.GRPO (arXiv 2503.20783): the reward less its group's mean, not divided by anything.
    """

    def of(self, groups: Groups) -> Tensor:
        return groups.centred


@component("rloo")
class RLOO(Advantage):
    """A_i = R_i - mean_(j != i) R_j = n / (n - 1) (R_i - mean_j R_j); 0 in a group of one, which has no others.

    REINFORCE leave-one-out (arXiv 2402.14740).
    """

    def of(self, groups: Groups) -> Tensor:
        return torch.where(groups.sizes > 1, groups.sizes / (groups.sizes - 1).clamp(min=1), 0.0) * groups.centred


@component("gpg")
class GPG(Advantage):
    """A_i = alpha (R_i - mean_j R_j), alpha = rollouts / rollouts with a reward other than 0.

    GPG (arXiv 2504.02546). As in verl, alpha counts rewards other than 0, so with rewards of +-1 it is 1.
    """

    def of(self, groups: Groups) -> Tensor:
        return groups.rewards.numel() / max(1, int((groups.rewards != 0).sum())) * groups.centred


@component("reinforce_plus_plus")
class ReinforcePlusPlus(Advantage):
    """A = (X - mean X) / sqrt(var X + 1e-8) over the valid tokens of the rollout batch; X is R, or R - group mean R.

    REINFORCE++ (arXiv 2501.03262). The method's return is the discounted reward-to-go of a token. With one reward for
    the whole response and no discount it is the same at each of its tokens, so one value per response, weighted by its
    length, is enough. The variance has n - 1 in its denominator. ``baseline`` "group_mean" is the paper's variant for
    several rollouts of a prompt. Where all values are equal, the advantages are 0.
    """

    baseline: Literal["none", "group_mean"] = hyper_parameter("none", "what is taken from a reward beforehand")

    def of(self, groups: Groups) -> Tensor:
        values = groups.rewards if self.baseline == "none" else groups.centred
        counts = groups.lengths.to(values)
        tokens = counts.sum()
        with_tokens = values[counts > 0]
        if with_tokens.numel() == 0 or bool((with_tokens == with_tokens[0]).all()):
            return torch.zeros_like(values)
        mean = (values * counts).sum() / tokens
        variance = ((values - mean).square() * counts).sum() / (tokens - 1).clamp(min=1)
        return (values - mean) * (variance + 1e-8).rsqrt()


@component("batch_scaled")
class BatchScaled(Advantage):
    """A_i = (R_i - mean_j R_j) / (std X + epsilon), mean over the group, deviation over the rollout batch; X is R or A.

    The scale of ScaleRL (arXiv 2510.13786), with X the centred rewards, and of LitePPO (arXiv 2508.08221), with X the
    rewards. A prompt that is nearly always or nearly never solved then weighs no more than others. The deviation has
    n - 1 in its denominator, and is 1 of a batch of one rollout.
    """

    deviation_of: Literal["centred", "rewards"] = hyper_parameter("centred", "what X is: rewards less their mean, or R")
    epsilon: float = hyper_parameter(1e-6, "added to the standard deviation", above=0.0)

    def of(self, groups: Groups) -> Tensor:
        values = groups.centred if self.deviation_of == "centred" else groups.rewards
        deviation = values.std() if values.numel() > 1 else torch.ones_like(values[0])
        return groups.centred / (deviation + self.epsilon)


@component("maxrl")
class MaxRL(Advantage):
    """A_i = (R_i - mean_j R_j) / (mean_j R_j + epsilon) over the rollouts j of the same prompt; 0 without a mean > 0.

    Maximum-likelihood reinforcement learning (arXiv 2602.02710): of a prompt with success rate p a right response
    counts about 1 / p, as in the gradient of log p. Rewards are meant to be 0 and 1, at least not negative.
    A group of one has advantage 0.
    """

    epsilon: float = hyper_parameter(1e-6, "added to the mean of the rewards", minimum=0.0)

    def of(self, groups: Groups) -> Tensor:
        means = groups.sums(groups.rewards) / groups.sizes
        some = (means > 0) & (groups.sizes > 1)
        return torch.where(some, groups.centred / (means.masked_fill(~some, 1.0) + self.epsilon), 0.0)


@component("opo")
class OPO(Advantage):
    """A_i = R_i - sum_j |y_j| R_j / sum_j |y_j| over the rollouts j of the same prompt; in a group of one R_i.

    On-policy reinforcement learning with the optimal baseline (arXiv 2505.23585): the baseline of least variance, if
    the squared gradient of a response grows with its length. Equal rewards have advantage exactly 0.
    """

    def of(self, groups: Groups) -> Tensor:
        lengths = groups.lengths.to(groups.rewards)
        weighted = groups.sums(lengths * groups.centred) / groups.sums(lengths).clamp(min=1)
        # Of the centred rewards, whose own baseline is 0 in a group of equal ones whatever is rounded.
        return torch.where(groups.sizes > 1, groups.centred - weighted, groups.rewards)


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
