"""Families of models that the batched decoder does not know: they are sampled and trained by transformers."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BloomConfig,
    FalconMambaConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    MambaConfig,
    MistralConfig,
    MptConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedConfig,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, sha256_file, write_json, write_jsonl, write_text
from evals.core.manifest import verify_outputs
from evals.core.sampling import SamplingParameters
from evals.generation.backend import BackendSettings, Request, load_backend
from evals.generation.checkpoint import UNLIMITED, Checkpoint, import_model, load_tokenizer
from rlvr.engines.local.fine_tune import _examples_of
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.policy import load_policy, same_bytes, score_in_chunks, token_log_probs
from rlvr.engines.local.rollout import RolloutSampler
from rlvr.engines.local.train import train
from tests.unit.engine.conftest import EXECUTION, MakeRun, import_pretrained

FAMILIES: list[tuple[type[PreTrainedConfig], dict[str, Any], int]] = [
    (GPT2Config, {}, 64),
    (BloomConfig, {}, UNLIMITED),
    (GPTNeoXConfig, {}, 64),
    (MistralConfig, {"num_key_value_heads": 2, "sliding_window": 6}, 64),
    (OPTConfig, {"ffn_dim": 48, "word_embed_proj_dim": 32}, 64),
    (PhiConfig, {}, 64),
    (MptConfig, {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 48}, 48),
    (Gemma3TextConfig, {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}, 64),
]


@pytest.mark.parametrize(("kind", "changes", "context"), FAMILIES, ids=[kind.model_type for kind, _, _ in FAMILIES])
def test_a_family_is_sampled_and_trained(
    kind: type[PreTrainedConfig], changes: dict[str, Any], context: int, tmp_path: Path
) -> None:
    base = import_pretrained(tmp_path, kind, **changes)
    checkpoint = Checkpoint(base / "checkpoint")
    if context != 64:  # files of these families have no such key
        content = dict(read_json(checkpoint.directory / "config.json"))
        del content["max_position_embeddings"]
        write_json(checkpoint.directory / "config.json", content)
    assert checkpoint.context_length(None) == context and checkpoint.context_length(7) == 7
    policy, prompts = load_policy(checkpoint, "cpu"), {"1": [3, 4, 5, 6, 7, 8], "2": [6, 7]}
    sampler = RolloutSampler(
        checkpoint.tokenizer, prompts, 2, SamplingParameters(max_new_tokens=8), checkpoint.end_tokens
    )
    problems = [{"problem": text, "answer": "1"} for text in prompts]
    rollouts = sampler.roll_out(policy.sampler(), problems, "rollout/1/0", 0)
    scored = token_log_probs(policy, rollouts.tokens, 1.0)
    mask = rollouts.tokens.response_mask
    torch.testing.assert_close(rollouts.log_probs[:, : mask.shape[1]][mask], scored.detach(), atol=1e-4, rtol=1e-4)
    scored.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in policy.parameters())
    again = load_policy(checkpoint, "cpu", gradient_checkpointing=True)
    repeated = sampler.roll_out(again.sampler(), problems, "rollout/1/0", 0)
    assert repeated.tokens == rollouts.tokens and torch.equal(token_log_probs(again, repeated.tokens, 1.0), scored)


@pytest.mark.parametrize("kind", [MambaConfig, FalconMambaConfig])
def test_a_model_without_keys_and_values_is_refused_in_one_line(kind: type[PreTrainedConfig], tmp_path: Path) -> None:
    base = import_pretrained(tmp_path, kind)
    with pytest.raises(InvalidInput, match=f"is '{kind.model_type}', which keeps another state") as error:
        load_policy(Checkpoint(base / "checkpoint"), "cpu")
    assert error.value.key == "model_type" and "\n" not in str(error.value)


# Trainings of pretrained models: architectures, tokenizers and prompts that the study did not make.

CHAT = "{% for turn in messages %}[{{ turn['role'] }}]{{ turn['content'] }}{% endfor %}="


@pytest.mark.parametrize("model", ["llama", "neox"])
def test_a_pretrained_model_is_trained_and_continued_to_the_same_bytes(
    model: str, make_run: MakeRun, tmp_path: Path, request: pytest.FixtureRequest, train_until: Callable[..., Learner]
) -> None:
    run = make_run({"steps": 3, "learning_rate": 0.01}, base=str(request.getfixturevalue(model)), model="other")
    train(run, tmp_path / "whole", EXECUTION)
    whole = verify_outputs(tmp_path / "whole" / "manifest.json", "run")
    by = whole.details["model_computed_by"]
    assert by == "batched decoder" if model == "llama" else "model_type is 'gpt_neox'" in by
    kinds = "every x86-64 processor with AVX2" if model == "llama" else "one kind of processor"
    assert whole.details["same_bytes"] == f"on {kinds}, with the same packages and threads"
    train_until(1, run, tmp_path / "parts", EXECUTION)
    train(run, tmp_path / "parts", EXECUTION)
    weights = [sha256_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("whole", "parts")]
    assert weights[0] == weights[1] != sha256_file(run.base / "checkpoint" / "model.safetensors")
    AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "checkpoint")


def test_the_same_bytes_are_promised_where_they_are_kept() -> None:
    decoder, other = "batched decoder", "transformers: because"
    alike = [("float32", decoder, "AVX2"), ("bfloat16", decoder, "of processor"), ("float32", other, "of processor")]
    assert all(words in same_bytes("cpu", dtype, backend) for dtype, backend, words in alike)
    assert "kind of GPU" in same_bytes("cuda", "float32", decoder)
    assert "vLLM" in same_bytes("cpu", "float32", decoder, by_vllm=True)


@pytest.mark.parametrize("model", ["llama", "neox"])
def test_sampled_log_probs_agree(model: str, make_run: MakeRun, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run = make_run(base=str(request.getfixturevalue(model)))
    learner = Learner(run, "cpu")
    rollouts = learner._sampler.roll_out(learner.model.sampler(), learner.order.take(0, 4), "rollout/1/0", 0)
    log_probs, entropies = score_in_chunks(learner.model, rollouts.tokens, run.training.temperature, 8)
    mask = rollouts.tokens.response_mask
    width = mask.shape[1]
    torch.testing.assert_close(rollouts.log_probs[:, :width][mask], log_probs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(rollouts.entropies[:, :width][mask], entropies, atol=1e-4, rtol=1e-4)


def test_every_end_token_of_the_model_ends_a_response(make_run: MakeRun, llama: Path, tmp_path: Path) -> None:
    base = import_copy(llama, tmp_path / "copy")
    digits = [load_tokenizer(base / "checkpoint").token_to_id(str(digit)) for digit in range(10)]
    ends = [Checkpoint(base / "checkpoint").end_token, *digits]
    write_json(base / "checkpoint" / "generation_config.json", {"eos_token_id": ends})
    learner = Learner(make_run(base=str(base)), "cpu")
    rollouts = learner._sampler.roll_out(learner.model.sampler(), learner.order.take(0, 8), "rollout/1/0", 0)
    last = {response[-1] for response in rollouts.tokens.responses}
    assert len(last & set(digits)) > 3
    assert not any(set(response[:-1]) & set(ends) for response in rollouts.tokens.responses)


def import_copy(base: Path, directory: Path) -> Path:
    """A base model of the same files, to be changed by a test."""
    model = directory / "model"
    model.mkdir(parents=True)
    for path in (base / "checkpoint").iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    import_model(str(model), directory / "base" / "other")
    return directory / "base" / "other"


def test_a_chat_prompt_is_the_models_own(make_run: MakeRun, llama: Path, tmp_path: Path) -> None:
    base = import_copy(llama, tmp_path / "copy")
    write_text(base / "checkpoint" / "chat_template.jinja", CHAT)
    run = make_run(base=str(base), prompt_form="chat")
    assert run.parameters()["prompt_form"] == "chat"
    learner = Learner(run, "cpu")
    problem = learner.order.take(0, 1)
    rollouts = learner._sampler.roll_out(learner.model.sampler(), problem, "rollout/1/0", 0)
    shown, expected = (
        learner.tokenizer.decode(ids, skip_special_tokens=False)
        for ids in (rollouts.tokens.prompts[0], learner.tokenizer.encode(f"[user]{problem[0]['problem']}\n=").ids)
    )
    assert shown == expected
    assert "prompt_form" not in make_run().parameters() and "dtype" not in make_run().parameters()


def test_the_template_is_told_what_the_model_says(make_run: MakeRun, llama: Path, tmp_path: Path) -> None:
    base = import_copy(llama, tmp_path / "copy")
    write_text(base / "checkpoint" / "chat_template.jinja", CHAT + "{% if enable_thinking is false %}+{% endif %}")
    told = {"enable_thinking": False}
    write_jsonl(tmp_path / "solutions.jsonl", [{"problem": "1+2", "solution": "3"}])
    plain = make_run(base=str(base), prompt_form="chat")
    for given, end in (({}, "="), (told, "+")):
        run = make_run(base=str(base), prompt_form="chat", chat_template_kwargs=given)
        assert (run.parameters() == plain.parameters()) == (not given)
        learner = Learner(run, "cpu")
        settings: Any = SimpleNamespace(prompt="{problem}", prompt_form="chat", chat_template_kwargs=given)
        (example,) = _examples_of(Checkpoint(base / "checkpoint"), tmp_path / "solutions.jsonl", settings)
        for prompt in (*learner._sampler.prompts.values(), example["prompt"]):
            assert learner.tokenizer.decode(list(prompt), skip_special_tokens=False).endswith(end)


def test_a_prompt_that_leaves_no_room_is_named(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"prompt of problem \S+ has \d+ tokens; accepted: at most 4"):
        Learner(make_run({"max_new_tokens": 60}), "cpu")


def test_the_models_own_files_are_part_of_what_a_run_is(make_run: MakeRun, llama: Path, tmp_path: Path) -> None:
    base = import_copy(llama, tmp_path / "copy")
    train(make_run({"steps": 1}, base=str(base)), tmp_path / "run", EXECUTION)
    inputs = verify_outputs(tmp_path / "run" / "manifest.json", "run").inputs
    assert {Path(path).name for path in inputs} >= {"config.json", "tokenizer.json", "model.safetensors"}


def test_a_model_that_cannot_be_used_is_refused_in_one_line(llama: Path, tmp_path: Path) -> None:
    base = import_copy(llama, tmp_path / "copy")
    model = (base / "checkpoint").resolve()
    config = read_json(model / "config.json")
    write_json(model / "config.json", {**config, "model_type": "mystery", "auto_map": {"AutoConfig": "code.Config"}})
    with pytest.raises(InvalidInput, match=r"model_type: is 'mystery' and its code is in the checkpoint"):
        load_policy(Checkpoint(model), "cpu")
    (model / "generation_config.json").unlink()
    write_json(model / "config.json", {**config, "eos_token_id": None})
    with pytest.raises(UserError, match="name no eos_token_id"):
        import_model(str(model), tmp_path / "again")


def cut_off(model: Path, size: int | None) -> str:
    """Cut the file of the weights to ``size`` bytes, or by one; returns what the error says."""
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[: -1 if size is None else size])
    return r"model\.safetensors: is damaged or cut off \("


def leave_out(model: Path, name: str) -> str:
    """Leave a weight out of the file."""
    weights = load_file(model / "model.safetensors")
    del weights[name]
    save_file(weights, model / "model.safetensors")
    return f"lacks 1 of the model's weights, such as {re.escape(name)}"


def widen(model: Path, name: str) -> str:
    """Give a weight one row more."""
    weights = load_file(model / "model.safetensors")
    weights[name] = torch.cat([weights[name], weights[name][:1]])
    save_file(weights, model / "model.safetensors")
    return rf"{re.escape(name)}: has the shape \[{len(weights[name])}.*; accepted: \[{len(weights[name]) - 1}"


def index(model: Path, name: str, file: str) -> str:
    """Make a shard of the weights, and an index that has one of them in ``file``."""
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    write_json(model / "model.safetensors.index.json", {"weight_map": {name: file}})
    why = "does not have it" if (model / file).exists() else "is not there"
    return rf"model\.safetensors\.index\.json: weight_map\.{re.escape(name)}: is '{file}', which {why}"


@pytest.mark.parametrize("models", ["llama", "neox"])
@pytest.mark.parametrize(
    "damage",
    [
        partial(cut_off, size=None),
        partial(cut_off, size=100),
        partial(cut_off, size=0),
        partial(index, name="model.norm.weight", file="model-00002-of-00002.safetensors"),
        partial(index, name="mystery.weight", file="model-00001-of-00002.safetensors"),
    ],
)
def test_files_that_are_not_whole_are_refused_when_the_model_is_imported_or_loaded(
    models: str, damage: Callable[[Path], str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = (import_copy(request.getfixturevalue(models), tmp_path / "copy") / "checkpoint").resolve()
    message = damage(model)
    ways = partial(import_model, str(model), tmp_path / "again"), partial(load_policy, Checkpoint(model), "cpu")
    for refused in ways:
        with pytest.raises(UserError, match=message) as error:
            refused()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "again").exists()


def test_files_beside_weights_are_no_part(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An index from before its shards were joined, adapters, and a weight of a layer that the model has not."""
    model = (import_copy(llama, tmp_path / "copy") / "checkpoint").resolve()
    expected = {name: weight.shape for name, weight in load_policy(Checkpoint(model), "cpu").named_parameters()}
    assert "not the model's" not in capsys.readouterr().out
    write_json(model / "model.safetensors.index.json", {"weight_map": {"model.norm.weight": "model-1.safetensors"}})
    more = {"adapter.lora_A.weight": torch.ones(2, 2), "model.layers.9.mlp.up_proj.weight": torch.ones(2, 2)}
    save_file(more, model / "adapter_model.safetensors")
    policy = load_policy(Checkpoint(model), "cpu")
    assert {name: weight.shape for name, weight in policy.named_parameters()} == expected
    assert "2 weights are not the model's, such as adapter.lora_A.weight" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [leave_out, widen])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"]
)
def test_our_decoder_needs_all(damage: Callable[[Path, str], str], name: str, llama: Path, tmp_path: Path) -> None:
    model = (import_copy(llama, tmp_path / "copy") / "checkpoint").resolve()
    message = damage(model, name)
    with pytest.raises(UserError, match=message):
        import_model(str(model), tmp_path / "again")
    with pytest.raises(UserError, match=message):
        Checkpoint(model).decoder("cpu")


