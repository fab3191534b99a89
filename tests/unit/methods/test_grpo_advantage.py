"""GRPO's advantage against a plain loop, the closed form for binary rewards, and its edge cases."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.advantages import GRPO


def oracle(rewards: list[float], group_ids: list[int], epsilon: float) -> list[float]:
    """Advantages from the equation, one group at a time."""
    advantages = []
    for reward, group in zip(rewards, group_ids, strict=True):
        members = [r for r, g in zip(rewards, group_ids, strict=True) if g == group]
        if len(members) == 1:
            mean, deviation = 0.0, 1.0
        else:
            mean = math.fsum(members) / len(members)
            deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in members) / (len(members) - 1))
        advantages.append((reward - mean) / (deviation + epsilon))
    return advantages


def advantages_of(rewards: list[float], group_ids: list[int], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Advantages from the component."""
    lengths = torch.ones(len(rewards), dtype=torch.int64)
    return GRPO()(torch.tensor(rewards, dtype=dtype), torch.tensor(group_ids), lengths)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, -1.0, 0.25, 7.5]), st.integers(-2, 3)), min_size=1, max_size=40))
@settings(max_examples=80)
def test_equals_the_oracle_on_ragged_interleaved_groups(rollouts: list[tuple[float, int]]) -> None:
    rewards, groups = [r for r, _ in rollouts], [g for _, g in rollouts]
    expected = torch.tensor(oracle(rewards, groups, 1e-6), dtype=torch.float64)
    torch.testing.assert_close(advantages_of(rewards, groups), expected, rtol=1e-9, atol=1e-9)
    single = advantages_of(rewards, groups, torch.float32)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-6, atol=1e-7)


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
