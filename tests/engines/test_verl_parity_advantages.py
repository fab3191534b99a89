"""Every advantage of ours that verl 0.9.1 registers too: the same rewards give the same advantages.

Where they differ the difference is computed here and explained in docs/results/verl.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlvr.methods.advantages import GPG, GRPO, OPO, RLOO, Advantage, BestOfGroup, DrGRPO, ReinforcePlusPlus

pytest.importorskip("verl", reason="verl is in .venv-engines: make test-engines")

from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_adv_estimator_fn

Agrees = Callable[[str, Tensor, Tensor], None]


@dataclass(frozen=True)
class Case:
    """An advantage of ours, verl's registered name for it, and verl's arguments that make it the same.

    Attributes:
        lone: whether groups of one agree.
        uniform: whether batches whose rewards are all equal agree to the last bit that counts.
    """

    advantage: Advantage
    verl: str
    arguments: dict[str, Any] = field(default_factory=dict)
    lone: bool = True
    uniform: bool = True

    @property
    def name(self) -> str:
        """For test ids and the summary."""
        return f"advantage {self.verl} ({type(self.advantage).__name__})"


CASES = [
    Case(GRPO(), "grpo"),
    Case(GRPO(), "grpo_vectorized"),
    Case(DrGRPO(), "grpo", {"norm_adv_by_std_in_grpo": False}),
    Case(RLOO(), "rloo", lone=False),
    Case(RLOO(), "rloo_vectorized"),
    Case(ReinforcePlusPlus(), "reinforce_plus_plus", uniform=False),
    Case(ReinforcePlusPlus(baseline="group_mean"), "reinforce_plus_plus_baseline", uniform=False),
    Case(GPG(), "gpg"),
    Case(OPO(), "opo", uniform=False),
    Case(BestOfGroup(), "grpo_passk", lone=False),
]

NOT_OURS = {"gae", "gdpo", "optimal_token_baseline", "remax", "tir_optimal_token_baseline"}


def of_verl(case: Case, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """Advantages [B, T] of verl's function; rewards stand at the last token, an empty response's at its first place."""
    mask = torch.arange(int(lengths.max().clamp(min=1))) < lengths.unsqueeze(1)
    token_level = torch.zeros(mask.shape, dtype=rewards.dtype)
    token_level[torch.arange(len(rewards)), (lengths - 1).clamp(min=0)] = rewards
    advantages, _ = get_adv_estimator_fn(case.verl)(
        token_level_rewards=token_level,
        response_mask=mask.long(),
        index=group_ids.numpy(),
        config=AlgoConfig(gamma=1.0),
        **case.arguments,
    )
    return torch.as_tensor(advantages)


def of_ours(case: Case, rewards: Tensor, group_ids: Tensor, lengths: Tensor) -> Tensor:
    """Advantages [B, T] of our function, which gives one per response."""
    mask = torch.arange(int(lengths.max().clamp(min=1))) < lengths.unsqueeze(1)
    return case.advantage(rewards, group_ids, lengths).unsqueeze(1) * mask


def test_every_advantage_that_verl_registers_is_compared_or_named_as_not_ours() -> None:
    assert set(ADV_ESTIMATOR_REGISTRY) == {case.verl for case in CASES} | NOT_OURS


rollouts = st.tuples(
    st.integers(0, 3),
    st.integers(0, 9),
    st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-1.0, 1.0).map(lambda value: round(value, 2))),
)
"""Group, length, reward."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@given(batch=st.lists(rollouts, min_size=2, max_size=20))
@example(batch=[(0, 3, 1.0)] * 4 + [(1, 5, 0.0)] * 4 + [(2, 1, 1.0), (2, 0, 0.0), (2, 9, 0.0), (2, 4, 1.0)])
@settings(max_examples=150)
def test_advantages_are_verls(assert_agrees: Agrees, case: Case, batch: list[tuple[int, int, float]]) -> None:
    group_ids, lengths, rewards = (torch.tensor(column) for column in zip(*batch, strict=True))
    rewards = rewards.double()
    assume(lengths.sum() > 1)  # verl's whitening raises on fewer tokens
    if not case.lone:
        assume(int(torch.unique(group_ids, return_counts=True)[1].min()) > 1)
    if case.verl == "opo":  # divides a group's rewards by its length, and 0 by 0
        assume(all(lengths[group_ids == group].any() for group in group_ids))
    ours = of_ours(case, rewards, group_ids, lengths)
    if not case.uniform:
        assume(bool(ours.any()))
    assert_agrees(case.name, ours, of_verl(case, rewards, group_ids, lengths))


def test_a_group_of_one_keeps_its_reward_in_verls_rloo_and_is_0_in_ours_and_the_vectorized_one() -> None:
    arguments = (torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0, 1, 1]), torch.tensor([1, 1, 1]))
    loop, vectorized = (next(case for case in CASES if case.verl == name) for name in ("rloo", "rloo_vectorized"))
    assert of_verl(loop, *arguments)[0] == 1.0
    assert of_verl(vectorized, *arguments)[0] == of_ours(loop, *arguments)[0] == 0.0


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized"])
def test_verls_grpo_gives_a_uniform_group_a_sign(name: str, report_measured: Callable[[str, str], None]) -> None:
    """Rewards of 0 and 1 are exact; shaped ones are not, and a deviation of 1e-8 is divided by little over 1e-6."""
    case = next(case for case in CASES if case.verl == name)
    largest = 0.0
    for size in (3, 6, 7, 12, 16):
        for reward in (0.1, 0.7, -0.3, 0.85):
            arguments = (torch.full((size,), reward), torch.zeros(size, dtype=torch.int64), torch.ones(size).long())
            assert not of_ours(case, *arguments).any()
            largest = max(largest, float(of_verl(case, *arguments).abs().max()))
    assert largest > 0.001
    report_measured(f"largest advantage of a group of equal rewards in verl's {name}, float32", f"{largest:.3f}")


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_equal_rewards_are_exactly_0_in_ours_alone(name: str, report_measured: Callable[[str, str], None]) -> None:
    case = next(case for case in CASES if case.verl == name)
    largest = 0.0
    for reward in (0.1, 0.7, 1.0):
        arguments = (torch.full((6,), reward), torch.zeros(6, dtype=torch.int64), torch.tensor([1, 2, 3, 4, 5, 7]))
        assert not of_ours(case, *arguments).any()
        largest = max(largest, float(of_verl(case, *arguments).abs().max()))
    assert largest < 0.01
    report_measured(f"largest advantage of a batch of equal rewards in verl's {name}, float32", f"{largest:.1e}")
    one_token = torch.tensor([1.0, 0.0]), torch.tensor([0, 1]), torch.tensor([1, 0])
    assert not of_ours(case, *one_token).any()
    with pytest.raises(ValueError, match="mask is one"):
        of_verl(case, *one_token)
