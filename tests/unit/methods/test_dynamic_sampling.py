"""Dynamic sampling: mixed prompts only, first come first kept, and what happens when they run out."""

import pytest
import torch

from rlvr.methods.selections import DynamicSampling, Selection


def select(correct: list[int], rounds: int) -> Selection | None:
    """Two groups of 4 from groups with the given numbers of correct rollouts, at most 3 rounds."""
    rewards = torch.tensor([float(i < k) for k in correct for i in range(4)])
    group_ids = torch.arange(len(correct)).repeat_interleave(4)
    generator = torch.Generator().manual_seed(0)
    return DynamicSampling(max_rounds=3)(rewards, group_ids, 8, False, rounds, generator)


def groups_of(selection: Selection | None) -> list[int]:
    assert selection is not None
    assert selection.indices.tolist() == sorted(selection.indices.tolist())
    return sorted(set((selection.indices // 4).tolist()))


def test_the_first_mixed_groups_are_kept() -> None:
    selection = select([4, 1, 0, 2, 3], rounds=1)
    assert groups_of(selection) == [1, 3]
    assert selection is not None
    assert selection.balance == pytest.approx(3 / 8)
    assert selection.discarded_fraction == pytest.approx(1 - 8 / 20)


def test_too_few_mixed_groups_ask_for_more_until_the_last_round() -> None:
    assert select([4, 1, 0], rounds=2) is None
    assert groups_of(select([4, 1, 0], rounds=3)) == [0, 1]
    assert groups_of(select([0, 0, 4], rounds=3)) == [0, 1]


def test_a_buffer_that_cannot_fill_the_batch_is_refused() -> None:
    assert select([1], rounds=1) is None
    with pytest.raises(ValueError, match="4 rollouts after 3 rounds"):
        select([1], rounds=3)
