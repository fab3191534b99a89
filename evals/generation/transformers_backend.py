"""Any ``AutoModelForCausalLM`` checkpoint as a backend: transformers' model, our own loop and random numbers.

``generate`` draws the samples of a batch from one generator, so that each would depend on its neighbours. Here every
sample has the stream that the local backend gives it, and the two agree up to rounding in the logits.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from evals.errors import UserError
from evals.generation.backend import BackendSettings, Request
from evals.generation.sampler import Response, SamplingParameters, draw_tokens, uniform_stream


class TransformersBackend:
    """See :class:`evals.generation.backend.Backend`."""

    def __init__(
        self, checkpoint: Path, settings: BackendSettings, sampling: SamplingParameters, end_tokens: Sequence[int]
    ) -> None:
        try:
            model = AutoModelForCausalLM.from_pretrained(
                checkpoint,
                dtype=getattr(torch, settings.dtype),
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise UserError(f"{checkpoint}: cannot be loaded by transformers ({_first_line(error)})") from error
        self._model = model.eval()
        self._model.to(torch.device(settings.device))
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._sampling = sampling
        self._end_tokens = torch.tensor(list(end_tokens), device=settings.device)
        self._device = settings.device

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response to each request, all decoded as one batch padded on the left."""
        limits = torch.tensor([request.max_new_tokens for request in requests], device=self._device)
        longest = int(limits.max())
        streams = np.stack([uniform_stream(request.identity, longest) for request in requests])
        uniforms = torch.from_numpy(streams).to(self._device)
        tokens, mask = self._pad([request.prompt for request in requests])
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        drawn = torch.zeros(len(requests), longest, dtype=torch.long, device=self._device)
        lengths = torch.zeros_like(limits)
        finished = torch.zeros(len(requests), dtype=torch.bool, device=self._device)
        cache = None
        for step in range(longest):
            keep = {"logits_to_keep": 1} if self._keeps_logits else {}
            output = self._model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                **keep,
            )
            cache = output.past_key_values
            new = draw_tokens(output.logits[:, -1], uniforms[:, step], self._sampling)
            running = ~finished & (limits > step)
            drawn[:, step] = torch.where(running, new, 0)
            lengths += running
            finished |= running & torch.isin(new, self._end_tokens)
            if not bool((~finished & (limits > step + 1)).any()):
                break
            tokens, positions = drawn[:, step : step + 1], positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(requests), 1)], dim=1)
        rows = zip(drawn.tolist(), lengths.tolist(), finished.tolist(), strict=True)
        return [Response(tokens=row[:length], finished=end) for row, length, end in rows]

    def _pad(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids [B, T] padded on the left, and where they are real, [B, T]."""
        width = max(map(len, prompts))
        tokens = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        return tokens.to(self._device), mask.to(self._device)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
