"""The Qwen3 architecture as a batched decoder with a key-value cache, for inference only.

Written for throughput on small models, where the cost of a step is the number of operations as much as their size:
projections that share an input are one matrix product, rotary angles are computed once a step, the cache is allocated
once.
Same numbers as ``transformers``' Qwen3ForCausalLM up to rounding.

Shapes: B sequences, T new tokens, L cache length, H query heads, G key-value heads, E head dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evals.errors import UserError


@dataclass(frozen=True)
class Qwen3Config:
    """The architecture's numbers, as in a checkpoint's ``config.json``."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_dimension: int
    norm_epsilon: float
    rope_theta: float
    context_length: int
    tied_embeddings: bool

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Qwen3Config:
        """Read a checkpoint's configuration; ``source`` names it in messages.

        Raises:
            UserError: another architecture, scaled rotary embeddings, sliding windows, or a missing key.
        """
        if config.get("model_type") != "qwen3":
            raise UserError(f"{source}: model_type is {config.get('model_type')!r}; the local sampler accepts qwen3")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise UserError(f"{source}: rope_type is {rope['rope_type']!r}; the local sampler accepts default")
        if config.get("use_sliding_window") or config.get("attention_bias"):
            raise UserError(f"{source}: use_sliding_window and attention_bias must be false for the local sampler")
        try:
            return cls(
                vocabulary=config["vocab_size"],
                hidden=config["hidden_size"],
                layers=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                key_value_heads=config["num_key_value_heads"],
                head_dimension=config["head_dim"],
                norm_epsilon=config["rms_norm_eps"],
                rope_theta=rope.get("rope_theta") or config["rope_theta"],
                context_length=config["max_position_embeddings"],
                tied_embeddings=config["tie_word_embeddings"],
            )
        except KeyError as error:
            raise UserError(f"{source}: lacks the key {error.args[0]}") from None


@dataclass(frozen=True)
class _Layer:
    """One block's weights; products that share an input are stacked along the output dimension."""

    input_norm: Tensor
    query_key_value: Tensor
    query_norm: Tensor
    key_norm: Tensor
    attention_output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class KeyValueCache:
    """Keys and values of every layer, [layers, B, G, L, E], with ``length`` positions filled."""

    def __init__(self, config: Qwen3Config, batch: int, capacity: int, like: Tensor) -> None:
        shape = (config.layers, batch, config.key_value_heads, capacity, config.head_dimension)
        self.keys = like.new_empty(shape)
        self.values = like.new_empty(shape)
        self.length = 0

    def select(self, rows: Tensor, capacity: int | None = None) -> KeyValueCache:
        """A cache of the given rows (repeats allowed), optionally with another capacity."""
        chosen = object.__new__(KeyValueCache)
        chosen.length = self.length
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            new = old.new_empty((old.shape[0], len(rows), old.shape[2], capacity or old.shape[3], old.shape[4]))
            new[:, :, :, : self.length] = old[:, rows, :, : self.length]
            setattr(chosen, name, new)
        return chosen


