"""Reward-balanced selection: bounds, exhaustive search as the oracle, whole groups, when to sample more."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.selections import RewardBalanced, Selection


def select(
    correct_of_group: list[int],
    group_size: int,
    target_groups: int,
    *,
    whole_groups: bool = True,
    component: RewardBalanced | None = None,
    rounds: int = 1,
    seed: int = 0,
) -> tuple[Selection | None, torch.Tensor, torch.Tensor]:
    """Select from a buffer given by the number of correct rollouts in each group; also its rewards and group ids."""
    rewards = torch.tensor([1.0 if i < k else -1.0 for k in correct_of_group for i in range(group_size)])
    group_ids = torch.arange(len(correct_of_group)).repeat_interleave(group_size) * 3 + 1
    generator = torch.Generator().manual_seed(seed)
    shuffle = torch.randperm(rewards.numel(), generator=generator)
    rewards, group_ids = rewards[shuffle], group_ids[shuffle]
    chosen = (component or RewardBalanced())(
        rewards, group_ids, target_groups * group_size, whole_groups, rounds, generator
    )
    return chosen, rewards, group_ids


def best_balance(units: list[int], size: int, wanted: int) -> float:
    """The best balance of any ``wanted`` units of ``size`` rollouts, found by trying all."""
    totals = {sum(subset) for subset in itertools.combinations(units, wanted)}
    return max(min(total, wanted * size - total) for total in totals) / (wanted * size)


@given(
    correct=st.lists(st.integers(0, 4), min_size=3, max_size=9),
    wanted=st.integers(1, 3),
    whole_groups=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_selection_is_as_balanced_as_promised(correct: list[int], wanted: int, whole_groups: bool, seed: int) -> None:
    component = RewardBalanced(alpha=0.5, max_rounds=1)
    chosen, rewards, group_ids = select(correct, 4, wanted, whole_groups=whole_groups, component=component, seed=seed)
    assert chosen is not None
    indices = chosen.indices
    assert indices.numel() == 4 * wanted == torch.unique(indices).numel()
    assert torch.equal(indices, indices.sort().values)
    right = int((rewards[indices] > 0).sum())
    assert chosen.balance == min(right, 4 * wanted - right) / (4 * wanted)
    assert chosen.discarded_fraction == pytest.approx(1 - wanted / len(correct))
    if whole_groups:
        assert set(torch.unique(group_ids[indices], return_counts=True)[1].tolist()) == {4}
        assert chosen.balance == best_balance(correct, 4, wanted)
    else:
        most_minority = min(sum(correct), 4 * len(correct) - sum(correct), 2 * wanted)
        assert chosen.balance == most_minority / (4 * wanted)


def test_the_best_groups_are_found_where_no_single_exchange_leads_to_them() -> None:
    """Groups of 0, 3, 2 and 2 right of 4: from 0 and 3 every exchange of one is no better, but 2 and 2 are half."""
    for seed in range(10):
        chosen, _, group_ids = select([0, 3, 2, 2], 4, 2, component=RewardBalanced(alpha=0.5), seed=seed)
        assert chosen is not None and chosen.balance == 0.5
        assert set(group_ids[chosen.indices].tolist()) == {7, 10}


@pytest.mark.parametrize(("correct", "alpha", "expected"), [(9, 0.3, False), (10, 0.3, True), (10, 0.35, False)])
def test_alpha_decides_whether_to_sample_more(correct: int, alpha: float, expected: bool) -> None:
    """10 correct of 32 are a balance of 0.3125."""
    counts = [min(8, max(0, correct - 8 * group)) for group in range(4)]
    for whole_groups in (True, False):
        chosen, _, _ = select(counts, 8, 4, whole_groups=whole_groups, component=RewardBalanced(alpha=alpha))
        assert (chosen is not None) == expected


def test_after_the_last_round_the_best_is_taken() -> None:
    for rounds, taken in ((3, False), (4, True), (5, True)):
        chosen, _, _ = select([0] * 6 + [1, 2], 4, 4, rounds=rounds)
        assert (chosen is not None) == taken
        if chosen is not None:
            assert chosen.balance == 3 / 16 and chosen.discarded_fraction == 0.5


def test_a_buffer_that_is_too_small_asks_for_more_until_the_last_round() -> None:
    assert select([2, 2], 4, 3)[0] is None
    with pytest.raises(ValueError, match="8 rollouts after 4 rounds"):
        select([2, 2], 4, 3, rounds=4)


def test_groups_of_unequal_size_cannot_stay_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match="1 to 3 rollouts"):
        RewardBalanced()(torch.ones(4), torch.tensor([0, 0, 0, 1]), 2, True, 1, generator)


def test_interchangeable_rollouts_are_drawn_by_the_generator() -> None:
    draws = [select([4] * 8, 8, 4, seed=5)[0], select([4] * 8, 8, 4, seed=5)[0], select([4] * 8, 8, 4, seed=6)[0]]
    indices = [draw.indices.tolist() for draw in draws if draw is not None]
    assert indices[0] == indices[1] != indices[2]
