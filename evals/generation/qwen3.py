"""The Qwen3 architecture as a batched decoder with a key-value cache, for inference only.

Written for throughput on small models, where the cost of a step is the number of operations as much as their size:
projections that share an input are one matrix product, rotary angles are computed once a step, the cache is allocated
once. Same numbers as ``transformers``' Qwen3ForCausalLM up to rounding.

Shapes: B sequences, T new tokens, L cache length, H query heads, G key-value heads, E head dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evals.core.errors import UserError


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
        """Read a checkpoint's configuration; ``source`` names it in messages."""
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
    """One block's weights, prepared so that a step takes few operations.

    A norm's own weights are folded into the product that follows it, the scale of attention into the query's norm.
    Query and key channels are reordered so that the two halves that rotary embedding pairs stand side by side, as one
    complex number; a reordering that queries and keys share leaves their products as they are.
    """

    query_key_value: Tensor
    query_key_norm: Tensor
    attention_output: Tensor
    gate_up: Tensor
    down: Tensor


class KeyValueCache:
    """Keys and values of every layer, [layers, B, G, L, E], with ``length`` positions filled."""

    def __init__(self, config: Qwen3Config, batch: int, capacity: int, like: Tensor) -> None:
        shape = (config.layers, batch, config.key_value_heads, capacity, config.head_dimension)
        self.keys = like.new_empty(shape)
        self.values = like.new_empty(shape)
        self.length = 0

    def select(self, rows: Tensor) -> KeyValueCache:
        """A cache of the given rows, repeats allowed."""
        chosen = object.__new__(KeyValueCache)
        chosen.length = self.length
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            new = old.new_empty((old.shape[0], len(rows), *old.shape[2:]))
            new[:, :, :, : self.length] = old[:, rows, :, : self.length]
            setattr(chosen, name, new)
        return chosen


