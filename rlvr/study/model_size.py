"""The size of a model, as the study states it or as the ``config.json`` of its checkpoint gives it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.config.base_models import Existing, Model
from evals.core.files import read_json
from rlvr.study.benchmarks import absolute_path

_BYTES_PER_PARAMETER = 18e-6
"""Bytes of a token's keys and values per parameter, where nothing is known: those of Qwen3-8B (144 KiB)."""
_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Model types whose layers are attention and one gated feed-forward network."""


@dataclass(frozen=True)
class ModelSize:
    """The size of a model.

    Attributes:
        parameters: their number.
        cache_bytes: bytes of a token's keys and values, in two bytes a number.
    """

    parameters: float
    cache_bytes: float


def model_size(model: Model) -> ModelSize | None:
    """The size of a model that exists; None where neither the study nor a local checkpoint tells it."""
    if not isinstance(model, Existing):
        return None
    found = None
    if model.path is not None and (config := Path(absolute_path(model.path)) / "config.json").is_file():
        found = size_of_architecture(read_json(config))
    parameters = model.parameters or (found and found.parameters)
    if not parameters:
        return None
    cache = model.cache_bytes or (found and found.cache_bytes) or _BYTES_PER_PARAMETER * parameters
    return ModelSize(parameters, cache)


def size_of_architecture(config: dict[str, Any]) -> ModelSize | None:
    """Count the parameters of a decoder from its ``config.json``; None for an architecture that is not known."""
    if config.get("model_type") not in _FAMILIES:
        return None
    width, layers, heads = (config[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    head_size = config.get("head_dim") or width // heads
    queries, keys = heads * head_size, (config.get("num_key_value_heads") or heads) * head_size
    attention = 2 * width * queries + 2 * width * keys
    biases = queries + 2 * keys if config["model_type"] == "qwen2" else 0
    norms = 2 * width + (2 * head_size if config["model_type"] == "qwen3" else 0)
    layer = attention + biases + norms + 3 * width * config["intermediate_size"]
    embeddings = config["vocab_size"] * width * (1 if config.get("tie_word_embeddings") else 2)
    return ModelSize(layers * layer + embeddings + width, 4.0 * layers * keys)
