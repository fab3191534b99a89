"""Hidden states: where they stand, and what is made of them while verl's engine computes in bfloat16."""

import pytest
import torch
from torch import Tensor

from evals.core.random import generator_for, random_projection
from rlvr.engines.verl.gathering import HeadInputs
from rlvr.engines.verl.registered import CurrentRun, Field, nested
from tests.unit.verl.conftest import make_cluster, make_run

WIDTH = 256


def current_run(method: str, seed: int = 1) -> CurrentRun:
    return CurrentRun.of(make_run(method).model_copy(update={"seed": seed}), make_cluster())


def vectors() -> Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(3)).bfloat16()


def see(inputs: HeadInputs, rows: list[int], responses: list[Tensor]) -> None:
    """A padded micro-batch of the rollouts at ``rows``: a prompt of one token, then what predicts the responses."""
    sequences = [torch.cat([response, torch.zeros(1, WIDTH)]).to(response.dtype) for response in responses]
    inputs.see(None, (torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True),))
    micro_batch = {
        "input_ids": nested([torch.zeros(len(sequence)) for sequence in sequences]),
        "responses": nested([torch.zeros(len(response)) for response in responses]),
        Field.ROW: torch.tensor(rows),
    }
    inputs.keep(micro_batch, {}, lambda seen, padding: seen)


def test_vectors_stand_in_the_order_of_the_rollouts() -> None:
    inputs = HeadInputs([4, 2], [3, 5], current_run("delta"))
    see(inputs, [2], [vectors()[3:]])
    with pytest.raises(RuntimeError, match="hidden states of 1 rollouts were not seen"):
        inputs.joined()
    see(inputs, [4], [vectors()[:3]])
    assert torch.equal(inputs.joined(), vectors())
    inputs = HeadInputs([4, 2], [3, 5], current_run("delta"))
    see(inputs, [2, 4], [vectors()[3:], vectors()[:3]])
    assert torch.equal(inputs.joined(), vectors())


def test_a_head_that_is_not_called_is_an_error() -> None:
    inputs = HeadInputs([0], [8], current_run("delta"))
    with pytest.raises(RuntimeError, match="the language-model head was not called"):
        inputs.keep({}, {}, lambda seen, padding: seen)


def test_a_sketch_is_of_float32_inside_the_forward_pass() -> None:
    current = current_run("delta_sketched")
    inputs = HeadInputs([0], [8], current)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # verl's forward pass
        assert (vectors().float() @ vectors().float().T).dtype == torch.bfloat16  # what it does to a matrix product
        see(inputs, [0], [vectors()])
    dimensions = current.method.sketch_dimensions
    assert dimensions is not None
    expected = vectors().float() @ random_projection(WIDTH, dimensions, generator_for("sketch", current.run.seed))
    torch.testing.assert_close(inputs.joined(), expected)


def test_another_seed_has_another_sketch() -> None:
    sketches = []
    for seed in (1, 2):
        inputs = HeadInputs([0], [8], current_run("delta_sketched", seed))
        see(inputs, [0], [vectors()])
        sketches.append(inputs.joined())
    assert not torch.equal(*sketches)
