"""preflight apart from verl: which step a node does, processes that fail, what is reported, memory from shapes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from transformers import Qwen3Config

from evals.core.errors import InvalidInput
from evals.core.manifest import Manifest, hash_files
from evals.core.training_settings import Lora
from rlvr.engines.verl.estimate import device_peaks
from rlvr.engines.verl.hidden_states import HiddenStateSize
from rlvr.engines.verl.preflight import report, step_of_one_node
from tests.commands import rlvr_bench
from tests.unit.verl.conftest import CLUSTER, make_cluster, make_run, run_content

main = rlvr_bench()
MODEL = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}

MEASURED = {
    "seconds": {
        "model and optimizer": 9.0,
        "old log-probs": 1.0,
        "token weights": 0.5,
        "update 1": 2.0,
        "update 2": 2.0,
    },
    "device_bytes": {
        "model and optimizer": 1 << 30,
        "old log-probs": 3 << 30,
        "update 1": 2 << 30,
        "update 2": 2 << 30,
    },
    "host_bytes": {"model and optimizer": 5 << 20, "old log-probs": 5 << 20, "update 1": 5 << 20, "update 2": 5 << 20},
}


def test_two_micro_batches_of_the_longest_rollouts_make_an_update_on_every_rank() -> None:
    run, cluster = make_run(), make_cluster(nodes=2, tokens_per_device=24576)  # 2 devices share 2 rollouts at a time
    step, node = step_of_one_node(run, cluster, None)
    assert node == cluster.model_copy(update={"nodes": 1}) and node.data_parallel == 4
    assert step.training.rollouts_per_update // node.data_parallel == 4
    assert step.training.updates_per_step == 2
    small = make_run(prompts_per_step=4, samples_per_prompt=8)  # 8 rollouts an update, of 8 ranks
    assert step_of_one_node(small, cluster, None)[0].training.samples_per_prompt == 1
    with pytest.raises(InvalidInput, match="a divisor of gpus_per_node, 4"):
        step_of_one_node(run, make_cluster(gpus_per_node=4, nodes=2, sequence_parallel=8), None)


@pytest.mark.parametrize(("tokens", "place"), [(1000, "device"), (2_000_000, "host"), (20_000_000, "recomputed")])
def test_the_few_hidden_states_of_the_step_go_where_those_of_the_run_go(tokens: int, place: str) -> None:
    cluster = make_cluster()
    real = HiddenStateSize(tokens, 4096, 2)
    assert real.place(cluster) == place
    node = step_of_one_node(make_run(), cluster, real)[1]
    assert HiddenStateSize(4 * 20480, 4096, 2).place(node) == place


def test_the_report_has_every_part_of_every_device() -> None:
    other = {**MEASURED, "seconds": {**MEASURED["seconds"], "update 2": 4.0}}
    cluster, run = make_cluster(nodes=2, gpus_per_node=2, sequence_parallel=1, tokens_per_device=24576), make_run()
    hidden = HiddenStateSize(2_000_000, 4096, 2)
    told = report(run, cluster, step_of_one_node(run, cluster, hidden)[0], [MEASURED, other], hidden)
    lines = told.splitlines()
    assert "two updates of 2 rollouts of 2048 + 20480 tokens on each data-parallel rank" in lines[0]
    assert "kept in host memory" in lines[1]
    assert sum("device 0" in line for line in lines) == sum("device 1" in line for line in lines) == 5
    # 1 s for the log-probs of 4 rollouts, 0.5 s for their weights, and twice 4 s for updates on 2.
    assert "by that, 1216.0 s for a whole step of 512 such rollouts" in told
    assert "largest memory of a device: 3072 MiB" in told and "on 2 nodes each device holds less" in told


def test_memory_is_counted_from_shapes_on_a_machine_without_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of the run but its two files is there: no base model, no verl, no GPU."""
    model = {**MODEL, "vocab_size": 151936, "num_hidden_layers": 2, "intermediate_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(model))
    (tmp_path / "run.json").write_text(json.dumps(run_content()))
    found = {}
    for tokens, devices, budget in ((22528, 4, 8192), (22528, 2, 8192), (45056, 4, 8192), (22528, 4, 0)):
        cluster = {**CLUSTER, "nodes": 1, "gpus_per_node": devices, "sequence_parallel": 1}
        cluster["hidden_state_budget"] = budget
        cluster |= {"tokens_per_device": tokens, "rollout_tensor_parallel": 1}
        (tmp_path / "cluster.json").write_text(json.dumps(cluster))
        words = ["verl", "preflight", str(tmp_path / "run.json"), "--without-devices"]
        assert main([*words, "--model-config", str(tmp_path / "config.json")]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [line.rsplit(maxsplit=2) for line in lines if line.endswith(" GiB")]
        found[tokens, devices, budget] = {name.strip(): float(size) for name, size, _ in rows}
        *_, mean, longest = lines
        place = "kept in the device's memory" if budget else "kept in host memory"
        assert mean.startswith("with responses of 35% of the longest, hidden states of ") and place in mean
        assert longest.startswith("with responses of 100% of the longest, hidden states of ")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2 and "--model-config" in capsys.readouterr().err
    assert main([*words[:3], "--model-config", "config.json"]) == 2
    few, halved, doubled, elsewhere = (each["at most, update"] for each in found.values())
    kept, not_kept = (found[22528, 4, budget] for budget in (8192, 0))
    in_log_probs = kept["at most, old log-probs"] - not_kept["at most, old log-probs"]
    assert in_log_probs == pytest.approx(kept["hidden states"], abs=0.11) and elsewhere == few
    assert kept["hidden states"] == pytest.approx(512 * 0.35 * 20480 * 64 * 2 / 2**30, abs=0.06)
    assert "hidden states" not in not_kept
    logits = 22528 * 151936 * 2 / 2**30
    assert few >= logits and doubled == pytest.approx(
        2 * few, rel=0.1
    )  # activations are nearly all of so small a model
    assert halved >= few


def test_the_memory_of_weights_and_optimizer_is_shared_out() -> None:
    model = Qwen3Config(**{**MODEL, "vocab_size": 1000, "num_hidden_layers": 2, "intermediate_size": 128})
    parameters = 2 * 1000 * 64 + 2 * (64 * 128 * 3 + 64 * 64 * 2 + 2 * 64 * 32 + 2 * 64 + 2 * 32) + 64
    two, four = (device_peaks(model, 64, devices, "bfloat16") for devices in (2, 4))
    assert two.weights == pytest.approx(4 * parameters / 2, rel=0.05)
    assert four.weights == pytest.approx(4 * parameters / 4, rel=0.05)
    assert four.optimizer == 2 * four.weights
    assert two.update >= 0.99 * (two.weights + two.optimizer + 4 * parameters / 2)  # and gradients


def test_adapters_have_the_optimizer_and_the_gradients_for_themselves() -> None:
    model = Qwen3Config(**{**MODEL, "vocab_size": 1000, "num_hidden_layers": 2, "intermediate_size": 128})
    asked = {"rank": 8, "alpha": 16, "target_modules": ["q_proj", "down_proj"]}
    alone, adapted = (device_peaks(model, 64, 2, "bfloat16", lora) for lora in (None, Lora.parse(asked, "lora")))
    wide = model.num_attention_heads * model.head_dim
    trained = 2 * 8 * (model.hidden_size + wide + 128 + model.hidden_size)
    assert adapted.optimizer == pytest.approx(8 * trained / 2, rel=0.05)
    assert adapted.weights == pytest.approx(alone.weights + 4 * trained / 2, rel=0.01)
    assert adapted.update < alone.update - 0.8 * alone.optimizer


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


def test_validation_says_where_the_hidden_states_of_the_model_go(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlvr.engines.verl.checks.compose_config", lambda launch: None)  # verl's own check
    assert main(["verl", "validate", str(run_file)]) == 0
    accepted, mean, longest = capsys.readouterr().out.splitlines()
    assert accepted == "qwen3_8b-delta-s1: verl accepts the launch"
    for share, said in ((35, mean), (100, longest)):
        tokens = 1024 * 20480 * share // 100
        assert said.startswith(f"qwen3_8b-delta-s1: with responses of {share}% of the longest, ")
        assert f"hidden states of {tokens} tokens a device" in said


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
