"""The sampler of the laptop engine as a backend: Qwen3 in float32, shared prefixes computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.generation.backend import BackendSettings, Request
from evals.generation.checkpoint import load_decoder
from evals.generation.sampler import Response, SamplingParameters, sample


class LocalBackend:
    """See :class:`evals.generation.backend.Backend`."""

    def __init__(
        self, checkpoint: Path, settings: BackendSettings, sampling: SamplingParameters, end_tokens: Sequence[int]
    ) -> None:
        if settings.dtype != "float32":
            raise UserError(f"dtype: is {settings.dtype!r} with backend local; accepted: float32")
        if len(end_tokens) != 1:
            raise UserError(
                f"{checkpoint}: has the end tokens {list(end_tokens)}; backend local takes a single one; accepted: "
                "backend transformers or vllm"
            )
        self._decoder = load_decoder(checkpoint, settings.device)
        self._sampling = sampling
        self._end_token = end_tokens[0]

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response to each request; requests of equal length limit are decoded together."""
        responses: dict[int, Response] = {}
        for limit in sorted({request.max_new_tokens for request in requests}):
            places: dict[tuple[int, ...], list[int]] = {}  # samples of one prompt share its rows
            for index, request in enumerate(requests):
                if request.max_new_tokens == limit:
                    places.setdefault(request.prompt, []).append(index)
            groups = sample(
                self._decoder,
                list(places),
                [[requests[index].identity for index in indices] for indices in places.values()],
                dataclasses.replace(self._sampling, max_new_tokens=limit),
                self._end_token,
            )
            for indices, group in zip(places.values(), groups, strict=True):
                responses.update(zip(indices, group, strict=True))
        return [responses[index] for index in range(len(requests))]
