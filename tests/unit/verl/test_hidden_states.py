"""Hidden states: their memory, and what is made of them while verl's engine computes in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evals.core.random import generator_for, random_projection
from rlvr.engines.verl.hidden_states import HeadInputs, hidden_state_bytes
from rlvr.engines.verl.registered import CurrentRun
from rlvr.methods.method import compose
from tests.unit.verl.conftest import make_cluster, make_run

WIDTH = 256
QWEN3_8B = {"hidden_size": 4096}


@pytest.mark.parametrize(("method", "bytes_of_token"), [("delta", 4096 * 2), ("delta_sketched", 64 * 4), ("dapo", 0)])
def test_the_memory_of_a_paper_s_batch_at_its_longest(method: str, bytes_of_token: int) -> None:
    run, cluster = make_run(method), make_cluster(nodes=1, sequence_parallel=1)
    # 2,048 rollouts of 20,480 tokens over 8 devices, 4,096 bfloat16 numbers each: 40 GiB.
    assert hidden_state_bytes(run, cluster, compose(run.method), QWEN3_8B) == 256 * 20480 * bytes_of_token


def current_run(method: str, seed: int = 1) -> CurrentRun:
    return CurrentRun.of(make_run(method).model_copy(update={"seed": seed}), make_cluster())


def vectors() -> Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(3)).bfloat16()


@pytest.fixture
def in_bfloat16() -> torch.autocast:
    """verl's forward pass, in which the head's inputs are handed on."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_vectors_stand_in_the_order_of_the_rollouts() -> None:
    inputs = HeadInputs([4, 2], [3, 5], current_run("delta"))
    inputs.keep([2], [vectors()[3:]])
    with pytest.raises(RuntimeError, match="hidden states of 1 rollouts were not seen"):
        inputs.joined()
    inputs.keep([4], [vectors()[:3]])
    assert torch.equal(inputs.joined(), vectors())


def test_a_sketch_is_of_float32_inside_the_forward_pass() -> None:
    current = current_run("delta_sketched")
    inputs = HeadInputs([0], [8], current)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # verl's forward pass
        assert (vectors().float() @ vectors().float().T).dtype == torch.bfloat16  # what it does to a matrix product
        inputs.keep([0], [vectors()])
    dimensions = current.method.sketch_dimensions
    assert dimensions is not None
    expected = vectors().float() @ random_projection(WIDTH, dimensions, generator_for("sketch", current.run.seed))
    torch.testing.assert_close(inputs.joined(), expected)


def test_another_seed_has_another_sketch() -> None:
    found = []
    for seed in (1, 2):
        inputs = HeadInputs([0], [8], current_run("delta_sketched", seed))
        inputs.keep([0], [vectors()])
        found.append(inputs.joined())
    assert not torch.equal(*found)
