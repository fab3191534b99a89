"""preflight apart from verl: whose share of the batch a node does, processes that fail, what is reported."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from evals.core.errors import InvalidInput
from evals.core.manifest import Manifest, hash_files
from rlvr.engines.verl.preflight import report, share_of_one_node
from tests.commands import rlvr_bench
from tests.unit.verl.conftest import CLUSTER, make_cluster, make_run, run_content

main = rlvr_bench()

MEASURED = {
    "seconds": {"model and optimizer": 9.0, "old log-probs": 1.0, "token weights": 0.5, "update 1": 2.0},
    "device_bytes": {"model and optimizer": 1 << 30, "old log-probs": 3 << 30, "update 1": 2 << 30},
    "host_bytes": {"model and optimizer": 5 << 20, "old log-probs": 5 << 20, "update 1": 5 << 20},
}


def test_a_node_does_the_share_of_its_ranks() -> None:
    run, cluster = make_run(), make_cluster(nodes=2)  # 2,048 rollouts on 8 ranks of 2 devices each
    node_run, node = share_of_one_node(run, cluster)
    assert node.nodes == 1 and node.data_parallel == 4
    assert node_run.training.rollouts_per_step // node.data_parallel == 2048 // cluster.data_parallel == 256
    assert share_of_one_node(run, make_cluster(nodes=1))[0] == run


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a divisor of gpus_per_node, 4"):
        share_of_one_node(make_run(), make_cluster(gpus_per_node=4, nodes=2, sequence_parallel=8))
    run = make_run(prompts_per_step=3, updates_per_step=1)  # a prompt and a half a node
    with pytest.raises(InvalidInput, match="24 rollouts; accepted: whole prompts of 16"):
        share_of_one_node(run, make_cluster(nodes=2))


def test_the_report_has_every_part_of_every_device() -> None:
    other = {**MEASURED, "seconds": {**MEASURED["seconds"], "update 1": 4.0}}
    cluster = make_cluster(nodes=2, gpus_per_node=2, sequence_parallel=1)
    told = report(share_of_one_node(make_run(), cluster)[0], cluster, [MEASURED, other])
    lines = told.splitlines()
    assert "one step of 512 rollouts of 2048 + 20480 tokens on each data-parallel rank" in lines[0]
    assert sum("device 0" in line for line in lines) == sum("device 1" in line for line in lines) == 4
    assert "one step without its rollouts: 5.5 s; largest memory of a device: 3072 MiB" in told
    assert "on 2 nodes each device holds less" in told


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run on this machine, with a base model that is none but passes what is looked at before verl is."""
    base = tmp_path / "results" / "base" / "qwen3_8b"
    checkpoint = base / "checkpoint"
    checkpoint.mkdir(parents=True)
    content = {"max_position_embeddings": 32768, "num_attention_heads": 8, "hidden_size": 64}
    (checkpoint / "config.json").write_text(json.dumps(content))
    (checkpoint / "model.safetensors").write_bytes(b"")
    outputs = hash_files(base, checkpoint / "config.json", checkpoint / "model.safetensors")
    Manifest(kind="base_model", inputs={}, outputs=outputs, parameters={}, fingerprint="f").write(
        base / "manifest.json"
    )
    cluster = {
        **CLUSTER,
        "platform": "cpu",
        "nodes": 1,
        "gpus_per_node": 2,
        "sequence_parallel": 1,
        "rollout_tensor_parallel": 1,
        "tokens_per_device": 30000,
    }
    (tmp_path / "run.json").write_text(json.dumps(run_content()))
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    return tmp_path / "run.json"


def python_that(tmp_path: Path, script: str) -> str:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_a_process_that_fails_ends_the_others_and_is_quoted(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = (
        "if [ $RANK = 0 ]; then exec sleep 3000; fi\necho 'torch.OutOfMemoryError: CUDA out of memory.' >&2\nexit 1"
    )
    started = time.monotonic()
    assert main(["verl", "preflight", str(run_file), "--python", python_that(tmp_path, script)]) == 2
    assert time.monotonic() - started < 600
    error = capsys.readouterr().err
    assert "preflight: device 1: torch.OutOfMemoryError: CUDA out of memory." in error and error.count("\n") == 1
    assert "tokens_per_device" in error and str(tmp_path / "verl" / "preflight" / "rank1.log") in error


def test_what_the_processes_measured_is_told(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = f"echo '{json.dumps(MEASURED)}' > $3/rank$RANK.json"
    assert main(["verl", "preflight", str(run_file), "--python", python_that(tmp_path, script)]) == 0
    assert "largest memory of a device: 3072 MiB" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "verl" / "preflight" / "measured.json").read_text())) == 2


def test_a_model_that_is_no_checkpoint_is_said_before_anything_starts(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "base" / "qwen3_8b" / "checkpoint" / "model.safetensors").write_bytes(b"other weights")
    for command in (["verl", "preflight"], ["train"]):
        assert main([*command, str(run_file), "--python", python_that(tmp_path, "exit 1")]) == 2
        error = capsys.readouterr().err
        assert "model.safetensors" in error and error.count("\n") == 1
    (tmp_path / "results" / "base" / "qwen3_8b" / "manifest.json").unlink()
    assert main(["train", str(run_file), "--python", python_that(tmp_path, "exit 1")]) == 2
    error = capsys.readouterr().err
    assert "manifest.json: no such file" in error and error.count("\n") == 1
