"""The batch as verl's workers cut it up again gives the method's mini-batches back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlvr.engines.verl.gathering import rank_layout, whole_groups_fraction
from rlvr.methods.assignments import QueryPreserved, RandomSplit, mini_batch_ids


def sliced_by_workers(order: Tensor, ranks: int, updates: int) -> list[set[int]]:
    """Contiguous shares per rank, contiguous mini-batches within a share: what each optimizer step is made of."""
    share = len(order) // ranks
    size = share // updates
    steps: list[set[int]] = [set() for _ in range(updates)]
    for rank in range(ranks):
        for update in range(updates):
            start = rank * share + update * size
            steps[update] |= set(order[start : start + size].tolist())
    return steps


@given(
    ranks=st.sampled_from([1, 2, 4, 8]),
    updates=st.sampled_from([1, 2, 4]),
    prompts=st.sampled_from([8, 16]),
    whole=st.booleans(),
    seed=st.integers(0, 99),
)
def test_workers_slice_what_was_assigned(ranks: int, updates: int, prompts: int, whole: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(prompts).repeat_interleave(8)
    lengths = torch.randint(1, 500, (len(groups),), generator=generator)
    assignment = QueryPreserved() if whole else RandomSplit()
    parts = assignment(torch.zeros(len(groups)), groups, lengths, updates, generator)
    order = rank_layout(parts, lengths, ranks)
    assert sorted(order.tolist()) == list(range(len(groups)))
    assert sliced_by_workers(order, ranks, updates) == [set(part.tolist()) for part in parts]
    fraction = whole_groups_fraction(mini_batch_ids(parts, len(groups)), groups)
    assert fraction == 1.0 if whole or updates == 1 else fraction < 1.0


def test_the_ranks_tokens_are_balanced_in_each_mini_batch() -> None:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 20_000, (512,), generator=generator)
    parts = list(torch.randperm(512, generator=generator).split(128))
    order = rank_layout(parts, lengths, 8)
    tokens = lengths[order].view(8, 4, 16).sum(dim=2).double()
    assert float((tokens.amax(dim=0) / tokens.mean(dim=0)).max()) < 1.1


def test_unequal_mini_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="have \\[3, 5\\] rollouts"):
        rank_layout([torch.arange(3), torch.arange(3, 8)], torch.ones(8), 1)
    with pytest.raises(ValueError, match="one size that 3 ranks divide"):
        rank_layout([torch.arange(4), torch.arange(4, 8)], torch.ones(8), 3)


def test_whole_groups_are_counted() -> None:
    ids, groups = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 2, 2])
    assert whole_groups_fraction(ids, groups) == pytest.approx(2 / 3)
