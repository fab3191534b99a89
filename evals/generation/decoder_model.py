"""A model of the batched decoder whose weights can be trained.

Shapes: N tokens in all, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from evals.generation.architecture import DecoderConfig
from evals.generation.backend import Response
from evals.generation.decoder import Decoder
from evals.generation.sampler import sample

DECODER = "batched decoder"
"""The name in manifests of what computes these models."""


class DecoderModel:
    """A model whose weights can be trained: leaves of the graph, under the names of a Hugging Face checkpoint."""

    padded = False  # whether a pass computes every sequence at the length of its longest one
    backend = DECODER

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        head_dtype: torch.dtype = torch.float32,
        gradient_checkpointing: bool = False,
        share_prompts: bool = False,
    ) -> None:
        """Take the weights, in float32; passes compute in ``dtype``, and may compute layers again for the gradient.

        ``share_prompts``: see :class:`evals.generation.gradients.Packing`.
        """
        self.config, self.dtype, self.head_dtype = config, dtype, head_dtype
        self._again, self._share_prompts = gradient_checkpointing, share_prompts
        self._weights = {name: weight.requires_grad_() for name, weight in weights.items() if name in config.shapes}

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self._weights.items())

    def parameters(self) -> Iterator[Tensor]:
        return iter(self._weights.values())

    @property
    def head_weight(self) -> Tensor:
        """The language-model head, [V, D]."""
        return self._weights["model.embed_tokens.weight" if self.config.tied_embeddings else "lm_head.weight"]

    @property
    def device(self) -> torch.device:
        return self.head_weight.device

    def weights(self) -> Mapping[str, Tensor]:
        """The whole model's weights under the names of its checkpoint; gradients pass to the parameters."""
        return self._weights

    def decoder(self) -> Decoder:
        """The sampler's decoder, of use until the weights change."""
        weights = {name: weight.detach() for name, weight in self._weights.items()}
        return Decoder(self.config, weights, self.dtype, self.head_dtype)

    def sampler(self) -> Callable[..., list[list[Response]]]:
        """Return the sampler, of use until the weights change (:func:`evals.generation.sampler.sample`)."""
        return partial(sample, self.decoder())

    def states(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """See :meth:`Decoder.states`; gradients pass to the weights."""
        types = self.dtype, self.head_dtype
        decoder = Decoder(self.config, self.weights(), *types, self._again, self._share_prompts)
        return decoder.states(sequences, starts)

    def logits(self, states: Tensor, temperature: float) -> Tensor:
        """The logits over the temperature [N, V] of the head's inputs [N, D], in float32; gradients pass."""
        weight = self.head_weight if temperature == 1 else self.head_weight / temperature  # a copy of a large matrix
        return functional.linear(states, weight.to(states.dtype)).float()