class Qwen3Decoder:
    """Runs tokens through a Qwen3 model, appending to a cache."""

    def __init__(self, config: Qwen3Config, weights: Mapping[str, Tensor]) -> None:
        """Take weights under the names of a Hugging Face checkpoint.

        Raises:
            UserError: a weight is missing.
        """
        self.config = config
        try:
            self._embedding = weights["model.embed_tokens.weight"]
            self._final_norm = weights["model.norm.weight"]
            self._head = self._embedding if config.tied_embeddings else weights["lm_head.weight"]
            self._layers = [self._stack(weights, f"model.layers.{index}.") for index in range(config.layers)]
        except KeyError as error:
            raise UserError(f"checkpoint: lacks the weight {error.args[0]}") from None
        self._inverse_frequencies = config.rope_theta ** -(
            torch.arange(0, config.head_dimension, 2, dtype=torch.float32, device=self._embedding.device)
            / config.head_dimension
        )

    @staticmethod
    def _stack(weights: Mapping[str, Tensor], prefix: str) -> _Layer:
        attention = f"{prefix}self_attn."
        return _Layer(
            input_norm=weights[f"{prefix}input_layernorm.weight"],
            query_key_value=torch.cat([weights[f"{attention}{name}_proj.weight"] for name in "qkv"]),
            query_norm=weights[f"{attention}q_norm.weight"],
            key_norm=weights[f"{attention}k_norm.weight"],
            attention_output=weights[f"{attention}o_proj.weight"],
            mlp_norm=weights[f"{prefix}post_attention_layernorm.weight"],
            gate_up=torch.cat([weights[f"{prefix}mlp.gate_proj.weight"], weights[f"{prefix}mlp.up_proj.weight"]]),
            down=weights[f"{prefix}mlp.down_proj.weight"],
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are, and where inputs have to be."""
        return self._embedding.device

    def new_cache(self, batch: int, capacity: int) -> KeyValueCache:
        """An empty cache for ``batch`` sequences of up to ``capacity`` tokens."""
        return KeyValueCache(self.config, batch, capacity, self._embedding)

    def forward(self, tokens: Tensor, positions: Tensor, bias: Tensor, cache: KeyValueCache) -> Tensor:
        """Append ``tokens`` to the cache and return the logits after the last of them.

        Args:
            tokens: [B, T] token ids.
            positions: [B, T] rotary positions.
            bias: [B, 1, T, L] added to the attention scores: 0 where attended, -inf where not; L = filled length + T.
            cache: keys and values of what came before.

        Returns:
            Logits [B, V] at the last position.
        """
        config = self.config
        batch, new = tokens.shape
        start, end = cache.length, cache.length + new
        angles = positions[..., None].float() * self._inverse_frequencies
        cosine, sine = angles.cos()[:, :, None].to(bias.dtype), angles.sin()[:, :, None].to(bias.dtype)
        split = [config.heads, config.key_value_heads, config.key_value_heads]
        hidden = functional.embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            normed = functional.rms_norm(hidden, (config.hidden,), layer.input_norm, config.norm_epsilon)
            projected = functional.linear(normed, layer.query_key_value)
            query, key, value = projected.view(batch, new, sum(split), config.head_dimension).split(split, dim=2)
            query = self._rotate(self._norm_heads(query, layer.query_norm), cosine, sine)
            key = self._rotate(self._norm_heads(key, layer.key_norm), cosine, sine)
            cache.keys[index, :, :, start:end] = key.transpose(1, 2)
            cache.values[index, :, :, start:end] = value.transpose(1, 2)
            attended = self._attend(query, cache.keys[index, :, :, :end], cache.values[index, :, :, :end], bias)
            hidden = hidden + functional.linear(attended, layer.attention_output)
            normed = functional.rms_norm(hidden, (config.hidden,), layer.mlp_norm, config.norm_epsilon)
            gate, up = functional.linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down)
        cache.length = end
        last = functional.rms_norm(hidden[:, -1], (config.hidden,), self._final_norm, config.norm_epsilon)
        return functional.linear(last, self._head)

    def _norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        """Normalise each head's vector, [B, T, heads, E]."""
        return functional.rms_norm(heads, (self.config.head_dimension,), weight, self.config.norm_epsilon)

    @staticmethod
    def _rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotary position embedding on [B, T, heads, E]; halves are paired, as Qwen3 does."""
        first, second = heads.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Grouped-query attention of [B, T, H, E] over [B, G, L, E]; returns [B, T, H * E]."""
        batch, new, heads, dimension = query.shape
        groups = self.config.key_value_heads
        repeated = heads // groups
        # Query heads of one group become rows of one matrix, so that keys are read once and never repeated in memory.
        rows = query.transpose(1, 2).reshape(batch, groups, repeated * new, dimension)
        scores = (rows @ keys.transpose(-1, -2)) * dimension**-0.5
        scores = scores.view(batch, heads, new, -1) + bias
        weights = scores.softmax(dim=-1).view(batch, groups, repeated * new, -1)
        mixed: Tensor = (weights @ values).view(batch, heads, new, dimension)
        return mixed.transpose(1, 2).reshape(batch, new, heads * dimension)
