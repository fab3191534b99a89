"""Any ``AutoModelForCausalLM`` checkpoint as a backend: transformers' model, our own loop and random numbers.

``generate`` draws the samples of a batch from one generator, so that each would depend on its neighbours. Here every
sample has the stream that the local backend gives it, and the two agree up to rounding in the logits.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from transformers import AutoModelForCausalLM

from evals.core.errors import UserError
from evals.generation.backend import BackendSettings, Request
from evals.generation.sampler import Draw, Response, SamplingParameters, draw_tokens, uniform_stream


class TransformersBackend:
    """See :class:`evals.generation.backend.Backend`."""

    def __init__(
        self, checkpoint: Path, settings: BackendSettings, sampling: SamplingParameters, end_tokens: Sequence[int]
    ) -> None:
        self._model = load_model(checkpoint, settings)
        self._sampling = sampling
        self._end_tokens = torch.tensor(list(end_tokens), device=settings.device)
        self._device = settings.device

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response to each request, all decoded as one batch padded on the left."""
        longest = max(request.max_new_tokens for request in requests)
        streams = np.stack([uniform_stream(request.identity, longest) for request in requests])
        uniforms = torch.from_numpy(streams).to(self._device)

        def draw(logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
            return draw_tokens(logits[0][row_of], uniforms[running, step], self._sampling)

        return generate_in_step([self._model], requests, self._end_tokens, draw)


def load_model(checkpoint: Path, settings: BackendSettings) -> Module:
    """A checkpoint's model, ready for inference.

    Raises:
        UserError: transformers cannot load it.
    """
    try:
        model: Module = AutoModelForCausalLM.from_pretrained(
            checkpoint,
            dtype=getattr(torch, settings.dtype),
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"{checkpoint}: cannot be loaded by transformers ({_first_line(error)})") from error
    model.to(torch.device(settings.device))
    return model.eval()


@torch.inference_mode()
def generate_in_step(
    models: Sequence[Module], requests: Sequence[Request], end_tokens: Tensor, draw: Draw
) -> list[Response]:
    """One response to each request, as one batch padded on the left; several models read the same tokens, in step.

    Args:
        models: one or more of one vocabulary, each with a cache of its own.
        requests: what is wanted.
        end_tokens: what ends a response, on the models' device.
        draw: as in :func:`evals.generation.sampler.decode_in_step`; here every sample is a history of its own.
    """
    device = end_tokens.device
    limits = torch.tensor([request.max_new_tokens for request in requests], device=device)
    longest = int(limits.max())
    tokens, mask = _pad([request.prompt for request in requests], device)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    drawn = torch.zeros(len(requests), longest, dtype=torch.long, device=device)
    lengths = torch.zeros_like(limits)
    finished = torch.zeros(len(requests), dtype=torch.bool, device=device)
    keep = [
        {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        for model in models
    ]
    caches: list[Any] = [None] * len(models)
    for step in range(longest):
        outputs = [
            model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                **kept,
            )
            for model, cache, kept in zip(models, caches, keep, strict=True)
        ]
        caches = [output.past_key_values for output in outputs]
        running = (~finished & (limits > step)).nonzero()[:, 0]
        new = draw([output.logits[:, -1] for output in outputs], running, running, step)
        drawn[running, step] = new
        lengths[running] += 1
        finished[running] = torch.isin(new, end_tokens)
        if not bool((~finished & (limits > step + 1)).any()):
            break
        tokens, positions = drawn[:, step : step + 1], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(requests), 1)], dim=1)
    rows = zip(drawn.tolist(), lengths.tolist(), finished.tolist(), strict=True)
    return [Response(tokens=row[:length], finished=end) for row, length, end in rows]


def _pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] padded on the left, and where they are real, [B, T]."""
    width = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return tokens.to(device), mask.to(device)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
