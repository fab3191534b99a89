"""The settings of sampling a benchmark, which every command that samples has as options."""

from typing import Literal

from pydantic import Field, field_validator

from evals.core.arithmetic import choose_code_paths
from evals.core.record import Record
from evals.core.run_spec import PLACEHOLDER
from evals.generation.backend import SamplingParameters


class EvaluationSettings(Record):
    """The settings of sampling a benchmark."""

    prompt: str = Field(description="template with {problem} in it")
    samples_per_problem: int = Field(ge=1, description="the k of avg@k")
    max_new_tokens: int = Field(ge=1, description="of a response")
    temperature: float = Field(ge=0, description="0 or more")  # divides the logits; 0 takes the most likely token
    top_p: float = Field(gt=0, le=1, description="more than 0, at most 1")  # probability of the tokens that are kept
    batch_size: int = Field(ge=1, description="samples decoded at a time")
    seed: int = Field(description="of the samples' random numbers")  # the same for every checkpoint of a study
    threads: int = Field(ge=1, description="that torch keeps to")
    backend: Literal["local", "transformers", "vllm"] = Field(
        default="local", description="what generates; vllm has an environment of its own"
    )
    prompt_form: Literal["base", "chat"] = Field(
        default="base", description="base for plain text, chat for the model's chat template"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="float32", description="of weights and activations; auto: the checkpoint's own"
    )
    max_model_len: int | None = Field(default=None, ge=1, description="a context shorter than the model's, in tokens")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="that it runs on")
    tensor_parallel_size: int = Field(default=1, description="GPUs that vllm spreads the model over")
    gpu_memory_utilization: float = Field(default=0.9, description="share that vllm takes")  # changes no sample

    @field_validator("prompt")
    @classmethod
    def _has_place(cls, prompt: str) -> str:
        if PLACEHOLDER not in prompt:
            raise ValueError(f"is {prompt!r}; accepted: a template with {PLACEHOLDER} in it")
        return prompt

    @property
    def is_portable(self) -> bool:
        """Whether arithmetic takes code paths that every processor has; the other backends have their own."""
        return self.backend == "local" and self.device == "cpu"

    def choose_code_paths(self) -> None:
        """Choose the code paths of this process's arithmetic, before numpy and torch are imported."""
        if self.is_portable:
            choose_code_paths()

    @property
    def sampling(self) -> SamplingParameters:
        """The settings that shape the distribution of tokens."""
        return SamplingParameters(self.max_new_tokens, self.temperature, self.top_p, self.batch_size)
