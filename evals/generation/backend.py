"""The interface of all backends: requests in, responses out, each with random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evals.generation.sampler import Draws, Response, SamplingParameters


@dataclass(frozen=True)
class Request:
    """One sample that is wanted.

    Attributes:
        prompt: token ids, passed on unchanged, so that no backend can add a second BOS.
        identity: decides the sample's random numbers; nothing else does.
        max_new_tokens: longest response, its end token included.
    """

    prompt: tuple[int, ...]
    identity: str
    max_new_tokens: int


@dataclass(frozen=True)
class BackendSettings:
    """The settings of a loaded model.

    Attributes:
        dtype: of weights and activations, such as "bfloat16".
        device: "cpu" or "cuda".
        context_length: longest prompt and response together, in tokens.
        end_tokens: ids that end a response.
        sampling: how tokens are drawn.
        tensor_parallel_size: GPUs that one model is spread over.
        gpu_memory_utilization: share of a GPU's memory that vLLM takes.
    """

    dtype: str
    device: str
    context_length: int
    end_tokens: Sequence[int]
    sampling: SamplingParameters
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9


class Backend(Protocol):
    """One loaded model, or several of one vocabulary that read the same tokens in step."""

    def generate(self, requests: Sequence[Request], draws: Draws | None = None) -> list[Response]:
        """Answer each request, in order; all of them are decoded together.

        Args:
            requests: what is wanted.
            draws: the rule that tokens are drawn by; None draws from the only model.
        """
        ...
