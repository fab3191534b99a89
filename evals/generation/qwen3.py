"""The Qwen3 architecture: a batched decoder with a key-value cache, and whole sequences with gradients.

Written for throughput on small models, where the cost of a step is the number of operations as much as their size:
projections that share an input are one matrix product, rotary angles are computed once a step, the cache is allocated
once, whole sequences are laid end to end without padding. Same numbers as ``transformers``' Qwen3ForCausalLM up to
rounding.

Shapes: B sequences, T new tokens, L cache length, H query heads, G key-value heads, E head dimension, V vocabulary,
D width, N tokens in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evals.core.errors import UserError
from evals.generation.gradients import attend_causally, normalise, pick, spread

_LONGEST_SCORES = 8
"""Sequence length over head dimension up to which all scores are held: they take no more memory than the rest."""


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


class Qwen3Model:
    """A Qwen3 model whose weights can be trained: leaves of the graph, under the names of a Hugging Face checkpoint."""

    def __init__(self, config: Qwen3Config, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        tied = {"lm_head.weight"} if config.tied_embeddings else set()
        self._weights = {name: weight.requires_grad_() for name, weight in weights.items() if name not in tied}

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The weights and their names."""
        return iter(self._weights.items())

    def parameters(self) -> Iterator[Tensor]:
        """The weights, in the same order."""
        return iter(self._weights.values())

    @property
    def head_weight(self) -> Tensor:
        """The language-model head, [V, D]."""
        return self._weights["model.embed_tokens.weight" if self.config.tied_embeddings else "lm_head.weight"]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.head_weight.device

    def decoder(self) -> Qwen3Decoder:
        """The sampler's decoder, of use until the weights change."""
        return Qwen3Decoder(self.config, {name: weight.detach() for name, weight in self._weights.items()})

    def states(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """See :meth:`Qwen3Decoder.states`; gradients pass to the weights."""
        return Qwen3Decoder(self.config, self._weights).states(sequences, starts)

    def logits(self, states: Tensor, temperature: float) -> Tensor:
        """The logits over the temperature [N, V] of the head's inputs [N, D]; gradients pass."""
        return functional.linear(states, self.head_weight / temperature)


class Qwen3Decoder:
    """Runs tokens through a Qwen3 model; weights have the names of a Hugging Face checkpoint.

    Gradients pass through everything but a cache, down to the weights.
    """

    def __init__(self, config: Qwen3Config, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        try:
            self._embedding = weights["model.embed_tokens.weight"]
            self._unscaled_head = self._embedding if config.tied_embeddings else weights["lm_head.weight"]
            self._norm = weights["model.norm.weight"]
            self._layers = [self._prepare(weights, f"model.layers.{index}.") for index in range(config.layers)]
        except KeyError as error:
            raise UserError(f"checkpoint: lacks the weight {error.args[0]}") from None
        self._rotations = _rotations(config, self.device)

    @cached_property
    def _head(self) -> Tensor:
        """The language-model head with the last norm's weights folded in, [V, D]."""
        return self._unscaled_head * self._norm

    def _prepare(self, weights: Mapping[str, Tensor], prefix: str) -> _Layer:
        """Fold, stack and reorder one block's weights, see :class:`_Layer`."""
        config, attention = self.config, f"{prefix}self_attn."

        def pair(weight: Tensor) -> Tensor:
            halves: Tensor = weight.unflatten(0, (-1, 2, config.head_dimension // 2))
            return halves.transpose(1, 2).flatten(0, 2)

        query, key = (pair(weights[f"{attention}{name}_proj.weight"]) for name in "qk")
        query_norm, key_norm = (pair(weights[f"{attention}{name}_norm.weight"]) for name in "qk")
        gate_up = torch.cat([weights[f"{prefix}mlp.gate_proj.weight"], weights[f"{prefix}mlp.up_proj.weight"]])
        return _Layer(
            query_key_value=torch.cat([query, key, weights[f"{attention}v_proj.weight"]])
            * weights[f"{prefix}input_layernorm.weight"],
            query_key_norm=torch.cat(
                [
                    (query_norm * config.head_dimension**-0.5).expand(config.heads, -1),
                    key_norm.expand(config.key_value_heads, -1),
                ]
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
        batch, new = tokens.shape
        start, end = cache.length, cache.length + new

        def attend(index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = cache.keys[index, :, :, :end], cache.values[index, :, :, :end]
            keys[:, :, start:] = key.unflatten(0, (batch, new)).transpose(1, 2)
            values[:, :, start:] = value.unflatten(0, (batch, new)).transpose(1, 2)
            return self._attend(query.unflatten(0, (batch, new)), keys, values, bias)

        hidden = functional.embedding(tokens.flatten(), self._embedding)
        rotation = self._rotations[positions.flatten()][:, None]
        for index, layer in enumerate(self._layers):
            hidden = self._block(layer, hidden, rotation, partial(attend, index))
        cache.length = end
        return functional.linear(self._normalise(hidden.view(batch, new, -1)[:, -1]), self._head)

    def states(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """The inputs of the language-model head [N, D] at each sequence's positions from its start on, in order."""
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        tokens = torch.tensor([token for sequence in sequences for token in sequence])
        row = torch.arange(len(lengths)).repeat_interleave(lengths)
        position = torch.arange(len(tokens)) - (lengths.cumsum(0) - lengths)[row]
        kept = (position >= torch.tensor(starts)[row]).nonzero()[:, 0].to(self.device)
        width = int(lengths.max())
        grid = (row * width + position).to(self.device)  # the tokens' places among B x T padded ones

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            heads = (spread(part, grid, len(lengths) * width) for part in (query, key, value))
            query, key, value = (part.unflatten(0, (-1, width)).transpose(1, 2) for part in heads)
            mixed = self._attend_within(query, key, value)
            return pick(mixed.transpose(1, 2).reshape(len(lengths) * width, -1), grid)

        hidden = functional.embedding(tokens.to(self.device), self._embedding)
        rotation = self._rotations.index_select(0, position.to(self.device))[:, None]
        for layer in self._layers[:-1]:
            hidden = self._block(layer, hidden, rotation, attend)
        # Nobody reads what the last layer makes of the other positions, beyond its keys and values.
        hidden = self._block(self._layers[-1], hidden, rotation, attend, kept)
        return self._normalise(hidden) * self._norm

    def _block(
        self,
        layer: _Layer,
        hidden: Tensor,
        rotation: Tensor,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
        kept: Tensor | None = None,
    ) -> Tensor:
        """One layer's output [N, D], or [K, D] at the places ``kept`` [K], of its input [N, D].

        ``attend`` takes queries [N, H, E], already scaled, keys and values [N, G, E] to what is attended, [N, H * E].
        """
        config = self.config
        projected = functional.linear(self._normalise(hidden), layer.query_key_value)
        heads = projected.unflatten(-1, (-1, config.head_dimension))
        query_key, value = heads.split([config.heads + config.key_value_heads, config.key_value_heads], dim=1)
        unrotated = self._normalise(query_key) * layer.query_key_norm
        pairs = torch.view_as_complex(unrotated.unflatten(-1, (-1, 2)))
        query_key = torch.view_as_real(pairs * rotation).flatten(-2)
        query, key = query_key.split([config.heads, config.key_value_heads], dim=1)
        attended = attend(query, key, value)
        if kept is not None:
            hidden, attended = pick(hidden, kept), pick(attended, kept)
        hidden = torch.addmm(hidden, attended, layer.attention_output.T)
        gate, up = functional.linear(self._normalise(hidden), layer.gate_up).chunk(2, dim=-1)
        return torch.addmm(hidden, functional.silu(gate) * up, layer.down.T)

    def _attend_within(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention of [B, H, T, E], already scaled, over [B, G, T, E] of the same sequences; gradients pass.

        Padding stands on the right, where a causal model's real tokens cannot see it: it needs no mask.
        """
        config = self.config
        if query.shape[2] > _LONGEST_SCORES * config.head_dimension:
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=1.0, enable_gqa=True
            )
        rows = query.unflatten(1, (config.key_value_heads, -1)).flatten(2, 3).flatten(0, 1)
        mixed = attend_causally(rows, key.flatten(0, 1), value.flatten(0, 1))
        return mixed.view(query.shape)

    def _normalise(self, values: Tensor) -> Tensor:
        return normalise(values, self.config.norm_epsilon)

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


@cache
def _rotations(config: Qwen3Config, device: torch.device) -> Tensor:
    """exp(i position frequency) for every position and pair of channels, complex [context length, E / 2]."""
    exponents = torch.arange(0, config.head_dimension, 2, dtype=torch.float32, device=device)
    frequencies: Tensor = config.rope_theta ** -(exponents / config.head_dimension)
    angles = torch.arange(config.context_length, device=device)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)
