"""Where hidden states go is arithmetic on two budgets, the same on every rank."""

from __future__ import annotations

import pytest

from rlvr.engines.verl.hidden_state_place import HiddenStateSize, longest
from rlvr.methods.method import compose
from tests.unit.verl.conftest import make_cluster, make_run, run_content

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
    assert "\n" not in size.told(cluster)


def test_the_paper_s_batch_at_its_longest() -> None:
    run, cluster = make_run("delta"), make_cluster(nodes=1, sequence_parallel=1)
    size = longest(run, cluster, compose(run.method), QWEN3_8B)
    assert size is not None
    # 2,048 rollouts of 20,480 tokens over 8 devices, 4,096 bfloat16 numbers each: 320 GiB.
    assert size.of_node(cluster) == 2048 * 20480 * 4096 * 2 == 320 << 30
    assert size.place(cluster) == "recomputed"
    assert size.place(make_cluster(nodes=1, hidden_state_host_budget=320 << 10)) == "host"


def test_devices_that_share_sequences_keep_copies() -> None:
    run, method = make_run("delta"), compose(run_content("delta")["method"])
    alone, shared = make_cluster(nodes=1, sequence_parallel=1), make_cluster(nodes=1, sequence_parallel=2)
    one, two = (longest(run, cluster, method, QWEN3_8B) for cluster in (alone, shared))
    assert one is not None and two is not None
    assert two.of_node(shared) == 2 * one.of_node(alone)


def test_a_sketch_is_what_is_kept() -> None:
    run = make_run("delta_sketched")
    size = longest(run, make_cluster(), compose(run.method), QWEN3_8B)
    assert size is not None and (size.width, size.itemsize) == (64, 4)
    plain = make_run("dapo")
    assert longest(plain, make_cluster(), compose(plain.method), QWEN3_8B) is None
