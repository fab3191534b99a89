"""Aggregation: hand-computed values, exactness over micro-batches, indifference to padding."""

import itertools
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.core.errors import InvalidInput
from rlvr.methods.aggregation import Aggregation, Mode, Normaliser
from rlvr.methods.losses.sequence_ratios import GSPO
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.method import compose

MODES: list[Mode] = [*get_args(Mode)]
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
TOKEN_LOSS = torch.tensor([[1.0, 2.0, 6.0], [4.0, torch.nan, torch.inf], [torch.nan, 7.0, 8.0]])


def aggregation(mode: Mode, constant: float) -> Aggregation:
    return Aggregation(mode, constant if mode == "seq-mean-token-sum-norm" else None)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 13 / 4),
        ("seq-mean-token-mean", (3 + 4) / 2),
        ("seq-mean-token-sum", (9 + 4) / 2),
        ("seq-mean-token-sum-norm", (9 + 4) / 2 / 5),
    ],
)
def test_values_by_hand(mode: Mode, expected: float) -> None:
    assert aggregation(mode, 5.0)(TOKEN_LOSS, MASK, Normaliser.of(MASK)).item() == pytest.approx(expected)


def test_the_mean_over_prompts_is_of_each_ones_token_mean() -> None:
    """Prompt 4 has tokens of losses 1, 2, 6 and 4; prompt 9 one of loss 5; prompt 2 an empty response."""
    mask = torch.cat([MASK, torch.tensor([[1, 0, 0]]).bool()])
    values = torch.cat([TOKEN_LOSS, torch.tensor([[5.0, torch.nan, torch.inf]])])
    groups = torch.tensor([4, 4, 2, 9])
    value = aggregation("prompt-mean", 0.0)(values, mask, Normaliser.of(mask, groups), groups)
    assert value.item() == pytest.approx((13 / 4 + 5) / 2)
    kept = mask & torch.tensor([True, False, True, True])[:, None]  # a loss that drops the second response
    factor = aggregation("prompt-mean", 0.0).correction(mask, kept, groups)
    dropped = aggregation("prompt-mean", 0.0)(
        values.masked_fill(~kept, 0.0) * factor, mask, Normaliser.of(mask, groups), groups
    )
    assert dropped.item() == pytest.approx((9 / 3 + 5) / 2)


@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 7), max_size=3), mode=st.sampled_from(MODES))
@settings(max_examples=40)
def test_micro_batches_add_up_to_the_mini_batch(
    draw_loss_inputs: Callable[..., Any], seed: int, cuts: list[int], mode: Mode
) -> None:
    inputs = draw_loss_inputs(seed)
    aggregated = aggregation(mode, 9.0)
    normaliser = Normaliser.of(inputs.response_mask, inputs.group_ids)
    for loss in (Clipped(), GSPO()):
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
                aggregated,
            )
            parts.append(aggregated(token_loss, mask, normaliser, inputs.group_ids[rows]))
        whole, _ = loss(
            inputs.log_probs,
            inputs.old_log_probs,
            inputs.advantages,
            inputs.response_mask,
            inputs.group_ids,
            torch.Generator(),
            aggregated,
        )
        expected = aggregated(whole, inputs.response_mask, normaliser, inputs.group_ids)
        torch.testing.assert_close(torch.stack(parts).sum(), expected, rtol=1e-12, atol=1e-14)


def test_the_constant_is_asked_for_exactly_where_it_is_used() -> None:
    entry = {"advantage": {"name": "grpo"}, "loss": {"name": "clipped", "aggregation_constant": 5.0}}
    with pytest.raises(InvalidInput) as error:
        compose({**entry, "batching": {"assignment": {"name": "random_split"}}})
    assert error.value.key == "loss" and "aggregation_constant" in error.value.found
    with pytest.raises(ValueError, match="accepted: a number with seq-mean-token-sum-norm"):
        Aggregation("seq-mean-token-sum-norm")
