"""Advantages and reward shaping against loops in float64, and what holds for each whatever the rewards."""

import itertools
import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.core.errors import InvalidInput
from rlvr.methods.advantages import (
    GPG,
    GRPO,
    OPO,
    PKPO,
    RLOO,
    BatchScaled,
    BestOfGroup,
    DrGRPO,
    MaxRL,
    OneSided,
    Overlong,
    RandomRewards,
    ReinforcePlusPlus,
)

Rewards = list[float]


def group_mean(rewards: Rewards, groups: list[int], i: int) -> float:
    """0 for a group of one, as the others have it by convention."""
    members = [r for r, g in zip(rewards, groups, strict=True) if g == groups[i]]
    return math.fsum(members) / len(members) if len(members) > 1 else 0.0


def dr_grpo(rule: DrGRPO, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    return [r - group_mean(rewards, groups, i) for i, r in enumerate(rewards)]


def grpo(rule: GRPO, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    result = []
    for i, reward in enumerate(rewards):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == groups[i]]
        deviation = statistics.stdev(members) if len(members) > 1 else 1.0
        result.append((reward - group_mean(rewards, groups, i)) / (deviation + rule.epsilon))
    return result


def rloo(rule: RLOO, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    result = []
    for i, reward in enumerate(rewards):
        others = [rewards[j] for j in range(len(rewards)) if groups[j] == groups[i] and j != i]
        result.append(reward - math.fsum(others) / len(others) if others else 0.0)
    return result


def gpg(rule: GPG, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    alpha = len(rewards) / max(1, sum(r != 0 for r in rewards))
    return [alpha * (r - group_mean(rewards, groups, i)) for i, r in enumerate(rewards)]


def reinforce_plus_plus(rule: ReinforcePlusPlus, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    values = list(rewards) if rule.baseline == "none" else dr_grpo(DrGRPO(), rewards, groups, lengths)
    tokens = [value for value, length in zip(values, lengths, strict=True) for _ in range(length)]
    if len(set(tokens)) < 2:
        return [0.0] * len(rewards)
    mean = math.fsum(tokens) / len(tokens)
    variance = math.fsum((x - mean) ** 2 for x in tokens) / (len(tokens) - 1)
    return [(value - mean) / math.sqrt(variance + 1e-8) for value in values]


def one_sided(rule: OneSided, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    exact = torch.tensor(rewards, dtype=torch.float64)
    plain = GRPO(rule.epsilon)(exact, torch.tensor(groups), torch.tensor(lengths)).tolist()
    return [a if (a > 0) == (rule.sign == "positive") and a != 0 else 0.0 for a in plain]


def batch_scaled(rule: BatchScaled, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    centred = dr_grpo(DrGRPO(), rewards, groups, lengths)
    scaled = centred if rule.deviation_of == "centred" else rewards
    deviation = statistics.stdev(scaled) if len(scaled) > 1 else 1.0
    return [value / (deviation + rule.epsilon) for value in centred]


def maxrl(rule: MaxRL, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    result = []
    for i, reward in enumerate(rewards):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == groups[i]]
        mean, baseline = math.fsum(members) / len(members), group_mean(rewards, groups, i)
        result.append((reward - baseline) / (mean + rule.epsilon) if mean > 0 and len(members) > 1 else 0.0)
    return result


def opo(rule: OPO, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    result = []
    for i, reward in enumerate(rewards):
        members = [j for j in range(len(rewards)) if groups[j] == groups[i]]
        total = sum(lengths[j] for j in members)
        if len(members) == 1:
            result.append(reward)
        elif total == 0:  # no token that an advantage could reach
            result.append(reward - group_mean(rewards, groups, i))
        else:
            result.append(reward - math.fsum(lengths[j] * rewards[j] for j in members) / total)
    return result


def best_of_group(rule: BestOfGroup, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    result = []
    for i, reward in enumerate(rewards):
        others = [rewards[j] for j in range(len(rewards)) if groups[j] == groups[i] and j != i]
        if not others or reward <= max(others):
            result.append(0.0)
        else:
            result.append((reward - max(others)) / (statistics.stdev([reward, *others]) + rule.epsilon))
    return result


CASES: list[tuple[Any, Any]] = [
    (BatchScaled(), batch_scaled),
    (BatchScaled(deviation_of="rewards", epsilon=0.1), batch_scaled),
    (MaxRL(), maxrl),
    (OPO(), opo),
    (BestOfGroup(), best_of_group),
    (GRPO(), grpo),
    (DrGRPO(), dr_grpo),
    (RLOO(), rloo),
    (GPG(), gpg),
    (ReinforcePlusPlus(), reinforce_plus_plus),
    (ReinforcePlusPlus(baseline="group_mean"), reinforce_plus_plus),
    (OneSided(), one_sided),
    (OneSided(sign="negative"), one_sided),
]
ROLLOUT = st.tuples(st.sampled_from([0.0, 1.0, -1.0, 0.25]), st.integers(0, 3), st.integers(0, 9))


@given(rollouts=st.lists(ROLLOUT, min_size=1, max_size=16))
@settings(max_examples=150)
@pytest.mark.parametrize(("rule", "reference"), CASES, ids=lambda case: getattr(case, "__name__", repr(case)))
def test_advantages_equal_their_references(rule: Any, reference: Any, rollouts: list[tuple[float, int, int]]) -> None:
    rewards, groups, lengths = (list(column) for column in zip(*rollouts, strict=True))
    expected = torch.tensor(reference(rule, rewards, groups, lengths), dtype=torch.float64)
    inputs = torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), torch.tensor(lengths)
    torch.testing.assert_close(rule(*inputs), expected, rtol=1e-9, atol=1e-9)
    single = rule(inputs[0].float(), *inputs[1:])
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", [DrGRPO(), RLOO(), GPG(), GRPO(), MaxRL(), BatchScaled()], ids=repr)
def test_a_groups_advantages_sum_to_zero_and_uniform_groups_have_none(rule: Any) -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    advantages = rule(rewards, groups, torch.ones(9))
    assert not advantages[:3].any()
    for group in (1, 2):
        assert abs(float(advantages[groups == group].sum())) < 1e-12


def test_the_two_sides_add_up_to_the_whole() -> None:
    rewards, groups = torch.tensor([1.0, 0, 0, 1, 1, 0]), torch.tensor([0, 0, 0, 1, 1, 1])
    both = OneSided()(rewards, groups, rewards) + OneSided(sign="negative")(rewards, groups, rewards)
    assert torch.equal(both, GRPO()(rewards, groups, rewards))


def test_whitened_tokens_have_mean_zero_and_variance_one() -> None:
    rewards, lengths = torch.tensor([1.0, 0, 0, 1], dtype=torch.float64), torch.tensor([3, 5, 1, 7])
    tokens = ReinforcePlusPlus()(rewards, torch.tensor([0, 0, 1, 1]), lengths).repeat_interleave(lengths)
    assert abs(float(tokens.mean())) < 1e-12
    assert float(tokens.var()) == pytest.approx(1, abs=1e-6)


def test_random_rewards_have_the_rate_of_the_true_ones_and_nothing_else_of_them() -> None:
    true = (torch.arange(4000) % 10 < 3).float()
    lengths, draw = torch.ones(4000), RandomRewards()
    drawn = draw(true, lengths, 9, torch.Generator().manual_seed(1))
    assert set(drawn.tolist()) == {0.0, 1.0}
    for part in (drawn, drawn[true == 1], drawn[true == 0]):
        assert abs(float(part.mean()) - 0.3) < 4 * (0.21 / len(part)) ** 0.5
    shuffled = draw(true.flip(0), lengths, 9, torch.Generator().manual_seed(1))
    assert torch.equal(drawn, shuffled), "they depend on the responses"
    for rate in (0.0, 1.0):
        assert torch.equal(draw(torch.full((8,), rate), lengths[:8], 9, torch.Generator()), torch.full((8,), rate))


def test_overlong_end_points() -> None:
    lengths = torch.tensor([0, 80, 90, 100])
    shaped = Overlong(buffer=0.2, penalty=1.0)(torch.ones(4, dtype=torch.float64), lengths, 100)
    torch.testing.assert_close(shaped, torch.tensor([1.0, 1.0, 0.5, 0.0], dtype=torch.float64))
    assert torch.equal(Overlong(penalty=0.0)(torch.ones(4), lengths, 100), torch.ones(4))


@given(
    rewards=st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.25]), min_size=4, max_size=8),
    others=st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=5),
    k=st.integers(2, 4),
)
@settings(max_examples=60)
def test_pkpo_is_the_sum_over_all_subsets(rewards: Rewards, others: Rewards, k: int) -> None:
    """Two groups, interleaved, by the equation: the largest reward of each subset with i, less that without i."""

    def of_group(group: Rewards) -> Rewards:
        subsets = list(itertools.combinations(range(len(group)), k))
        gains = [
            math.fsum(max(group[j] for j in one) - max(group[j] for j in one if j != i) for one in subsets if i in one)
            for i in range(len(group))
        ]
        return [len(group) * gain / len(subsets) for gain in gains]

    groups = torch.tensor([0] * len(rewards) + [1] * len(others))
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(k))
    values = torch.tensor([*rewards, *others], dtype=torch.float64)
    expected = torch.tensor([*of_group(rewards), *of_group(others)], dtype=torch.float64)
    found = PKPO(k=k)(values[order], groups[order], torch.ones(len(groups)))
    torch.testing.assert_close(found, expected[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("k", "p"), [(2, 0.3), (3, 0.1), (4, 0.6)])
def test_pkpo_gives_the_gradient_of_pass_at_k(k: int, p: float) -> None:
    """Over all outcomes of 6 attempts that succeed with probability p, d log-likelihood / dp times the advantages."""
    size, gradient = 6, 0.0
    for outcome in itertools.product([0.0, 1.0], repeat=size):
        rewards = torch.tensor(outcome, dtype=torch.float64)
        advantages = PKPO(k=k)(rewards, torch.zeros(size, dtype=torch.int64), torch.ones(size))
        slopes = rewards / p - (1 - rewards) / (1 - p)
        chance = math.prod(p if one else 1 - p for one in outcome)
        gradient += chance * float((advantages * slopes).mean())
    assert gradient == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-9)  # of 1 - (1 - p)^k


def test_pkpo_refuses_k_above_every_group_and_leaves_a_smaller_one_out() -> None:
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 1, 1])
    with pytest.raises(InvalidInput) as error:
        PKPO()(rewards, groups, torch.ones(5))
    assert error.value.key == "advantage.k" and "3" in error.value.accepted
    assert PKPO(k=3)(rewards, groups, torch.ones(5)).tolist() == [3.0, 0.0, 0.0, 0.0, 0.0]


