"""Llama, Qwen2 and Qwen3: a batched decoder with a key-value cache, and whole sequences with gradients.

Written for throughput on small models, where the cost of a step is the number of operations as much as their size:
projections that share an input are one matrix product, rotary angles are computed once a step, the cache is allocated
once, whole sequences are laid end to end without padding. Same numbers as transformers' models up to rounding.

Shapes: B sequences, T new tokens, L cache length, H query heads, G key-value heads, E head dimension, V vocabulary,
D width, N tokens in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional

from evals.generation.architecture import DecoderConfig
from evals.generation.gradients import Packing, attend_causally, computed_again, normalise, pick

_LONGEST_SCORES = 8
"""Sequence length over head dimension up to which all scores are held: in float32 they take no more than the rest."""


@dataclass(frozen=True)
class _Layer:
    """One block's weights, prepared so that a step takes few operations.

    A norm's own weights are folded into the product that follows it, the scale of attention into the query's norm, or
    into the query's product where there is no such norm.
    Query and key channels are reordered so that the two halves that rotary embedding pairs stand side by side, as one
    complex number; a reordering that queries and keys share leaves their products as they are.
    """

    query_key_value: Tensor
    query_key_value_bias: Tensor | None
    query_key_norm: Tensor | None
    attention_output: Tensor
    attention_output_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class KeyValueCache:
    """Keys and values of every layer, [layers, B, G, L, E], with ``length`` positions filled."""

    def __init__(self, config: DecoderConfig, batch: int, capacity: int, like: Tensor) -> None:
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
            torch.index_select(old[:, :, :, : self.length], 1, rows, out=new[:, :, :, : self.length])
            setattr(chosen, name, new)
        return chosen


class Decoder:
    """Runs tokens through a model; weights have the names of a Hugging Face checkpoint.

    Gradients pass through everything but a cache, down to the weights. Products are computed in ``dtype``, that of the
    head in ``head_dtype``; norms, rotations and the shares of attention in float32.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        head_dtype: torch.dtype = torch.float32,
        gradient_checkpointing: bool = False,
        share_prompts: bool = False,
    ) -> None:
        self.config, self._dtype, self._head_dtype = config, dtype, head_dtype
        self._again, self._share_prompts = gradient_checkpointing, share_prompts
        self._embedding = weights["model.embed_tokens.weight"]
        self._unscaled_head = self._embedding if config.tied_embeddings else weights["lm_head.weight"]
        self._norm = weights["model.norm.weight"]
        self._layers = [self._prepare(weights, f"model.layers.{index}.") for index in range(config.layers)]
        self._rotations = _rotations(config, self.device)

    @cached_property
    def _head(self) -> Tensor:
        """The language-model head with the last norm's weights folded in, [V, D]."""
        return (self._unscaled_head * self._norm).to(self._head_dtype)

    def _prepare(self, weights: Mapping[str, Tensor], prefix: str) -> _Layer:
        """Fold, stack and reorder one block's weights, see :class:`_Layer`."""
        config, attention = self.config, f"{prefix}self_attn."

        def pair(weight: Tensor) -> Tensor:
            halves: Tensor = weight.unflatten(0, (-1, 2, config.head_dimension // 2))
            return halves.transpose(1, 2).flatten(0, 2)

        def stacked(kind: str, scale: float) -> Tensor:
            """The queries' part, scaled, above the keys' and the values'."""
            query, key = (pair(weights[f"{attention}{name}_proj.{kind}"]) for name in "qk")
            return torch.cat([query if scale == 1 else query * scale, key, weights[f"{attention}v_proj.{kind}"]])

        def bias(*names: str) -> Tensor:
            return torch.cat([weights[f"{prefix}{name}.bias"] for name in names])

        scale, norms = config.head_dimension**-0.5, None
        if config.query_key_norms:
            query_norm, key_norm = (pair(weights[f"{attention}{name}_norm.weight"]) for name in "qk")
            shares = [(query_norm * scale).expand(config.heads, -1), key_norm.expand(config.key_value_heads, -1)]
            scale, norms = 1.0, torch.cat(shares)
        gate_up = torch.cat([weights[f"{prefix}mlp.gate_proj.weight"], weights[f"{prefix}mlp.up_proj.weight"]])
        layer = _Layer(
            query_key_value=stacked("weight", scale) * weights[f"{prefix}input_layernorm.weight"],
            query_key_value_bias=stacked("bias", scale) if config.projection_bias else None,
            query_key_norm=norms,
            attention_output=weights[f"{attention}o_proj.weight"],
            attention_output_bias=bias("self_attn.o_proj") if config.output_bias else None,
            gate_up=gate_up * weights[f"{prefix}post_attention_layernorm.weight"],
            gate_up_bias=bias("mlp.gate_proj", "mlp.up_proj") if config.feed_forward_bias else None,
            down=weights[f"{prefix}mlp.down_proj.weight"],
            down_bias=bias("mlp.down_proj") if config.feed_forward_bias else None,
        )
        products = {name: value for name, value in vars(layer).items() if value is not None and value is not norms}
        return replace(layer, **{name: value.to(self._dtype) for name, value in products.items()})

    @property
    def device(self) -> torch.device:
        """The device of the weights and of all inputs."""
        return self._embedding.device

    def new_cache(self, batch: int, capacity: int) -> KeyValueCache:
        """An empty cache for ``batch`` sequences of up to ``capacity`` tokens."""
        return KeyValueCache(self.config, batch, capacity, self._layers[0].down)

    def forward(self, tokens: Tensor, positions: Tensor, bias: Tensor | None, cache: KeyValueCache) -> Tensor:
        """Append ``tokens`` to the cache and return the logits after the last of them.

        Args:
            tokens: [B, T] token ids.
            positions: [B, T] rotary positions, below the model's context length.
            bias: [B, 1, T, L] added to the attention scores: 0 where attended, -inf where not; L = filled length + T.
                None if everything is attended.
            cache: keys and values of what came before.

        Returns:
            Logits [B, V] at the last position, in float32.
        """
        batch, new = tokens.shape
        start, end = cache.length, cache.length + new

        def attend(index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = cache.keys[index, :, :, :end], cache.values[index, :, :, :end]
            keys[:, :, start:] = key.unflatten(0, (batch, new)).transpose(1, 2)
            values[:, :, start:] = value.unflatten(0, (batch, new)).transpose(1, 2)
            return self._attend(query.unflatten(0, (batch, new)), keys, values, bias)

        hidden = functional.embedding(tokens.flatten(), self._embedding).to(self._dtype)
        rotation = self._rotations[positions.flatten()][:, None]
        for index, layer in enumerate(self._layers):
            hidden = self._block(layer, hidden, rotation, partial(attend, index))
        cache.length = end
        last = hidden.view(batch, new, -1)[:, -1].to(self._head_dtype)
        return functional.linear(self._normalise(last), self._head).float()

    def states(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """The inputs of the language-model head [N, D] at each sequence's positions from its start on, in order."""
        packing = Packing(sequences, starts, self.device, self._share_prompts)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            heads = (packing.padded(part).transpose(1, 2) for part in (query, key, value))
            return packing.packed(self._attend_within(*heads).transpose(1, 2).flatten(2))

        hidden = functional.embedding(packing.tokens, self._embedding).to(self._dtype)
        rotation = self._rotations.index_select(0, packing.positions)[:, None]
        again = self._again and torch.is_grad_enabled()
        for layer in self._layers[:-1]:
            block = partial(self._block, layer, rotation=rotation, attend=attend)
            hidden = computed_again(block, hidden) if again else block(hidden)
        # Nobody reads what the last layer makes of the other positions, beyond its keys and values.
        hidden = self._block(self._layers[-1], hidden, rotation, attend, packing.kept)
        return packing.outputs((self._normalise(hidden.to(self._head_dtype)) * self._norm).to(self._head_dtype))

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
        projected = functional.linear(self._normalise(hidden), layer.query_key_value, layer.query_key_value_bias)
        heads = projected.unflatten(-1, (-1, config.head_dimension))
        query_key, value = heads.split([config.heads + config.key_value_heads, config.key_value_heads], dim=1)
        query_key = query_key.float()
        if layer.query_key_norm is not None:
            query_key = self._normalise(query_key) * layer.query_key_norm
        pairs = torch.view_as_complex(query_key.unflatten(-1, (-1, 2)))
        query_key = torch.view_as_real(pairs * rotation).flatten(-2).to(value.dtype)
        query, key = query_key.split([config.heads, config.key_value_heads], dim=1)
        attended = attend(query, key, value)
        if kept is not None:
            hidden, attended = pick(hidden, kept), pick(attended, kept)
        hidden = _add_product(hidden, attended, layer.attention_output, layer.attention_output_bias)
        gate, up = functional.linear(self._normalise(hidden), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return _add_product(hidden, functional.silu(gate) * up, layer.down, layer.down_bias)

    def _attend_within(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention of [B, H, T, E], already scaled, over [B, G, T, E] of the same sequences; gradients pass.

        Padding stands on the right, where a causal model's real tokens cannot see it: it needs no mask.
        """
        config, dtype = self.config, query.dtype
        is_long = query.shape[2] > _LONGEST_SCORES * config.head_dimension
        # torch's attention in bfloat16 is slow on a CPU, above all its gradient; this one computes in float32.
        if is_long or (dtype != torch.float32 and query.device.type == "cuda"):
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=1.0, enable_gqa=True
            )
        rows = query.unflatten(1, (config.key_value_heads, -1)).flatten(2, 3).flatten(0, 1)
        mixed = attend_causally(rows.float(), key.flatten(0, 1).float(), value.flatten(0, 1).float()).to(dtype)
        return mixed.view(query.shape)

    def _normalise(self, values: Tensor) -> Tensor:
        return normalise(values.float(), self.config.norm_epsilon).to(values.dtype)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Grouped-query attention of [B, T, H, E], already scaled, over [B, G, L, E]; returns [B * T, H * E]."""
        batch, new, heads, dimension = query.shape
        groups = self.config.key_value_heads
        repeated = heads // groups
        # Query heads of one group become rows of one matrix, so that keys are read once and never repeated in memory.
        rows = query.transpose(1, 2).reshape(batch, groups, repeated * new, dimension)
        if query.dtype != torch.float32 and query.device.type == "cpu" and new == 1:
            # Products of such numbers would copy keys and values at every step, as they are parts of a larger cache.
            added = None if bias is None else bias.to(rows.dtype)
            mixed = functional.scaled_dot_product_attention(rows, keys, values, added, scale=1.0)
            return mixed.reshape(batch, heads * dimension)
        scores = rows @ keys.transpose(-1, -2)
        if bias is not None:
            scores = (scores.view(batch, heads, new, -1) + bias).view_as(scores)
        shares = scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype)
        mixed = (shares @ values).view(batch, heads, new, dimension)
        return mixed.transpose(1, 2).reshape(batch * new, heads * dimension)


def _add_product(hidden: Tensor, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Add to ``hidden`` [N, D] the product of ``values`` [N, K] with a layer's ``weight`` [D, K], and its bias [D]."""
    return torch.addmm(hidden if bias is None else hidden + bias, values, weight.T)


@cache
def _rotations(config: DecoderConfig, device: torch.device) -> Tensor:
    """exp(i position frequency) for every position and pair of channels, complex [context length, E / 2]."""
    frequencies = config.rotation.frequencies(config.head_dimension, device)
    angles = torch.arange(config.context_length, device=device)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)
