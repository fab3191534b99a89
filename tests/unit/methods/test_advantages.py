"""Advantages and reward shaping against loops in float64, and what holds for each whatever the rewards."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.advantages import GPG, GRPO, RLOO, DrGRPO, OneSided, Overlong, ReinforcePlusPlus

Rewards = list[float]


def group_mean(rewards: Rewards, groups: list[int], i: int) -> float:
    """0 for a group of one, as the others have it by convention."""
    members = [r for r, g in zip(rewards, groups, strict=True) if g == groups[i]]
    return math.fsum(members) / len(members) if len(members) > 1 else 0.0


def dr_grpo(rule: DrGRPO, rewards: Rewards, groups: list[int], lengths: list[int]) -> Rewards:
    return [r - group_mean(rewards, groups, i) for i, r in enumerate(rewards)]


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


CASES: list[tuple[Any, Any]] = [
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
@settings(max_examples=150, deadline=None, derandomize=True)
@pytest.mark.parametrize(("rule", "reference"), CASES, ids=lambda case: getattr(case, "__name__", repr(case)))
def test_advantages_equal_their_references(rule: Any, reference: Any, rollouts: list[tuple[float, int, int]]) -> None:
    rewards, groups, lengths = (list(column) for column in zip(*rollouts, strict=True))
    expected = torch.tensor(reference(rule, rewards, groups, lengths), dtype=torch.float64)
    inputs = torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), torch.tensor(lengths)
    torch.testing.assert_close(rule(*inputs), expected, rtol=1e-9, atol=1e-9)
    single = rule(inputs[0].float(), *inputs[1:])
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", [DrGRPO(), RLOO(), GPG(), GRPO()], ids=repr)
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


def test_overlong_end_points() -> None:
    lengths = torch.tensor([0, 80, 90, 100])
    shaped = Overlong(buffer=0.2, penalty=1.0)(torch.ones(4, dtype=torch.float64), lengths, 100)
    torch.testing.assert_close(shaped, torch.tensor([1.0, 1.0, 0.5, 0.0], dtype=torch.float64))
    assert torch.equal(Overlong(penalty=0.0)(torch.ones(4), lengths, 100), torch.ones(4))
