"""A GGUF file becomes the checkpoint that it was made from, or one line says why not.

gguf is not among the locked packages of a study; `make test-engines`, whose environment has it, runs these tests too.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from evals.core.errors import InvalidInput, UserError
from evals.generation.checkpoint import Checkpoint, import_model
from evals.generation.gguf_file import convert

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "1", "2", "a", "b", "Ġ", "ab", "Ġa"]
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    model: Any,
    architecture: str = "llama",
    split: str = "smollm",
    scaling: str | None = None,
    bytes_of: str = "",
) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf is installed for such files alone")
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e5)
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_eos_token_id(2)
    for name, weight in model.state_dict().items():
        numbers = weight.numpy().astype(np.int8) if name == bytes_of else weight.numpy()
        if name == "lm_head.weight":
            continue
        if name.startswith("model.layers."):
            _, _, layer, *middle, kind = name.split(".")
            if middle[-1] in ("q_proj", "k_proj"):  # as llama.cpp orders a Llama's rotary channels
                heads = config.num_attention_heads if middle[-1] == "q_proj" else config.num_key_value_heads
                halves = numbers.reshape(heads, 2, -1, numbers.shape[1])
                numbers = halves.swapaxes(1, 2).reshape(numbers.shape)
            writer.add_tensor(f"blk.{layer}.{NAMES['.'.join(middle)]}.{kind}", np.ascontiguousarray(numbers))
        else:
            outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
            writer.add_tensor(outer[name], numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def model() -> Any:
    torch.manual_seed(1)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "tie_word_embeddings": True}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(TOKENS), **shape, **heads, **rope))


def test_a_converted_model_has_the_logits_and_the_tokens_of_the_original(model: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf", model)
    import_model(str(tmp_path / "small.gguf"), tmp_path / "base" / "small")
    found = Checkpoint(tmp_path / "base" / "small" / "checkpoint")
    tokens = [3, 4, 5, 6, 7, 8]
    with torch.no_grad():
        ours = found.model("cpu")
        logits = ours.logits(ours.states([tokens], [0]), 1.0)
        torch.testing.assert_close(logits, model(torch.tensor([tokens])).logits[0], atol=1e-5, rtol=1e-5)
    assert found.tokenizer.encode("12 ab<|im_end|>").tokens == ["1", "2", "Ġ", "ab", "<|im_end|>"]
    assert found.tokenizer.decode(found.tokenizer.encode("21 ab").ids) == "21 ab"
    assert found.end_tokens == [2] and found.end_token == 2


def test_what_cannot_be_converted_is_said_in_one_line(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small.gguf"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "gguf", None)
        with pytest.raises(UserError, match=r"small\.gguf: is a GGUF file, which the package gguf reads"):
            convert(path, tmp_path / "out")
    write_gguf(path, model, split="llama-bpe")
    with pytest.raises(InvalidInput, match=r"'gpt2' with tokenizer\.ggml\.pre 'llama-bpe'; accepted: gpt2 with smollm"):
        convert(path, tmp_path / "out")
    write_gguf(path, model, "gemma")
    with pytest.raises(InvalidInput, match=r"is 'gemma'; accepted: llama, qwen2") as error:
        convert(path, tmp_path / "out")
    assert error.value.key == "general.architecture"
    write_gguf(path, model, scaling="yarn")
    with pytest.raises(InvalidInput, match=rf"{path}: llama\.rope\.scaling\.type: is 'yarn'; accepted: none"):
        convert(path, tmp_path / "out")
    write_gguf(path, model, bytes_of="model.norm.weight")
    with pytest.raises(InvalidInput, match=rf"{path}: output_norm\.weight: is of type I8 \(.*; accepted: a type that"):
        convert(path, tmp_path / "out")
    path.write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(UserError, match="cannot be read as GGUF"):
        convert(path, tmp_path / "out")
