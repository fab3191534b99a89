"""The numbers of the architectures that the batched decoder knows, from a checkpoint's ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evals.core.errors import InvalidInput, UserError

FAMILIES = ("llama", "qwen2", "qwen3")
"""The model types: decoders of one kind, which differ in biases and in the norms of queries and keys."""


class UnknownArchitecture(UserError):
    """The batched decoder does not compute this model; transformers may."""

    def refuse_head(self, head_dtype: str | None) -> None:
        """Refuse a head of a precision of its own, which transformers' models are not given here."""
        if head_dtype is not None:
            raise InvalidInput("", "head_dtype", f"is {head_dtype}, and {self}", "none") from None


@dataclass(frozen=True)
class Rotation:
    """The frequencies of rotary embedding.

    Attributes:
        theta: base of the frequencies.
        kind: ``default``; ``linear``, all frequencies over ``factor``; or ``llama3``, over ``factor`` those whose
            wavelength exceeds ``original_context / low_frequency_factor``, none of a wavelength below
            ``original_context / high_frequency_factor``, and parts of both between.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Rotation:
        """Read a checkpoint's configuration, of transformers 5 or of earlier versions."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "linear", "llama3") or rope.get("partial_rotary_factor", 1.0) != 1.0:
            reason = f"rope_type is {kind!r}" if kind != "default" else "rotates parts of the heads"
            raise UnknownArchitecture(f"{source}: {reason}; the batched decoder accepts default, linear and llama3")
        if kind == "default":
            return cls(theta)
        if kind == "linear":
            return cls(theta, kind, float(rope["factor"]))
        return cls(
            theta,
            kind,
            float(rope["factor"]),
            float(rope["low_freq_factor"]),
            float(rope["high_freq_factor"]),
            int(rope["original_max_position_embeddings"]),
        )

    def frequencies(self, dimension: int, device: torch.device) -> Tensor:
        """Compute radians per position of each pair of a head's ``dimension`` channels, [E / 2]."""
        exponents = torch.arange(0, dimension, 2, dtype=torch.float32, device=device)
        frequencies: Tensor = self.theta ** -(exponents / dimension)
        if self.kind == "default":
            return frequencies
        if self.kind == "linear":
            return frequencies / self.factor
        turns = self.original_context * frequencies / (2 * math.pi)  # within the original context
        span = self.high_frequency_factor - self.low_frequency_factor
        kept = ((turns - self.low_frequency_factor) / span).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class DecoderConfig:
    """The architecture's numbers."""

    vocabulary: int
    hidden: int
    feed_forward: int  # channels within a feed-forward layer
    layers: int
    heads: int
    key_value_heads: int
    head_dimension: int
    norm_epsilon: float
    rotation: Rotation
    context_length: int
    tied_embeddings: bool
    query_key_norms: bool  # whether queries and keys are normalised, with weights of their own
    projection_bias: bool  # whether the products that make queries, keys and values add a bias
    output_bias: bool  # whether that of the attention's output does
    feed_forward_bias: bool  # whether those of the feed-forward layers do

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> DecoderConfig:
        """Read a checkpoint's configuration; ``source`` names it in messages.

        :class:`UnknownArchitecture` if the batched decoder does not compute such a model.
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            accepted = ", ".join(FAMILIES)
            raise UnknownArchitecture(f"{source}: model_type is {family!r}; the batched decoder accepts {accepted}")
        if config.get("quantization_config"):
            raise UnknownArchitecture(f"{source}: has a quantization_config; the batched decoder accepts none")
        config = {key: value for key, value in config.items() if value is not None}
        if config.get("use_sliding_window") or set(config.get("layer_types", ())) - {"full_attention"}:
            raise UnknownArchitecture(f"{source}: use_sliding_window must be false for the batched decoder")
        if (activation := config.get("hidden_act", "silu")) != "silu":
            raise UnknownArchitecture(f"{source}: hidden_act is {activation!r}; the batched decoder accepts silu")
        bias = family != "qwen2" and bool(config.get("attention_bias"))
        try:
            heads, hidden = config["num_attention_heads"], config["hidden_size"]
            own_dimension = config["head_dim"] if family == "qwen3" else config.get("head_dim")
            return cls(
                vocabulary=config["vocab_size"],
                hidden=hidden,
                feed_forward=config["intermediate_size"],
                layers=config["num_hidden_layers"],
                heads=heads,
                key_value_heads=config.get("num_key_value_heads") or heads,
                head_dimension=own_dimension or hidden // heads,
                norm_epsilon=config["rms_norm_eps"],
                rotation=Rotation.from_json(config, source),
                context_length=config["max_position_embeddings"],
                tied_embeddings=bool(config.get("tie_word_embeddings", False)),
                query_key_norms=family == "qwen3",
                projection_bias=bias or family == "qwen2",
                output_bias=bias,
                feed_forward_bias=family == "llama" and bool(config.get("mlp_bias")),
            )
        except KeyError as error:
            raise UserError(f"{source}: lacks the key {error.args[0]}") from None

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of each weight, by its name in a checkpoint; products are [outputs, inputs]."""
        queries, keys = self.heads * self.head_dimension, self.key_value_heads * self.head_dimension
        products = {
            "self_attn.q_proj": (queries, self.hidden, self.projection_bias),
            "self_attn.k_proj": (keys, self.hidden, self.projection_bias),
            "self_attn.v_proj": (keys, self.hidden, self.projection_bias),
            "self_attn.o_proj": (self.hidden, queries, self.output_bias),
            "mlp.gate_proj": (self.feed_forward, self.hidden, self.feed_forward_bias),
            "mlp.up_proj": (self.feed_forward, self.hidden, self.feed_forward_bias),
            "mlp.down_proj": (self.hidden, self.feed_forward, self.feed_forward_bias),
        }
        norms = {"input_layernorm": self.hidden, "post_attention_layernorm": self.hidden}
        if self.query_key_norms:
            norms |= {"self_attn.q_norm": self.head_dimension, "self_attn.k_norm": self.head_dimension}
        of_layer = {f"{name}.weight": [outputs, inputs] for name, (outputs, inputs, _) in products.items()}
        of_layer |= {f"{name}.bias": [outputs] for name, (outputs, _, has_bias) in products.items() if has_bias}
        of_layer |= {f"{name}.weight": [size] for name, size in norms.items()}
        head = {} if self.tied_embeddings else {"lm_head.weight": [self.vocabulary, self.hidden]}
        return {
            "model.embed_tokens.weight": [self.vocabulary, self.hidden],
            "model.norm.weight": [self.hidden],
            **head,
            **{
                f"model.layers.{layer}.{name}": shape
                for layer in range(self.layers)
                for name, shape in of_layer.items()
            },
        }
