"""Misfits that verl would find in a remote worker, hours later or never."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import UserError
from rlvr.engines.verl.checks import check
from rlvr.study.catalogue import load_catalogue
from tests.unit.verl.conftest import make_cluster, make_run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_config(tmp_path, max_position_embeddings=32768, num_attention_heads=32)
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def write_config(directory: Path, **content: Any) -> None:
    (directory / "config.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("name", sorted(load_catalogue()))
def test_every_method_passes(name: str, checkpoint: Path) -> None:
    check(make_run(name), make_cluster(), checkpoint)


@pytest.mark.parametrize(
    ("training", "cluster", "message"),
    [
        ({"updates_per_step": 3}, {}, "a divisor of prompts_per_step, 128"),
        (
            {"prompts_per_step": 4, "samples_per_prompt": 3},
            {},
            "has 3 rollouts .* multiple of the 8 data-parallel ranks",
        ),
        ({"warmup_updates": 10}, {}, "a multiple of updates_per_step, 4"),
        ({}, {"gpus_per_node": 3}, "rollout_tensor_parallel: is 4; accepted: a divisor of 6 devices"),
        (
            {},
            {"gpus_per_node": 6, "nodes": 2},
            "rollout_tensor_parallel: is 4; accepted: a divisor or a multiple of gpus_per_node, 6",
        ),
        ({}, {"nodes": 0}, "nodes: is 0; accepted: 1 or more"),
        ({}, {"checkpoint_interval": -1}, "checkpoint_interval: is -1"),
        ({}, {"checkpoints_kept": 1}, "2 or more, so that a damaged one"),
        ({}, {"tokens_per_device": 8192}, "tokens_per_device: is 8192; accepted: at least 11264"),
        ({"max_new_tokens": 30721}, {"tokens_per_device": 20000}, "is 32769; accepted: at most 32768, the context of"),
        ({}, {"platform": "cpu"}, "sequence_parallel: is more than 1 with platform cpu"),
        ({}, {"gpu_memory_utilization": 7.0}, "cluster: gpu_memory_utilization: is 7.0; accepted: above 0, at most 1"),
        ({}, {"gpu_memory_utilization": 0.0}, "cluster: gpu_memory_utilization: is 0.0"),
        ({}, {"grading_workers": 0}, "cluster: grading_workers: is 0; accepted: 1 or more"),
        ({}, {"hidden_state_budget": -1}, "cluster: hidden_state_budget: is -1; accepted: 0 or more"),
        ({"temperature": 0.0}, {}, "training: temperature: is 0.0; accepted: above 0"),
        ({"learning_rate": float("nan")}, {}, "training: learning_rate: is nan; accepted: above 0"),
        ({"warmup_updates": -4}, {}, "training: warmup_updates: is -4; accepted: 0 or more"),
    ],
)
def test_a_misfit_ends_in_one_line(
    training: dict[str, Any], cluster: dict[str, Any], message: str, checkpoint: Path
) -> None:
    with pytest.raises(UserError, match=message) as error:
        check(make_run("delta", **training), make_cluster(**cluster), checkpoint)
    assert "\n" not in str(error.value)


def test_unequal_mini_batches_of_a_loss_that_couples_rollouts_are_refused() -> None:
    separated = make_run("dapo_sign_separated").method["batching"]
    run = make_run("fipo")
    with pytest.raises(UserError, match=r"method fipo: mini-batches of unequal sizes .* and a loss that couples"):
        check(dataclasses.replace(run, method={**run.method, "batching": separated}), make_cluster(), None)


def test_a_model_that_is_none_or_brings_code_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no config\.json"):
        check(make_run(), make_cluster(), tmp_path / "nothing")
    write_config(checkpoint, num_attention_heads=6, max_position_embeddings=32768)
    with pytest.raises(UserError, match="rollout_tensor_parallel: is 4; accepted: a divisor of the model's 6"):
        check(make_run(), make_cluster(), checkpoint)
    write_config(checkpoint, auto_map={"AutoConfig": "x.Y"})
    with pytest.raises(UserError, match="brings code of its own"):
        check(make_run(), make_cluster(), checkpoint)
    write_config(checkpoint)
    # verl's reward workers load the tokenizer with code of others allowed; it may even lie in another repository.
    tokenizer = checkpoint / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({"auto_map": {"AutoTokenizer": ["someone/else--code.Tokenizer", None]}}))
    with pytest.raises(UserError, match=r"tokenizer_config\.json: brings code of its own"):
        check(make_run(), make_cluster(), checkpoint)
    tokenizer.unlink()
    (checkpoint / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"config\.json: is no JSON object"):
        check(make_run(), make_cluster(), checkpoint)
    write_config(checkpoint)
    (checkpoint / "tokenization.py").write_text("")
    with pytest.raises(UserError, match="brings code of its own"):
        check(make_run(), make_cluster(), checkpoint)
    (checkpoint / "tokenization.py").unlink()
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"holds no \.safetensors file"):
        check(make_run(), make_cluster(), checkpoint)