class Qwen3Decoder:
    """Runs tokens through a Qwen3 model, appending to a cache; weights have the names of a Hugging Face checkpoint."""

    def __init__(self, config: Qwen3Config, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        try:
            self._embedding = weights["model.embed_tokens.weight"]
            head = self._embedding if config.tied_embeddings else weights["lm_head.weight"]
            self._head = head * weights["model.norm.weight"]
            self._layers = [self._prepare(weights, f"model.layers.{index}.") for index in range(config.layers)]
        except KeyError as error:
            raise UserError(f"checkpoint: lacks the weight {error.args[0]}") from None
        exponents = torch.arange(0, config.head_dimension, 2, dtype=torch.float32, device=self.device)
        frequencies = config.rope_theta ** -(exponents / config.head_dimension)
        angles = torch.arange(config.context_length, device=self.device)[:, None] * frequencies
        # exp(i position frequency) for every position and pair of channels, complex [context length, E / 2]
        self._rotations = torch.polar(torch.ones_like(angles), angles)

    def _prepare(self, weights: Mapping[str, Tensor], prefix: str) -> _Layer:
        """Fold, stack and reorder one block's weights, see :class:`_Layer`."""
        config, attention = self.config, f"{prefix}self_attn."
        half = config.head_dimension // 2
        paired = torch.arange(config.head_dimension).view(2, half).T.flatten()

        def pair(weight: Tensor) -> Tensor:
            by_head: Tensor = weight.unflatten(0, (-1, config.head_dimension))
            return by_head[:, paired].flatten(0, 1)

        query, key = (pair(weights[f"{attention}{name}_proj.weight"]) for name in "qk")
        query_norm, key_norm = (weights[f"{attention}{name}_norm.weight"][paired] for name in "qk")
        repeats = torch.tensor([config.heads, config.key_value_heads], device=query.device)
        gate_up = torch.cat([weights[f"{prefix}mlp.gate_proj.weight"], weights[f"{prefix}mlp.up_proj.weight"]])
        return _Layer(
            query_key_value=torch.cat([query, key, weights[f"{attention}v_proj.weight"]])
            * weights[f"{prefix}input_layernorm.weight"],
            query_key_norm=torch.stack([query_norm * config.head_dimension**-0.5, key_norm]).repeat_interleave(
                repeats, dim=0
            ),
            attention_output=weights[f"{attention}o_proj.weight"],
            gate_up=gate_up * weights[f"{prefix}post_attention_layernorm.weight"],
            down=weights[f"{prefix}mlp.down_proj.weight"],
        )

    @property
    def device(self) -> torch.device:
        """The device of the weights and of all inputs."""
        return self._embedding.device

    def new_cache(self, batch: int, capacity: int) -> KeyValueCache:
        """An empty cache for ``batch`` sequences of up to ``capacity`` tokens."""
        return KeyValueCache(self.config, batch, capacity, self._embedding)

    def forward(self, tokens: Tensor, positions: Tensor, bias: Tensor | None, cache: KeyValueCache) -> Tensor:
        """Append ``tokens`` to the cache and return the logits after the last of them.

        Args:
            tokens: [B, T] token ids.
            positions: [B, T] rotary positions, below the model's context length.
            bias: [B, 1, T, L] added to the attention scores: 0 where attended, -inf where not; L = filled length + T.
                None if everything is attended.
            cache: keys and values of what came before.

        Returns:
            Logits [B, V] at the last position.
        """
        config = self.config
        batch, new = tokens.shape
        start, end = cache.length, cache.length + new
        rotated_heads = config.heads + config.key_value_heads
        rotation = self._rotations[positions][:, :, None]
        hidden = functional.embedding(tokens, self._embedding).flatten(0, 1)
        for index, layer in enumerate(self._layers):
            projected = functional.linear(self._normalise(hidden), layer.query_key_value)
            heads = projected.view(batch, new, -1, config.head_dimension)
            unrotated = self._normalise(heads[:, :, :rotated_heads]) * layer.query_key_norm
            pairs = torch.view_as_complex(unrotated.unflatten(-1, (-1, 2)))
            query_key = torch.view_as_real(pairs * rotation).flatten(-2)
            keys, values = cache.keys[index, :, :, :end], cache.values[index, :, :, :end]
            keys[:, :, start:] = query_key[:, :, config.heads :].transpose(1, 2)
            values[:, :, start:] = heads[:, :, rotated_heads:].transpose(1, 2)
            attended = self._attend(query_key[:, :, : config.heads], keys, values, bias)
            hidden.addmm_(attended, layer.attention_output.T)
            gate, up = functional.linear(self._normalise(hidden), layer.gate_up).chunk(2, dim=-1)
            hidden.addmm_(functional.silu(gate).mul_(up), layer.down.T)
        cache.length = end
        return functional.linear(self._normalise(hidden.view(batch, new, -1)[:, -1]), self._head)

    def _normalise(self, values: Tensor) -> Tensor:
        """Divide by the root mean square over the last dimension."""
        mean_square = values.square().mean(dim=-1, keepdim=True)
        return values * mean_square.add_(self.config.norm_epsilon).rsqrt_()

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Grouped-query attention of [B, T, H, E], already scaled, over [B, G, L, E]; returns [B * T, H * E]."""
        batch, new, heads, dimension = query.shape
        groups = self.config.key_value_heads
        repeated = heads // groups
        # Query heads of one group become rows of one matrix, so that keys are read once and never repeated in memory.
        rows = query.transpose(1, 2).reshape(batch, groups, repeated * new, dimension)
        scores = rows @ keys.transpose(-1, -2)
        if bias is not None:
            scores = (scores.view(batch, heads, new, -1) + bias).view_as(scores)
        mixed: Tensor = (scores.softmax(dim=-1) @ values).view(batch, heads, new, dimension)
        return mixed.transpose(1, 2).reshape(batch * new, heads * dimension)
