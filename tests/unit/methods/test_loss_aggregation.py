"""Aggregation: hand-computed values, exactness over micro-batches, indifference to padding."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.aggregation import Aggregation, Normaliser, aggregate
from rlvr.methods.losses.clipped import Clipped
from rlvr.methods.losses.gspo import GSPO

MODES: list[Aggregation] = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
TOKEN_LOSS = torch.tensor([[1.0, 2.0, 6.0], [4.0, torch.nan, torch.inf], [torch.nan, 7.0, 8.0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 13 / 4),
        ("seq-mean-token-mean", (3 + 4) / 2),
        ("seq-mean-token-sum", (9 + 4) / 2),
        ("seq-mean-token-sum-norm", (9 + 4) / 2 / 5),
    ],
)
def test_values_by_hand(mode: Aggregation, expected: float) -> None:
    assert aggregate(TOKEN_LOSS, MASK, mode, Normaliser.of(MASK, 5.0)).item() == pytest.approx(expected)


@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 7), max_size=3), mode=st.sampled_from(MODES))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_micro_batches_add_up_to_the_mini_batch(
    draw_loss_inputs: Callable[..., Any], seed: int, cuts: list[int], mode: Aggregation
) -> None:
    inputs = draw_loss_inputs(seed)
    constant = 9.0 if mode == "seq-mean-token-sum-norm" else None
    normaliser = Normaliser.of(inputs.response_mask, constant)
    for loss in (
        Clipped(aggregation=mode, aggregation_constant=constant),
        GSPO(aggregation=mode, aggregation_constant=constant),
    ):
        bounds = [0, *sorted(set(cuts)), 8]
        parts = []
        for start, stop in itertools.pairwise(bounds):
            rows = slice(start, stop)
            mask = inputs.response_mask[rows]
            token_loss, _ = loss(
                inputs.log_probs[rows],
                inputs.old_log_probs[rows],
                inputs.advantages[rows],
                mask,
                inputs.group_ids[rows],
                torch.Generator(),
            )
            parts.append(aggregate(token_loss, mask, mode, normaliser))
        whole, _ = loss(
            inputs.log_probs,
            inputs.old_log_probs,
            inputs.advantages,
            inputs.response_mask,
            inputs.group_ids,
            torch.Generator(),
        )
        expected = aggregate(whole, inputs.response_mask, mode, normaliser)
        torch.testing.assert_close(torch.stack(parts).sum(), expected, rtol=1e-12, atol=1e-14)


def test_the_constant_is_asked_for_exactly_where_it_is_used() -> None:
    with pytest.raises(ValueError, match="seq-mean-token-sum-norm"):
        Clipped(aggregation="seq-mean-token-sum-norm")
    with pytest.raises(ValueError, match="null with every other"):
        Clipped(aggregation_constant=5.0)
    with pytest.raises(ValueError, match="constant"):
        aggregate(TOKEN_LOSS, MASK, "seq-mean-token-sum-norm", Normaliser.of(MASK))
