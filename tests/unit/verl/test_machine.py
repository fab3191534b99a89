"""Too few GPUs, and a Ray that is not the one that is meant, are said before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from evals.core.errors import UserError
from rlvr.engines.verl.machine import answers, check_ray, registered_ray, require_gpus
from tests.unit.verl.conftest import make_cluster


def test_too_few_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'GPU 0: A\\nGPU 1: B\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    require_gpus(make_cluster(nodes=1, gpus_per_node=2, rollout_tensor_parallel=2))
    require_gpus(make_cluster(nodes=1, platform="cpu", sequence_parallel=1))
    with pytest.raises(UserError, match="gpus_per_node: is 8; accepted here: 2 at most"):
        require_gpus(make_cluster(nodes=1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UserError, match="accepted here: 1 at most"):
        require_gpus(make_cluster(nodes=1, gpus_per_node=2, rollout_tensor_parallel=2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as people hide all of them
    with pytest.raises(UserError, match="accepted here: 0 at most"):
        require_gpus(make_cluster(nodes=1, gpus_per_node=2, rollout_tensor_parallel=2))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="accepted here: 0 at most"):
        require_gpus(make_cluster(nodes=1, gpus_per_node=2, rollout_tensor_parallel=2))


def test_ray_is_the_one_that_is_meant() -> None:
    one, two = make_cluster(nodes=1), make_cluster(nodes=2)

    def check(cluster: object, address: str | None, registered: str | None = None, up: bool = True) -> None:
        environment = {} if address is None else {"RAY_ADDRESS": address}
        check_ray(cluster, environment, registered, lambda host, port: up)  # type: ignore[arg-type]

    check(one, None)
    check(two, "10.0.0.1:6379")
    check(two, "[fe80::1]:6379")
    check(two, "auto", registered="10.0.0.1:6379")
    for cluster, address, registered, up, message in (
        (two, None, None, True, "nodes: is 2, and RAY_ADDRESS is not set"),
        (one, None, "10.0.0.1:6379", True, r"session that was started before is registered .*`ray stop` ends it"),
        (two, "10.0.0.1:6379", None, False, "nothing answers at 10.0.0.1:6379"),
        (two, "ray://a/b", None, True, "RAY_ADDRESS: is 'ray://a/b'; accepted: HOST:PORT"),
        (make_cluster(nodes=1, platform="cpu", sequence_parallel=1), "auto", None, True, "with platform cpu.*unset"),
    ):
        with pytest.raises(UserError, match=message) as error:
            check(cluster, address, registered, up)
        assert "\n" not in str(error.value)


def test_a_registered_ray_is_found_where_ray_leaves_it(tmp_path: Path) -> None:
    assert registered_ray({"TMPDIR": str(tmp_path)}) is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert registered_ray({"TMPDIR": str(tmp_path)}) == "10.0.0.1:6379"
    assert registered_ray({"RAY_TMPDIR": str(tmp_path), "TMPDIR": "/nowhere"}) == "10.0.0.1:6379"


def test_a_port_answers_or_does_not() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        listening.listen()
        assert answers("127.0.0.1", port)
    assert not answers("127.0.0.1", port)
    assert not answers("127.0.0.1", 99999)
