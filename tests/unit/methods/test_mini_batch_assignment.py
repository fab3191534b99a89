"""Assignments: partitions of near-equal size, the same for the same generator, groups kept where promised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.batching.query_preserved import QueryPreserved
from rlvr.methods.batching.random_split import RandomSplit


def assign(piece: Any, group_ids: torch.Tensor, updates: int, seed: int = 0) -> list[torch.Tensor]:
    """Run an assignment; rewards and lengths are arbitrary."""
    size = group_ids.numel()
    generator = torch.Generator().manual_seed(seed)
    parts: list[torch.Tensor] = piece(torch.ones(size), group_ids, torch.ones(size), updates, generator)
    return parts


@given(groups=st.integers(4, 20), samples=st.integers(1, 5), updates=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None, derandomize=True)
@pytest.mark.parametrize("piece", [RandomSplit(), QueryPreserved()], ids=repr)
def test_partition_of_near_equal_parts(piece: Any, groups: int, samples: int, updates: int, seed: int) -> None:
    shuffled = torch.randperm(groups * samples, generator=torch.Generator().manual_seed(seed))
    group_ids = (torch.arange(groups).repeat_interleave(samples) * 7 - 3)[shuffled]
    parts = assign(piece, group_ids, updates, seed)
    assert len(parts) == updates and all(part.dtype == torch.int64 for part in parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(groups * samples))
    unit = samples if piece.keeps_groups else 1
    sizes = [part.numel() for part in parts]
    assert max(sizes) - min(sizes) <= unit
    again = assign(piece, group_ids, updates, seed)
    assert all(torch.equal(first, second) for first, second in zip(parts, again, strict=True))
    if piece.keeps_groups:
        homes = [set(group_ids[part].tolist()) for part in parts]
        assert sum(map(len, homes)) == len(set.union(*homes)) == groups


@pytest.mark.parametrize("piece", [RandomSplit(), QueryPreserved()], ids=repr)
def test_seeds_give_different_assignments(piece: Any) -> None:
    group_ids = torch.arange(32).repeat_interleave(4)
    outcomes = {tuple(map(tuple, (p.sort().values.tolist() for p in assign(piece, group_ids, 4, s)))) for s in range(5)}
    assert len(outcomes) == 5


def test_random_split_scatters_groups() -> None:
    group_ids = torch.arange(32).repeat_interleave(8)
    homes = [set(group_ids[part].tolist()) for part in assign(RandomSplit(), group_ids, 4)]
    assert sum(map(len, homes)) > 3 * 32


@pytest.mark.parametrize(("piece", "updates"), [(RandomSplit(), 7), (QueryPreserved(), 3), (RandomSplit(), 0)])
def test_too_many_parts_are_refused(piece: Any, updates: int) -> None:
    with pytest.raises(ValueError, match=f"cannot be split into {updates} mini-batches"):
        assign(piece, torch.tensor([0, 0, 0, 1, 1, 1]), updates)
