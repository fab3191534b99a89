"""The memory of the batched decoder, its passes counted on tensors without numbers (torch's ``meta``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evals.generation.architecture import DecoderConfig
from evals.generation.decoder import DecoderModel
from rlvr.engines.local.memory_parts import OF_ROWS, Part, drawing
from rlvr.engines.local.policy import LOGITS_AT_ONCE

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer


@dataclass(frozen=True)
class CountedDecoder:
    """The batched decoder's model of a checkpoint, as its memory is counted."""

    config: DecoderConfig
    shapes: Mapping[str, list[int]]
    dtype: str
    again: bool
    adapters: Mapping[str, LoraLayer]

    @property
    def head(self) -> tuple[int, int]:
        """The vocabulary and the width of the hidden states."""
        return self.config.vocabulary, self.config.hidden

    def of_sampling(self, rows: int, prompt: int, longest: int) -> list[Part]:
        """List what sampling so many rows holds, of ``longest`` tokens with their ``prompt``."""
        config, itemsize = self.config, getattr(torch, self.dtype).itemsize
        weights = sum(torch.Size(shape).numel() for shape in self.shapes.values())
        of_token = 2 * config.layers * config.key_value_heads * config.head_dimension * itemsize
        return [
            Part(f"weights as the decoder takes them, {self.dtype}", itemsize * weights, "sampling"),
            Part("keys and values", rows * longest * of_token, "sampling", OF_ROWS),
            drawing(rows, config.vocabulary),
        ]

    def of_passes(self, lengths: Sequence[int], targets: int, what: str, settings: str) -> list[Part]:
        """List what a pass with gradients holds over sequences of ``lengths``; ``targets`` tokens have logits."""
        activations, copies = kept_by_passes(
            self.config, self.shapes, self.dtype, self.again, list(lengths), self.adapters
        )
        # The logits, their logarithms, and shares or slopes of the same size.
        of_logits = 3 * 4 * min(LOGITS_AT_ONCE, targets * self.config.vocabulary)
        return [
            Part(f"weights as passes take them, {self.dtype}", copies, "update"),
            Part("gradients of these, before they reach the weights", copies, "update"),
            Part(f"activations of {what}", activations, "update", settings),
            Part("logits of a part of the tokens", of_logits, "update"),
        ]


def kept_by_passes(
    config: DecoderConfig,
    shapes: Mapping[str, list[int]],
    dtype: str,
    again: bool,
    lengths: list[int],
    adapters: Mapping[str, LoraLayer] = MappingProxyType({}),
) -> tuple[int, int]:
    """Bytes of activations that a pass over sequences of ``lengths`` tokens keeps, and of weights in other form."""
    once, twice = (_kept(config, shapes, dtype, again, number * lengths, adapters) for number in (1, 2))
    if not again:
        return twice - once, 2 * once - twice
    # Layers that are computed again are held by their inputs, and one at a time is then kept whole.
    whole, copies = kept_by_passes(config, shapes, dtype, False, lengths, adapters)
    inputs = (config.layers - 1) * sum(lengths) * config.hidden * getattr(torch, dtype).itemsize
    return twice - once + inputs + whole // config.layers, copies


def _kept(
    config: DecoderConfig,
    shapes: Mapping[str, list[int]],
    precision: str,
    again: bool,
    lengths: list[int],
    adapters: Mapping[str, LoraLayer],
) -> int:
    """Bytes that a pass keeps for its gradient, beside the weights themselves."""
    dtype = getattr(torch, precision)
    weights = {
        name: torch.empty(shape, device="meta", dtype=dtype if adapters and len(shape) > 1 else torch.float32)
        for name, shape in shapes.items()
    }
    model = DecoderModel(config, weights, dtype, again)
    if adapters:
        from rlvr.engines.local.lora import AdaptedDecoder

        model = AdaptedDecoder(model, adapters)
    saved: dict[int, Tensor] = {}  # by storage; held, so that no other storage takes its place

    def keep(tensor: Tensor) -> Tensor:
        saved.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.states([[0] * length for length in lengths], [0] * len(lengths))
    # By storage, as products keep transposed views of the weights, which take no memory of their own.
    own = {weight.untyped_storage()._cdata for weight in (*weights.values(), *model.parameters())}
    return sum(tensor.untyped_storage().nbytes() for place, tensor in saved.items() if place not in own)
