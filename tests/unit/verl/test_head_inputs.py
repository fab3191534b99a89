"""What is made of the language-model head's inputs while verl's engine computes in bfloat16."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from evals.core.random import generator_for, random_projection
from rlvr.engines.verl.head_inputs import HeadInputs
from rlvr.engines.verl.registered import RegisteredAdvantage, RegisteredLoss
from rlvr.engines.verl.this_run import ThisRun
from rlvr.methods.method import compose
from tests.unit.verl.conftest import make_cluster, make_run

WIDTH = 256


def this_run(method: str) -> ThisRun:
    run = make_run(method)
    pieces = compose(run.method)
    loss = RegisteredLoss(pieces.loss, pieces.aggregation)
    return ThisRun(run, make_cluster(), pieces, loss, RegisteredAdvantage(pieces, 8))


def vectors() -> Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(3)).bfloat16()


@pytest.fixture
def in_bfloat16() -> torch.autocast:
    """verl's forward pass, in which the head's inputs are handed on."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_a_reading_sums_in_float32_inside_the_forward_pass(in_bfloat16: torch.autocast) -> None:
    weights, found = torch.rand(8, generator=torch.Generator().manual_seed(4)), []

    def read(at: Tensor, rows: Tensor) -> None:
        found.append(weights[at] @ rows.float())

    inputs = HeadInputs({0: (0, 8)}, this_run("delta"), read)
    with in_bfloat16:
        assert (weights @ vectors().float()).dtype == torch.bfloat16  # what autocast does to a matrix product
        inputs.give([0], [vectors()])
    torch.testing.assert_close(found[0], weights @ vectors().float())


def test_a_sketch_is_of_float32_inside_the_forward_pass(in_bfloat16: torch.autocast) -> None:
    ours, found = this_run("delta_sketched"), []
    inputs = HeadInputs({0: (0, 8)}, ours, lambda at, rows: found.append(rows))
    with in_bfloat16:
        inputs.give([0], [vectors()])
    dimensions = ours.method.sketch_dimensions
    assert dimensions is not None
    expected = vectors().float() @ random_projection(WIDTH, dimensions, generator_for("sketch", ours.run.seed))
    torch.testing.assert_close(found[0], expected)


def test_another_seed_has_another_sketch() -> None:
    found = []
    for seed in (1, 2):
        ours = this_run("delta_sketched")
        ours = dataclasses.replace(ours, run=ours.run.model_copy(update={"seed": seed}))
        HeadInputs({0: (0, 8)}, ours, lambda at, rows: found.append(rows)).give([0], [vectors()])
    assert not torch.equal(*found)
