"""Hidden states: where they go, and what is made of them while verl's engine computes in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evals.core.random import generator_for, random_projection
from rlvr.engines.verl.hidden_states import HeadInputs, HiddenStateSize, hidden_state_size
from rlvr.engines.verl.registered import CurrentRun
from rlvr.methods.method import compose
from tests.unit.verl.conftest import make_cluster, make_run, run_content

WIDTH = 256
QWEN3_8B = {"hidden_size": 4096}


@pytest.mark.parametrize(
    ("device_mib", "node_mib", "place"),
    [(8, 0, "device"), (7, 64, "host"), (7, 63, "recomputed"), (0, 0, "recomputed")],
)
def test_the_budgets_decide(device_mib: int, node_mib: int, place: str) -> None:
    size = HiddenStateSize(tokens=1024, width=4096, itemsize=2)  # 8 MiB a device, 64 MiB on a node of eight
    cluster = make_cluster(hidden_state_budget=device_mib, hidden_state_host_budget=node_mib)
    assert size.of_device == 8 << 20 and size.of_node(cluster) == 64 << 20
    assert size.place(cluster) == place
    assert "\n" not in size.description(cluster)


def test_the_paper_s_batch_at_its_hidden_state_size() -> None:
    run, cluster = make_run("delta"), make_cluster(nodes=1, sequence_parallel=1)
    size = hidden_state_size(run, cluster, compose(run.method), QWEN3_8B, 1.0)
    assert size is not None
    # 2,048 rollouts of 20,480 tokens over 8 devices, 4,096 bfloat16 numbers each: 320 GiB.
    assert size.of_node(cluster) == 2048 * 20480 * 4096 * 2 == 320 << 30
    assert size.place(cluster) == "recomputed"
    assert size.place(make_cluster(nodes=1, hidden_state_host_budget=320 << 10)) == "host"


def test_devices_that_share_sequences_keep_copies() -> None:
    run, method = make_run("delta"), compose(run_content("delta")["method"])
    alone, shared = make_cluster(nodes=1, sequence_parallel=1), make_cluster(nodes=1, sequence_parallel=2)
    one, two = (hidden_state_size(run, cluster, method, QWEN3_8B, 1.0) for cluster in (alone, shared))
    assert one is not None and two is not None
    assert two.of_node(shared) == 2 * one.of_node(alone)


def test_a_sketch_is_what_is_kept() -> None:
    run = make_run("delta_sketched")
    size = hidden_state_size(run, make_cluster(), compose(run.method), QWEN3_8B, 1.0)
    assert size is not None and (size.width, size.itemsize) == (64, 4)
    plain = make_run("dapo")
    assert hidden_state_size(plain, make_cluster(), compose(plain.method), QWEN3_8B, 1.0) is None


def current_run(method: str, seed: int = 1) -> CurrentRun:
    return CurrentRun.of(make_run(method).model_copy(update={"seed": seed}), make_cluster())


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

    inputs = HeadInputs({0: (0, 8)}, current_run("delta"), read)
    with in_bfloat16:
        assert (weights @ vectors().float()).dtype == torch.bfloat16  # what autocast does to a matrix product
        inputs.give([0], [vectors()])
    torch.testing.assert_close(found[0], weights @ vectors().float())


def test_a_sketch_is_of_float32_inside_the_forward_pass(in_bfloat16: torch.autocast) -> None:
    current, found = current_run("delta_sketched"), []
    inputs = HeadInputs({0: (0, 8)}, current, lambda at, rows: found.append(rows))
    with in_bfloat16:
        inputs.give([0], [vectors()])
    dimensions = current.method.sketch_dimensions
    assert dimensions is not None
    expected = vectors().float() @ random_projection(WIDTH, dimensions, generator_for("sketch", current.run.seed))
    torch.testing.assert_close(found[0], expected)


def test_another_seed_has_another_sketch() -> None:
    found = []
    for seed in (1, 2):
        current = current_run("delta_sketched", seed)
        HeadInputs({0: (0, 8)}, current, lambda at, rows: found.append(rows)).give([0], [vectors()])
    assert not torch.equal(*found)