# GRPO's advantage: the closed form for binary rewards, and its edge cases.


def advantages_of(rewards: Rewards, group_ids: list[int]) -> torch.Tensor:
    """Advantages from the component."""
    lengths = torch.ones(len(rewards), dtype=torch.int64)
    return GRPO()(torch.tensor(rewards, dtype=torch.float64), torch.tensor(group_ids), lengths)


@pytest.mark.parametrize("correct", range(1, 8))
def test_binary_rewards_have_the_closed_form(correct: int) -> None:
    size = 8
    deviation = math.sqrt(correct * (size - correct) / (size * (size - 1)))
    advantages = advantages_of([1.0] * correct + [0.0] * (size - correct), [5] * size)
    expected = [(1 - correct / size) / (deviation + 1e-6)] * correct
    expected += [-correct / size / (deviation + 1e-6)] * (size - correct)
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert abs(advantages.sum().item()) < 1e-12


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_have_no_sign(reward: float) -> None:
    """0.1 does not add up to 1 in floating point; divided by epsilon the rest would be a sign, and DelTA uses signs."""
    assert torch.equal(advantages_of([reward] * 7, [0] * 7), torch.zeros(7, dtype=torch.float64))


def test_a_group_of_one_keeps_its_reward() -> None:
    assert advantages_of([3.0], [9]).item() == pytest.approx(3.0 / (1 + 1e-6), rel=1e-12)
