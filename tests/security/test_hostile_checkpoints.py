"""Checkpoints whose files anybody may have written: read, or refused in one line; never sampled in silence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from evals.core.errors import UserError
from evals.core.sampling import SamplingParameters
from evals.generation import chat
from evals.generation.backend import BackendSettings, Request, load_backend
from evals.generation.chat import apply_chat_template
from evals.generation.checkpoint import Checkpoint
from rlvr.base_model.train import build_tokenizer, initial_model
from rlvr.runs.state import save_checkpoint
from tests.security.hostile import CASES, many, one_line, places, replaced, values

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
NAMES = ("config.json", "generation_config.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, tokenizer = tmp_path_factory.mktemp("checkpoint"), build_tokenizer()
    save_checkpoint(initial_model({**SIZES, "tie_word_embeddings": True}, tokenizer, seed=0), tokenizer, directory)
    return directory


@pytest.fixture
def copy(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "copy"))


def read(directory: Path) -> None:
    """Read all that a study reads of a checkpoint before it samples."""
    model = Checkpoint(directory)
    model.shapes, model.end_tokens, model.end_token, model.dtype("auto"), model.context_length(None)
    model.decoder("cpu")


def change(directory: Path, name: str, place: tuple[Any, ...], value: Any) -> None:
    path = directory / name
    path.write_text(json.dumps(replaced(json.loads(path.read_text()), place, value)))


@settings(many, max_examples=max(30, CASES // 10))
@given(st.data(), st.sampled_from(NAMES), values)
def test_a_configuration_is_read_or_refused(intact: Path, data: st.DataObject, name: str, value: Any) -> None:
    before = (intact / name).read_text()
    place = data.draw(st.sampled_from(places(json.loads(before))))
    try:
        change(intact, name, place, value)
        read(intact)
    except UserError as error:
        one_line(error)
    finally:
        (intact / name).write_text(before)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", ["qwen3"]),
        ("rms_norm_eps", "1e-6"),
        ("rms_norm_eps", -1.0),
        ("eos_token_id", "x"),
        ("eos_token_id", [[1]]),
        ("num_hidden_layers", 10**7),
        ("num_hidden_layers", "2"),
        ("num_attention_heads", 0),
        ("hidden_size", 10**9),
        ("layer_types", 5),
        ("rope_parameters", ["default"]),
        ("rope_parameters", {"rope_type": "linear", "factor": "2"}),
        ("rope_theta", float("inf")),
        ("dtype", {"a": 1}),
    ],
)
def test_a_wrong_value_is_named_before_the_weights_are_read(copy: Path, key: str, value: Any) -> None:
    change(copy, "config.json", (), {**json.loads((copy / "config.json").read_text()), key: value})
    (copy / "model.safetensors").unlink()
    with pytest.raises(UserError, match=key):
        Checkpoint(copy).config  # noqa: B018


def test_an_end_token_that_is_no_text_is_none(copy: Path) -> None:
    change(copy, "tokenizer_config.json", ("eos_token",), "\ud800")
    assert Checkpoint(copy).special_token("eos_token") is None
    read(copy)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_file_that_holds_a_list_is_named(copy: Path, name: str) -> None:
    (copy / name).write_text("[]")
    with pytest.raises(UserError, match=f"{name}: is no JSON object"):
        read(copy)


def limits(model: Checkpoint, temperature: float = 1.0) -> BackendSettings:
    sampling = SamplingParameters(max_new_tokens=4, temperature=temperature)
    return BackendSettings("float32", "cpu", 64, model.end_tokens, sampling)


def change_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Checkpoint:
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return Checkpoint(directory)


@pytest.mark.parametrize("backend", ["local", "transformers", "vllm"])
@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_a_weight_that_is_no_number_is_named_by_every_backend(copy: Path, backend: str, number: float) -> None:
    """Wherever it is: vLLM, which would say nothing, need not be installed here."""
    damaged = "model.layers.0.mlp.up_proj.weight"
    model = change_weights(copy, lambda weights: weights[damaged][-1].fill_(number))
    with pytest.raises(UserError, match=rf"model.safetensors: {damaged}: is NaN or infinite; accepted: an intact"):
        load_backend(backend, [model], limits(model))


def test_only_types_that_can_be_no_number_are_looked_at(copy: Path) -> None:
    def add(weights: dict[str, torch.Tensor]) -> None:
        weights |= {"whole": torch.full((3,), 127, dtype=torch.int8), "short": torch.ones(3).to(torch.float8_e4m3fn)}

    change_weights(copy, add).require_numbers()
    model = change_weights(copy, lambda weights: weights.update(short=(0 / torch.zeros(3)).to(torch.float8_e4m3fn)))
    with pytest.raises(UserError, match="short: is NaN"):
        model.require_numbers()


@pytest.mark.parametrize("backend", ["local", "transformers"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_computes_no_numbers_is_not_sampled(copy: Path, backend: str, temperature: float) -> None:
    """Of finite weights: their products are larger than any number of the dtype."""

    def enlarge(weights: dict[str, torch.Tensor]) -> None:
        weights["model.norm.weight"].fill_(3e38)
        weights["model.embed_tokens.weight"] *= 1e3

    model = change_weights(copy, enlarge)
    with pytest.raises(UserError, match="logits are NaN or infinite"):
        load_backend(backend, [model], limits(model, temperature)).generate([Request((1, 2), "a", 4)])


@pytest.mark.parametrize(
    "template",
    [
        "{{ range(10**9) }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.nothing.more }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_a_template_that_never_ends_is_refused(copy: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "_TEMPLATE_SECONDS", 1)
    (copy / "chat_template.jinja").write_text(template)
    with pytest.raises(UserError, match="its chat template fails") as refused:
        apply_chat_template(Checkpoint(copy), [[("user", "1+1")]], {})
    one_line(refused.value)