@pytest.mark.parametrize("damage", [leave_out, widen])
@pytest.mark.parametrize("name", ["embed_out.weight", "gpt_neox.layers.1.attention.dense.bias"])
def test_transformers_needs_all(damage: Callable[[Path, str], str], name: str, neox: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint((import_copy(neox, tmp_path / "copy") / "checkpoint").resolve())
    message = damage(checkpoint.directory, name)
    with pytest.raises(UserError, match=message) as error:
        load_policy(checkpoint, "cpu")
    assert "\n" not in str(error.value)
    settings = BackendSettings("float32", "cpu", 64, checkpoint.end_tokens, SamplingParameters(max_new_tokens=8))
    with pytest.raises(UserError, match=message):
        load_backend("transformers", [checkpoint], settings)


def test_weights_that_have_no_place_are_said(neox: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = Checkpoint((import_copy(neox, tmp_path / "copy") / "checkpoint").resolve())
    weights = load_file(checkpoint.directory / "model.safetensors")
    save_file(weights | {"mystery.bias": torch.zeros(2)}, checkpoint.directory / "model.safetensors")
    load_policy(checkpoint, "cpu")
    assert "1 weights are not the model's, such as mystery.bias\n" in capsys.readouterr().out


def test_foreign_code_is_said_at_the_import(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = import_copy(llama, tmp_path / "copy")
    model = (base / "checkpoint").resolve()
    assert not capsys.readouterr().out
    config = read_json(model / "config.json")
    write_json(model / "config.json", {**config, "auto_map": {"AutoConfig": "code.Config"}})
    import_model(str(model), base)
    code = rf"{model}/config\.json: brings code of its own, which is never run; "
    assert re.fullmatch(code + r"the model is computed as 'llama' of transformers \S+\n", capsys.readouterr().out)
    write_json(model / "config.json", {**config, "model_type": "mystery"})
    import_model(str(model), base)
    unknown = r"\S+/config\.json: model_type is 'mystery', which transformers \S+ does not know: .*\n"
    assert re.fullmatch(unknown, capsys.readouterr().out)
    write_text(model / "code.py", "raise SystemExit")
    import_model(str(model), base)
    code = rf"{model}/code\.py: brings code of its own, which is never run; "
    assert re.fullmatch(code + unknown, capsys.readouterr().out)


def test_other_architectures_are_left_to_transformers(neox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Checkpoint(neox / "checkpoint")
    settings = BackendSettings("float32", "cpu", 64, model.end_tokens, SamplingParameters(max_new_tokens=8))
    requests = [Request((3, 4, 5), f"{number}", 8) for number in range(4)]
    found = [load_backend(name, [model], settings).generate(requests) for name in ("local", "transformers")]
    assert found[0] == found[1]
    assert "model_type is 'gpt_neox'" in capsys.readouterr().out
