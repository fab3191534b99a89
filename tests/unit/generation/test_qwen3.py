"""The decoder against transformers' own model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from evals.core.errors import UserError
from evals.generation.backend import SamplingParameters
from evals.generation.checkpoint import Checkpoint, load_tokenizer
from evals.generation.qwen3 import Qwen3Config
from evals.generation.sampler import sample

PROMPTS = ["Compute 3+4 from left to right, modulo 10.\n", "Let a=3;b=a+7;c=b-1. Compute c modulo 10.\n", "7\n"]


def test_checkpoint_is_an_ordinary_one(checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    text = PROMPTS[1] + "b=3+7=0\n\\boxed{0}"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer(text)["input_ids"] == load_tokenizer(checkpoint).encode(text).ids
    assert model.config.eos_token_id == tokenizer.eos_token_id == Checkpoint(checkpoint).end_tokens[0]
    assert tokenizer("?")["input_ids"] == [tokenizer.unk_token_id]


def test_logits_equal_those_of_transformers(checkpoint: Path) -> None:
    model, decoder = AutoModelForCausalLM.from_pretrained(checkpoint), Checkpoint(checkpoint).decoder("cpu")
    tokens = torch.randint(3, 40, (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(tokens).logits
    cache = decoder.new_cache(3, 17)
    for position in range(17):
        bias = torch.zeros(3, 1, 1, position + 1)
        with torch.inference_mode():
            logits = decoder.forward(tokens[:, position : position + 1], torch.full((3, 1), position), bias, cache)
        torch.testing.assert_close(logits, expected[:, position], atol=2e-5, rtol=2e-5)


def test_greedy_output_is_that_of_generate(checkpoint: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), load_tokenizer(checkpoint)
    prompts = [encoding.ids for encoding in tokenizer.encode_batch(PROMPTS)]
    parameters = SamplingParameters(max_new_tokens=24, temperature=0)
    ours = sample(
        Checkpoint(checkpoint).decoder("cpu"), prompts, [["a"]] * 3, parameters, Checkpoint(checkpoint).end_tokens[0]
    )
    for prompt, (response,) in zip(prompts, ours, strict=True):
        output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)[0, len(prompt) :].tolist()
        assert response.tokens == output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type is 'yarn'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"head_dim": None}, "lacks the key head_dim"),
    ],
)
def test_other_architectures_are_refused_by_name(checkpoint: Path, change: dict[str, object], message: str) -> None:
    config = AutoModelForCausalLM.from_pretrained(checkpoint).config.to_dict() | change
    config = {key: value for key, value in config.items() if value is not None or key == "x"}
    with pytest.raises(UserError, match=message):
        Qwen3Config.from_json(config, "config.json")


def test_a_damaged_checkpoint_is_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        Checkpoint(tmp_path).decoder("cpu")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes()[:-100])
    with pytest.raises(UserError, match=r"config\.json: is not valid JSON"):
        Checkpoint(tmp_path).decoder("cpu")
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    with pytest.raises(UserError, match=r"model\.safetensors: is damaged"):
        Checkpoint(tmp_path).decoder("cpu")
    with pytest.raises(UserError, match=r"tokenizer\.json: is not a tokenizer"):
        load_tokenizer(tmp_path)
