"""Assignments: partitions of near-equal size, the same for the same generator, groups kept where promised."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.assignments import LengthSorted, QueryPreserved, RandomSplit, SignSeparated, VerlV1, balanced_shares
from rlvr.methods.selections import DynamicSampling, RewardBalanced


def assign(rule: Any, group_ids: torch.Tensor, updates: int, seed: int = 0) -> list[torch.Tensor]:
    """Run an assignment; rewards and lengths are arbitrary."""
    size = group_ids.numel()
    generator = torch.Generator().manual_seed(seed)
    parts: list[torch.Tensor] = rule(torch.ones(size), group_ids, torch.ones(size), updates, generator)
    return parts


@given(groups=st.integers(4, 20), samples=st.integers(1, 5), updates=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=50)
@pytest.mark.parametrize("rule", [RandomSplit(), QueryPreserved()], ids=repr)
def test_partition_of_near_equal_parts(rule: Any, groups: int, samples: int, updates: int, seed: int) -> None:
    shuffled = torch.randperm(groups * samples, generator=torch.Generator().manual_seed(seed))
    group_ids = (torch.arange(groups).repeat_interleave(samples) * 7 - 3)[shuffled]
    parts = assign(rule, group_ids, updates, seed)
    assert len(parts) == updates and all(part.dtype == torch.int64 for part in parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(groups * samples))
    unit = samples if rule.keeps_groups else 1
    sizes = [part.numel() for part in parts]
    assert max(sizes) - min(sizes) <= unit
    again = assign(rule, group_ids, updates, seed)
    assert all(torch.equal(first, second) for first, second in zip(parts, again, strict=True))
    if rule.keeps_groups:
        homes = [set(group_ids[part].tolist()) for part in parts]
        assert sum(map(len, homes)) == len(set.union(*homes)) == groups


@pytest.mark.parametrize("rule", [RandomSplit(), QueryPreserved()], ids=repr)
def test_seeds_give_different_assignments(rule: Any) -> None:
    group_ids = torch.arange(32).repeat_interleave(4)
    outcomes = {tuple(map(tuple, (p.sort().values.tolist() for p in assign(rule, group_ids, 4, s)))) for s in range(5)}
    assert len(outcomes) == 5


def test_random_split_scatters_groups() -> None:
    group_ids = torch.arange(32).repeat_interleave(8)
    homes = [set(group_ids[part].tolist()) for part in assign(RandomSplit(), group_ids, 4)]
    assert sum(map(len, homes)) > 3 * 32


@pytest.mark.parametrize(("rule", "updates"), [(RandomSplit(), 7), (QueryPreserved(), 3), (RandomSplit(), 0)])
def test_too_many_parts_are_refused(rule: Any, updates: int) -> None:
    with pytest.raises(ValueError, match=f"{updates} mini-batches"):
        assign(rule, torch.tensor([0, 0, 0, 1, 1, 1]), updates)


@given(seed=st.integers(0, 999), ranks=st.integers(1, 8), updates=st.integers(1, 4))
@settings(max_examples=50)
def test_trainers_partitions(seed: int, ranks: int, updates: int) -> None:
    """Everything once; shards of equal size and work; V1 keeps prompt order, V0 puts short responses at both ends."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 200, (128,), generator=generator)
    group_ids, rewards = torch.arange(16).repeat_interleave(8), torch.ones(128)
    shards = balanced_shares(lengths, ranks)
    work = [int(lengths[shard].sum()) for shard in shards]
    assert max(work) - min(work) <= 200
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    for rule in (LengthSorted(ranks), VerlV1(ranks)):
        parts = rule(rewards, group_ids, lengths, updates, generator)
        assert len(parts) == updates
        assert sorted(torch.cat(parts).tolist()) == list(range(128))
    in_order = VerlV1(1)(rewards, group_ids, lengths, updates, generator)
    assert torch.cat(in_order).tolist() == list(range(128))
    sorted_parts = LengthSorted(1)(rewards, group_ids, lengths, 4, generator)
    means = [float(lengths[part].double().mean()) for part in sorted_parts]
    assert max(means[0], means[3]) < min(means[1], means[2])


def test_the_trainers_keep_and_scatter_groups_as_measured_in_verl() -> None:
    """verl's own partitioner kept 0 % (V0) and 68 % (V1, 8 samples, 8 ranks, 4 updates) of 128 prompts together."""
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randn(1024, generator=generator) * 0.5 + 6).exp().long()
    group_ids, rewards = torch.arange(128).repeat_interleave(8), torch.ones(1024)

    def kept(rule: Any) -> float:
        parts = rule(rewards, group_ids, lengths, 4, generator)
        home = torch.empty(1024)
        for number, part in enumerate(parts):
            home[part] = number
        return sum(int(home[group_ids == group].unique().numel() == 1) for group in range(128)) / 128

    assert kept(LengthSorted(8)) < 0.02
    assert 0.5 < kept(VerlV1(8)) < 0.85
    assert kept(VerlV1(1)) == 1.0
    with pytest.raises(ValueError, match=r"10 rollouts .*8 ranks and 2 updates"):
        VerlV1(8)(torch.ones(10), torch.arange(10), torch.ones(10), 2, generator)


