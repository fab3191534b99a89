"""Two Qwen3 models on the sampler of the laptop engine: shared prefixes computed once by each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.decoding.draw import Observer, PairDraw
from evals.decoding.pair import PairResponse
from evals.decoding.settings import Decoding
from evals.generation.backend import BackendSettings, Request
from evals.generation.checkpoint import load_decoder
from evals.generation.sampler import SamplingParameters, decode_in_step


class LocalPair:
    """See :class:`evals.decoding.pair.Pair`."""

    def __init__(
        self,
        base: Path,
        trained: Path,
        settings: BackendSettings,
        sampling: SamplingParameters,
        end_tokens: Sequence[int],
    ) -> None:
        if settings.dtype != "float32":
            raise UserError(f"dtype: is {settings.dtype!r} with backend local; accepted: float32")
        if len(end_tokens) != 1:
            raise UserError(
                f"{base}, {trained}: have the end tokens {list(end_tokens)}; backend local takes a single one; "
                "accepted: backend transformers"
            )
        self._decoders = [load_decoder(checkpoint, settings.device) for checkpoint in (base, trained)]
        self._sampling = sampling
        self._end_token = end_tokens[0]

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, observer: Observer | None = None
    ) -> list[PairResponse]:
        """One response to each request; requests of equal length limit are decoded together."""
        responses: dict[int, PairResponse] = {}
        for limit in sorted({request.max_new_tokens for request in requests}):
            chosen = [index for index, request in enumerate(requests) if request.max_new_tokens == limit]
            prompts = list(dict.fromkeys(requests[index].prompt for index in chosen))
            place = {prompt: row for row, prompt in enumerate(prompts)}
            rows = [place[requests[index].prompt] for index in chosen]
            identities = [requests[index].identity for index in chosen]
            draw = PairDraw(decoding, self._sampling, identities, limit, self._decoders[0].device, observer)
            made = decode_in_step(self._decoders, prompts, rows, limit, self._end_token, draw)
            for index, response, replaced in zip(chosen, made, draw.replaced.tolist(), strict=True):
                responses[index] = PairResponse(response.tokens, response.finished, replaced)
        return [responses[index] for index in range(len(requests))]
