"""Any two ``AutoModelForCausalLM`` checkpoints of one vocabulary, decoded in step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from evals.decoding.draw import Observer, PairDraw
from evals.decoding.pair import PairResponse
from evals.decoding.settings import Decoding
from evals.generation.backend import BackendSettings, Request
from evals.generation.sampler import SamplingParameters
from evals.generation.transformers_backend import generate_in_step, load_model


class TransformersPair:
    """See :class:`evals.decoding.pair.Pair`."""

    def __init__(
        self,
        base: Path,
        trained: Path,
        settings: BackendSettings,
        sampling: SamplingParameters,
        end_tokens: Sequence[int],
    ) -> None:
        self._models = [load_model(checkpoint, settings) for checkpoint in (base, trained)]
        self._sampling = sampling
        self._end_tokens = torch.tensor(list(end_tokens), device=settings.device)

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, observer: Observer | None = None
    ) -> list[PairResponse]:
        """One response to each request, all decoded as one batch padded on the left."""
        longest = max(request.max_new_tokens for request in requests)
        identities = [request.identity for request in requests]
        draw = PairDraw(decoding, self._sampling, identities, longest, self._end_tokens.device, observer)
        made = generate_in_step(self._models, requests, self._end_tokens, draw)
        return [
            PairResponse(response.tokens, response.finished, replaced)
            for response, replaced in zip(made, draw.replaced.tolist(), strict=True)
        ]
