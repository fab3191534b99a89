"""Rollouts by vLLM, in the trainer's process: the policy's weights are handed over in memory before each rollout batch.

vLLM draws by itself, seeded by each rollout's identity, so rollouts are not those that the trainer's own sampler draws.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from evals.core.errors import InvalidInput, UserError
from evals.core.run_spec import LocalRun
from evals.core.sampling import SamplingParameters
from evals.generation.backend import BackendSettings, Draws, Request, Response, engine_version
from evals.generation.checkpoint import Checkpoint
from evals.generation.vllm_backend import VllmBackend
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import sampling_of

_BLOCK = 128
"""The most tokens that vLLM keeps in one block of keys and values: 16 on GPUs, 128 on CPUs."""

_KL_LIMIT = 0.1
"""Nats a token, as verl's ``cluster.rollout_kl_limit`` is by default; bfloat16 alone makes far less."""


class VllmRollouts:
    """One vLLM for a whole training."""

    def __init__(
        self, checkpoint: Checkpoint, run: LocalRun, device: str, longest_prompt: int, end_tokens: Sequence[int]
    ) -> None:
        """Load the base model, whose weights only have to have the right shapes."""
        self._run, training = run, run.training
        self.name = f"vllm {engine_version('vllm')}, seeded by rollout"
        longest = longest_prompt + training.max_new_tokens
        # In this process, or the weights would have to be sent to another one; two lines of warnings a hand-over.
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
        rows = min(training.sampling_batch_size, training.rollouts_per_step)
        settings = BackendSettings(
            run.dtype,
            device,
            longest,
            end_tokens,
            sampling_of(training),
            gpu_memory_utilization=0.05,  # of no meaning: the next line says how much
            key_value_bytes=key_value_bytes(checkpoint.config, run.dtype, rows, longest),
            with_log_probs=True,
        )
        set_threads, threads = torch.set_num_threads, torch.get_num_threads()
        with _any_kernels():
            self._backend = VllmBackend([checkpoint], settings)
        torch.set_num_threads = set_threads  # vLLM for CPUs forbids it to the whole process
        torch.set_num_threads(threads)

    def sampler(self, policy: Policy) -> VllmRollouts:
        """Hand the policy's weights over; of use until they change."""
        with _any_kernels():
            self._backend.take_weights(policy.weights())
        return self

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        identities: Sequence[Sequence[str]],
        parameters: SamplingParameters,
        end_tokens: Sequence[int],
        draws: Draws | None = None,
    ) -> list[list[Response]]:
        """Sample as :func:`evals.generation.sampler.sample` does, but for the rule, which is vLLM's own."""
        self._backend.sampling = parameters
        longest = parameters.max_new_tokens
        requests = [
            Request(tuple(prompt), name, longest)
            for prompt, names in zip(prompts, identities, strict=True)
            for name in names
        ]
        with _any_kernels():
            in_order = iter(self._backend.generate(requests))
            return [[next(in_order) for _ in names] for names in identities]

    def check(self, divergence: float) -> None:
        """Check vLLM's divergence from the trainer in nats a token; UserError if it has another policy.

        With ``top_p`` below 1 the divergence includes the share of the probability that vLLM leaves out.
        """
        if not divergence <= _KL_LIMIT:
            raise UserError(
                f"{self._run.run}: vLLM's distribution has a KL divergence of {divergence:.3g} nats a token from the "
                f"trainer's; accepted: {_KL_LIMIT} at most (float32 rounds less; sampling_backend local samples by "
                "the trainer's own model)"
            )


@contextmanager
def _any_kernels() -> Iterator[None]:
    """Let torch take any kernel for a while: vLLM's compiler, which measures them, refuses a process that asks for
    those that repeat themselves, as the trainer does on a GPU.
    """
    asked = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(asked, warn_only=warn_only)


def key_value_bytes(config: Mapping[str, Any], dtype: str, rows: int, longest: int) -> int:
    """The bytes of keys and values of so many rows of so many tokens, in whole blocks, and a block that vLLM keeps."""
    return bytes_of_token(config, dtype) * _BLOCK * (rows * -(-longest // _BLOCK) + 1)


def bytes_of_token(config: Mapping[str, Any], dtype: str) -> int:
    """The bytes of a token's keys and values in all layers, from the content of config.json."""
    config = config.get("text_config", config)
    heads = config.get("num_attention_heads", 0)
    layers = config.get("num_hidden_layers")
    width = config.get("head_dim") or config.get("hidden_size", 0) // (heads or 1)
    if not (layers and width and heads):
        raise InvalidInput(
            "config.json", "num_hidden_layers", "is not there, nor what a head is", "a model with these two"
        )
    groups: int = config.get("num_key_value_heads") or heads
    return int(2 * layers * groups * width * getattr(torch, dtype).itemsize)
