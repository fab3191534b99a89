"""The aggregation of token losses: the same modes as verl 0.9.1's, whole, in micro-batches and over two ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from hypothesis import example, given, settings
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, Mode, Normaliser
from tests.engines.mini_batches import EXTREME, MIXED, Drawing, drawings

pytest.importorskip("verl", reason="verl is in .venv-engines: make test-engines")

from verl.trainer.ppo.core_algos import agg_loss

Agrees = Callable[[str, Tensor, Tensor], None]
MODES: tuple[Mode, ...] = tuple(mode for mode in get_args(Mode) if mode != "prompt-mean")  # which verl has not
LONGEST = 64


def of_ours(token_loss: Tensor, mask: Tensor, mode: Mode, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Value [] and gradient [B, T] of the rows given, normalised by the ``whole`` mini-batch's mask."""
    values = token_loss.clone().requires_grad_()
    aggregation = Aggregation(mode, LONGEST if mode == "seq-mean-token-sum-norm" else None)
    value = aggregation(values, mask, Normaliser.of(whole))
    return value, torch.autograd.grad(value, values)[0]


def of_verl(token_loss: Tensor, mask: Tensor, mode: str, **whole: Any) -> tuple[Tensor, Tensor]:
    """The same by verl's function."""
    values = token_loss.masked_fill(~mask, 0.0).requires_grad_()
    value = agg_loss(values, mask.long(), mode, loss_scale_factor=LONGEST, **whole)
    return value, torch.autograd.grad(value, values)[0]


@pytest.mark.parametrize("mode", MODES)
@given(drawing=drawings)
@example(drawing=EXTREME)
@settings(max_examples=60)
def test_a_mini_batch_in_one_piece(assert_agrees: Agrees, mode: Mode, drawing: Drawing) -> None:
    batch = drawing.mini_batch()
    value, gradient = of_ours(batch.log_probs, batch.response_mask, mode, batch.response_mask)
    expected, slopes = of_verl(batch.log_probs, batch.response_mask, mode)
    assert_agrees(f"aggregation {mode}", value, expected)
    assert_agrees(f"aggregation {mode}, gradient", gradient, slopes)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_and_ranks_add_up_alike(assert_agrees: Agrees, mode: Mode, ranks: int) -> None:
    """verl's workers hand every micro-batch the mini-batch's counts; FSDP then takes the mean over ranks."""
    batch = MIXED.mini_batch()
    mask = batch.response_mask
    whole = {"dp_size": ranks, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask)}
    ours, theirs = torch.zeros(mask.shape).double(), torch.zeros(mask.shape).double()
    for share in torch.arange(len(mask)).chunk(ranks):
        for rows in share.split(3):
            ours[rows] = of_ours(batch.log_probs[rows], mask[rows], mode, mask)[1]
            theirs[rows] = of_verl(batch.log_probs[rows], mask[rows], mode, **whole)[1] / ranks
    assert_agrees(f"aggregation {mode}, micro-batches on {ranks} ranks, gradient", ours, theirs)
    in_one_piece = of_ours(batch.log_probs, mask, mode, mask)[1]
    torch.testing.assert_close(ours, in_one_piece)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "token-mean"])
def test_verls_workers_count_empty_responses_and_ours_do_not(assert_agrees: Agrees, mode: Mode) -> None:
    """agg_loss alone leaves them out; told the mini-batch's size, as by verl's workers, it divides by all."""
    batch = EXTREME.mini_batch()
    value, _ = of_ours(batch.log_probs, batch.response_mask, mode, batch.response_mask)
    told, _ = of_verl(batch.log_probs, batch.response_mask, mode, global_batch_size=8)
    assert_agrees(f"aggregation {mode}, empty responses, 8/6 of verl's", value, told * 8 / 6)


def test_without_a_constant_verl_divides_by_the_width_of_the_micro_batch() -> None:
    """Which depends on who else is in it; ours has no such default."""
    batch = MIXED.mini_batch()
    values, mask = batch.log_probs.masked_fill(~batch.response_mask, 0.0), batch.response_mask.long()
    wider = torch.nn.functional.pad(values, (0, 9)), torch.nn.functional.pad(mask, (0, 9))
    mode: Mode = "seq-mean-token-sum-norm"
    assert agg_loss(*wider, mode) == agg_loss(values, mask, mode) / 2
    with pytest.raises(ValueError, match="aggregation_constant is None"):
        Aggregation(mode)