@given(seed=st.integers(0, 999), updates=st.integers(1, 6), wrong=st.floats(0, 1))
@settings(max_examples=80)
def test_sign_separated_mini_batches_have_one_sign(seed: int, updates: int, wrong: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    group_ids = torch.arange(6).repeat_interleave(4)
    rewards = (torch.rand(24, generator=generator) > wrong).float()
    parts = SignSeparated()(rewards, group_ids, torch.ones(24), updates, generator)
    means = torch.tensor([float(rewards[group_ids == group].mean()) for group in range(6)])
    signs = (rewards - means[group_ids]).sign()
    assert len(parts) == updates and all(part.numel() for part in parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(24))
    if updates > 1:
        assert not any(bool((signs[part] > 0).any()) and bool((signs[part] < 0).any()) for part in parts)


# Reward-balanced selection: bounds, exhaustive search as the oracle, whole groups, when to sample more.


def select(
    correct_of_group: list[int],
    group_size: int,
    target_groups: int,
    *,
    whole_groups: bool = True,
    component: RewardBalanced | None = None,
    rounds: int = 1,
    seed: int = 0,
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
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


def balance(rewards: torch.Tensor) -> float:
    right = int((rewards > 0).sum())
    return min(right, len(rewards) - right) / len(rewards)


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
    indices, rewards, group_ids = select(correct, 4, wanted, whole_groups=whole_groups, component=component, seed=seed)
    assert indices is not None
    assert indices.numel() == 4 * wanted == torch.unique(indices).numel()
    assert torch.equal(indices, indices.sort().values)
    if whole_groups:
        assert set(torch.unique(group_ids[indices], return_counts=True)[1].tolist()) == {4}
        assert balance(rewards[indices]) == best_balance(correct, 4, wanted)
    else:
        most_minority = min(sum(correct), 4 * len(correct) - sum(correct), 2 * wanted)
        assert balance(rewards[indices]) == most_minority / (4 * wanted)


def test_the_best_groups_are_found_where_no_single_exchange_leads_to_them() -> None:
    """Groups of 0, 3, 2 and 2 right of 4: from 0 and 3 every exchange of one is no better, but 2 and 2 are half."""
    for seed in range(10):
        chosen, rewards, group_ids = select([0, 3, 2, 2], 4, 2, component=RewardBalanced(alpha=0.5), seed=seed)
        assert chosen is not None and balance(rewards[chosen]) == 0.5
        assert set(group_ids[chosen].tolist()) == {7, 10}


@pytest.mark.parametrize(("correct", "alpha", "expected"), [(9, 0.3, False), (10, 0.3, True), (10, 0.35, False)])
def test_alpha_decides_whether_to_sample_more(correct: int, alpha: float, expected: bool) -> None:
    """10 correct of 32 are a balance of 0.3125."""
    counts = [min(8, max(0, correct - 8 * group)) for group in range(4)]
    for whole_groups in (True, False):
        chosen, _, _ = select(counts, 8, 4, whole_groups=whole_groups, component=RewardBalanced(alpha=alpha))
        assert (chosen is not None) == expected


def test_after_the_last_round_the_best_is_taken() -> None:
    for rounds, taken in ((3, False), (4, True), (5, True)):
        chosen, rewards, _ = select([0] * 6 + [1, 2], 4, 4, rounds=rounds)
        assert (chosen is not None) == taken
        if chosen is not None:
            assert balance(rewards[chosen]) == 3 / 16 and len(chosen) == 16


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
    indices = [draw.tolist() for draw in draws if draw is not None]
    assert indices[0] == indices[1] != indices[2]


# Dynamic sampling: mixed prompts only, first come first kept, and what happens when they run out.


def select_of_dynamic(correct: list[int], rounds: int) -> torch.Tensor | None:
    """Two groups of 4 from groups with the given numbers of correct rollouts, at most 3 rounds."""
    rewards = torch.tensor([float(i < k) for k in correct for i in range(4)])
    group_ids = torch.arange(len(correct)).repeat_interleave(4)
    generator = torch.Generator().manual_seed(0)
    return DynamicSampling(max_rounds=3)(rewards, group_ids, 8, False, rounds, generator)


def groups_of(selection: torch.Tensor | None) -> list[int]:
    assert selection is not None
    assert selection.tolist() == sorted(selection.tolist()) and len(selection) == 8
    return sorted(set((selection // 4).tolist()))


def test_the_first_mixed_groups_are_kept() -> None:
    assert groups_of(select_of_dynamic([4, 1, 0, 2, 3], rounds=1)) == [1, 3]


def test_too_few_mixed_groups_ask_for_more_until_the_last_round() -> None:
    assert select_of_dynamic([4, 1, 0], rounds=2) is None
    assert groups_of(select_of_dynamic([4, 1, 0], rounds=3)) == [0, 1]
    assert groups_of(select_of_dynamic([0, 0, 4], rounds=3)) == [0, 1]


def test_a_buffer_that_cannot_fill_the_batch_is_refused() -> None:
    assert select_of_dynamic([1], rounds=1) is None
    with pytest.raises(ValueError, match="4 rollouts after 3 rounds"):
        select_of_dynamic([1], rounds=3)
