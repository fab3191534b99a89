"""Convert a GGUF file, the format of llama.cpp, into a checkpoint in Hugging Face format.

The package gguf reads and dequantises the tensors; it is needed for such a file alone. llama.cpp stores the rows of a
Llama's queries and keys in another order (its convert_hf_to_gguf.py, ``permute``), which is undone here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.core.errors import InvalidInput, UserError, first_line
from evals.core.files import write_json, write_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GGUF = ".gguf"
_TENSORS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_CONTROL = 3
"""The type of special tokens."""


def convert(path: Path, directory: Path) -> None:
    """Write config, weights in float32 and tokenizer to ``directory``; the weights last.

    UserError if gguf is not installed, the file is damaged, or its architecture, tokenizer or a tensor's type is not
    known here.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        accepted = "accepted: that package (pip install gguf==0.19.0), or a directory in Hugging Face format"
        raise UserError(
            f"{path}: is a GGUF file, which the package gguf reads; it is not installed; {accepted}"
        ) from None
    try:
        reader = GGUFReader(path)
        values = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"{path}: cannot be read as GGUF ({first_line(error)})") from error
    kind = values.get("general.architecture")
    if kind not in _ARCHITECTURES:
        raise InvalidInput(str(path), "general.architecture", f"is {kind!r}", ", ".join(_ARCHITECTURES))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    try:
        _convert(kind, values, tensors, path, directory)
    except KeyError as error:
        raise UserError(f"{path}: lacks {error.args[0]}") from None
    except (IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        fault = f"has metadata that make no model ({type(error).__name__}: {first_line(error)})"
        raise UserError(f"{path}: {fault}") from None


def _convert(kind: str, values: Mapping[str, Any], tensors: Mapping[str, Any], path: Path, directory: Path) -> None:
    config = _config(kind, values, path, tied="output.weight" not in tensors)
    tokenizer = _tokenizer(values, path)
    ends = [values["tokenizer.ggml.tokens"][values["tokenizer.ggml.eos_token_id"]]]
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    write_text(directory / "tokenizer.json", tokenizer.to_str(pretty=True))
    end = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": ends[0], "pad_token": ends[0]}
    write_json(directory / "tokenizer_config.json", end)
    if template := values.get("tokenizer.chat_template"):
        write_text(directory / "chat_template.jinja", template)
    _write_weights(tensors, config, path, directory)


def _config(kind: str, values: Mapping[str, Any], path: Path, tied: bool) -> dict[str, Any]:
    """The content of config.json."""

    def of_family(key: str) -> Any:
        return values[f"{kind}.{key}"]

    scaling = values.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        raise InvalidInput(str(path), f"{kind}.rope.scaling.type", f"is {scaling!r}", "none")
    heads = of_family("attention.head_count")
    return {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "hidden_size": of_family("embedding_length"),
        "intermediate_size": of_family("feed_forward_length"),
        "num_hidden_layers": of_family("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": values.get(f"{kind}.attention.head_count_kv", heads),
        "max_position_embeddings": of_family("context_length"),
        "rms_norm_eps": of_family("attention.layer_norm_rms_epsilon"),
        "rope_theta": values.get(f"{kind}.rope.freq_base", 10000.0),
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "pad_token_id": values["tokenizer.ggml.eos_token_id"],
        "dtype": "float32",
    }


def _tokenizer(values: Mapping[str, Any], path: Path) -> Tokenizer:
    """The byte-level tokenizer of SmolLM, which keeps digits apart; others are refused, as transformers has them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, split = values["tokenizer.ggml.model"], values.get("tokenizer.ggml.pre")
    if (kind, split) != ("gpt2", "smollm"):
        accepted = "gpt2 with smollm; of other models the checkpoint in Hugging Face format"
        raise InvalidInput(
            str(path), "tokenizer.ggml.model", f"is {kind!r} with tokenizer.ggml.pre {split!r}", accepted
        )
    tokens = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        token for token, sort in zip(tokens, values["tokenizer.ggml.token_type"], strict=True) if sort == _CONTROL
    ]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _write_weights(tensors: Mapping[str, Any], config: Mapping[str, Any], path: Path, directory: Path) -> None:
    import numpy as np
    from gguf import dequantize
    from safetensors.numpy import save_file

    permuted = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, Any] = {}
    for name, tensor in tensors.items():
        *block, layer, kind = ["", "", *name.split(".")][-4:]
        try:
            numbers = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except (NotImplementedError, ValueError, KeyError) as error:
            message = f"is of type {tensor.tensor_type.name} ({first_line(error)})"
            raise InvalidInput(str(path), name, message, "a type that the package gguf can read") from error
        if block[0] == "blk":
            if config["model_type"] == "llama" and (heads := permuted.get(layer)):
                pairs = numbers.reshape(heads, -1, 2, *numbers.shape[1:])
                numbers = pairs.swapaxes(1, 2).reshape(numbers.shape)
            target = f"model.layers.{block[1]}.{_TENSORS.get(layer, layer)}.{kind}"
        else:
            target = f"{_OUTER.get(layer, layer)}.{kind}"
        weights[target] = np.array(numbers, order="C")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
