"""Assignments: partitions of near-equal size, the same for the same generator, groups kept where promised."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.assignments import LengthSorted, QueryPreserved, RandomSplit, SignSeparated, VerlV1, balanced_shares


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
