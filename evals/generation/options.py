"""The settings of sampling as they are given on a command line, checked before anything heavy is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evals.core.errors import UserError

if TYPE_CHECKING:
    from evals.generation.plan import EvaluationSettings


@dataclass(frozen=True)
class SamplingOptions:
    """The options that every command that samples has.

    Attributes:
        prompt: template with ``{problem}`` in it.
        samples_per_problem: the k of avg@k.
        max_new_tokens: of a response.
        temperature: 0 or more.
        top_p: more than 0, at most 1.
        batch_size: samples decoded at a time.
        seed: of the samples' random numbers.
        threads: that torch keeps to.
        backend: what generates; vllm has an environment of its own.
        prompt_form: base for plain text, chat for the model's chat template.
        dtype: of weights and activations; auto: the checkpoint's own.
        max_model_len: a context shorter than the model's, in tokens.
        device: that it runs on.
    """

    prompt: str
    samples_per_problem: int
    max_new_tokens: int
    temperature: float
    top_p: float
    batch_size: int
    seed: int
    threads: int
    backend: Literal["local", "transformers", "vllm"] = "local"
    prompt_form: Literal["base", "chat"] = "base"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    max_model_len: int | None = None
    device: Literal["cpu", "cuda"] = "cpu"

    def settings(self, tensor_parallel_size: int = 1, gpu_memory_utilization: float = 0.9) -> EvaluationSettings:
        """The settings that these options mean; torch keeps to the threads that they allow.

        Raises:
            UserError: a number is out of range.
        """
        self._check()
        import torch

        from evals.generation.plan import EvaluationSettings
        from evals.generation.sampler import SamplingParameters

        torch.set_num_threads(self.threads)
        return EvaluationSettings(
            self.samples_per_problem,
            self.seed,
            self.prompt,
            SamplingParameters(
                max_new_tokens=self.max_new_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                batch_size=self.batch_size,
            ),
            prompt_form=self.prompt_form,
            backend=self.backend,
            dtype=self.dtype,
            device=self.device,
            max_model_len=self.max_model_len,
            tensor_parallel_size=tensor_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization,
        )

    def _check(self) -> None:
        for option in ("samples_per_problem", "max_new_tokens", "batch_size", "threads", "max_model_len"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise UserError(f"--{option.replace('_', '-')}: is {value}; accepted: 1 or more")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"--temperature: is {self.temperature}; accepted: 0 or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p: is {self.top_p}; accepted: more than 0, at most 1")
        if "{problem}" not in self.prompt:
            raise UserError(f"--prompt: is {self.prompt!r}; accepted: a template with {{problem}} in it")
