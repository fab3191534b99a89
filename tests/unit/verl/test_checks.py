"""Misfits that verl would find in a remote worker, hours later or never."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from evals.core.errors import InvalidInput, UserError
from rlvr.engines.verl.checks import check
from rlvr.study.catalogue import load_catalogue
from tests.unit.verl.conftest import make_cluster, make_run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_config(tmp_path, max_position_embeddings=32768)
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def write_config(directory: Path, **content: Any) -> None:
    (directory / "config.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("name", sorted(load_catalogue()))
def test_every_method_passes(name: str, checkpoint: Path) -> None:
    if name == "dapo_sign_separated":
        with pytest.raises(
            InvalidInput, match=r"makes mini-batches of unequal sizes; accepted: with engine local alone"
        ):
            check(make_run(name), make_cluster(), checkpoint)
        return
    check(make_run(name), make_cluster(tokens_per_device=22528), checkpoint)


@pytest.mark.parametrize(
    ("extended", "key", "message"),
    [
        ("dapo_dynamic_sampling", "batching.selection", "is there"),
        ("delta", "token_weights", "are of hidden states"),
    ],
)
def test_nothing_needs_a_penalised_reward_before_verl_has_it(extended: str, key: str, message: str) -> None:
    """Its workers score the reference policy after the selection, and after the token weights are computed."""
    term = {"name": "reward_term", "coefficient": 0.001, "estimator": "k1"}
    run = make_run(extended)
    with_term = run.model_copy(update={"method": {**run.method, "kl": term}})
    with pytest.raises(InvalidInput, match=f"{message}; accepted: none beside kl: reward_term") as error:
        check(with_term, make_cluster(), None)
    assert error.value.key == key
    in_loss = {**term, "name": "loss_term"}
    check(run.model_copy(update={"method": {**run.method, "kl": in_loss}}), make_cluster(), None)


@pytest.mark.parametrize(
    ("training", "cluster", "key", "accepted"),
    [
        ({"updates_per_step": 3}, {}, "training.updates_per_step", "a divisor of prompts_per_step"),
        ({"prompts_per_step": 4, "samples_per_prompt": 3}, {}, "training", "multiple of the 8 data-parallel ranks"),
        ({"warmup_updates": -4}, {}, "training.warmup_updates", "at least 0"),
        ({"temperature": 0.0}, {}, "training.temperature", "above 0"),
        ({"learning_rate": float("nan")}, {}, "training.learning_rate", "a finite number"),
        ({"max_new_tokens": 30721}, {"tokens_per_device": 20000}, "training", "at most 32768, the context of"),
        ({}, {"gpus_per_node": 3}, "rollout_tensor_parallel", "a divisor of 6 devices"),
        ({}, {"gpus_per_node": 6, "nodes": 2}, "rollout_tensor_parallel", "a multiple of gpus_per_node, 6"),
        ({}, {"nodes": 0}, "nodes", "at least 1"),
        ({}, {"checkpoint_interval": -1}, "checkpoint_interval", "at least 1"),
        ({}, {"checkpoints_kept": 1}, "checkpoints_kept", "at least 2"),
        ({}, {"tokens_per_device": 8192}, "tokens_per_device", "at least 11264"),
        ({}, {"gpu_memory_utilization": 7.0}, "gpu_memory_utilization", "at most 1"),
        ({}, {"gpu_memory_utilization": 0.0}, "gpu_memory_utilization", "above 0"),
        ({}, {"grading_workers": 0}, "grading_workers", "at least 1"),
    ],
)
def test_a_misfit_ends_in_one_line(
    training: dict[str, Any], cluster: dict[str, Any], key: str, accepted: str, checkpoint: Path
) -> None:
    with pytest.raises(InvalidInput) as error:
        check(make_run("delta", **training), make_cluster(**cluster), checkpoint)
    assert error.value.key == key and accepted in str(error.value) and "\n" not in str(error.value)


def test_adapters_are_asked_for_by_names_of_the_model_s_weights(checkpoint: Path) -> None:
    names = ("self_attn.q_proj", "mlp.up_proj", "input_layernorm")
    weights = {f"model.layers.0.{name}.weight": np.zeros((2, 2)) for name in names}
    save_file({**weights, "lm_head.weight": np.zeros((2, 2))}, checkpoint / "model.safetensors")
    cluster, lora = make_cluster(tokens_per_device=22528), {"rank": 4, "alpha": 8}
    check(make_run(lora=lora), cluster, checkpoint)
    check(make_run(lora={**lora, "target_modules": ["q_proj", "up_proj"]}), cluster, checkpoint)
    for name in ("lm_head", "kv_proj"):
        with pytest.raises(InvalidInput, match="accepted: all-linear, or some of q_proj, up_proj") as error:
            check(make_run(lora={**lora, "target_modules": ["q_proj", name]}), cluster, checkpoint)
        assert error.value.key == "training.lora.target_modules" and repr(name) in str(error.value)


def test_a_model_that_is_none_or_brings_code_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no config\.json"):
        check(make_run(), make_cluster(), tmp_path / "nothing")
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
