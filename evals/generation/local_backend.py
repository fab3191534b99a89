"""The sampler of the local engine as a backend: Llama, Qwen2 and Qwen3, shared prefixes computed once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from evals.core.errors import InvalidInput
from evals.core.run_spec import LOCAL_DTYPES
from evals.generation.architecture import UnknownArchitecture
from evals.generation.backend import Backend, BackendSettings, Draws, Request, Response
from evals.generation.checkpoint import Checkpoint
from evals.generation.sampler import decode_in_step, own_draws


class LocalBackend(Backend):
    """The local sampler; the responses of a batch come together, so that an interrupted batch is made again whole."""

    def __init__(self, checkpoints: Sequence[Checkpoint], settings: BackendSettings) -> None:
        if settings.dtype not in LOCAL_DTYPES:
            raise InvalidInput("", "dtype", f"is {settings.dtype!r} with backend local", ", ".join(LOCAL_DTYPES))
        self._instead: Backend | None = None
        try:
            given = settings.device, settings.dtype, settings.head_dtype
            self._decoders = [checkpoint.decoder(*given) for checkpoint in checkpoints]
        except UnknownArchitecture as reason:
            reason.refuse_head(settings.head_dtype)
            from evals.generation.transformers_backend import TransformersBackend

            print(f"{reason}; transformers' own model samples instead", flush=True)
            self._instead = TransformersBackend(checkpoints, settings)
        self._end_tokens = settings.end_tokens
        self._own = own_draws(settings.sampling, settings.stop, checkpoints[0].tokenizer, settings.end_tokens)

    def stream(self, requests: Iterable[Request], draws: Draws | None = None) -> Iterator[Mapping[int, Response]]:
        """Answer each request; requests of equal length limit are decoded together, those of one prompt share rows."""
        requests = list(requests)
        if self._instead is not None:
            yield from self._instead.stream(requests, draws)
            return
        responses: dict[int, Response] = {}
        for limit in sorted({request.max_new_tokens for request in requests}):
            chosen = [index for index, request in enumerate(requests) if request.max_new_tokens == limit]
            prompts = list(dict.fromkeys(requests[index].prompt for index in chosen))
            row_of = {prompt: row for row, prompt in enumerate(prompts)}
            rows = [row_of[requests[index].prompt] for index in chosen]
            draw = (draws or self._own)([requests[index].identity for index in chosen], limit, self._decoders[0].device)
            made = decode_in_step(self._decoders, prompts, rows, limit, self._end_tokens, draw)
            responses.update(zip(chosen, made, strict=True))
        yield {index: responses[index] for index in range(len(requests))}
