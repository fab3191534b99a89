"""The settings of sampling a benchmark, which every command that samples has as options."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from evals.core.arithmetic import choose_code_paths
from evals.core.errors import NotAccepted
from evals.core.record import Record
from evals.core.run_spec import Example
from evals.core.values import PLACEHOLDER
from evals.generation.backend import SamplingParameters
from evals.problems.problem_set import render_prompt

Turn = tuple[str, str]
"""The role and the text of a turn of a chat."""


class EvaluationSettings(Record):
    """The settings of sampling a benchmark."""

    prompt: str = Field(description="template with {problem} in it")
    samples_per_problem: int = Field(ge=1, description="the k of avg@k")
    max_new_tokens: int = Field(ge=1, description="of a response")
    temperature: float = Field(ge=0, description="0 or more")  # divides the logits; 0 takes the most likely token
    top_p: float = Field(gt=0, le=1, description="more than 0, at most 1")  # probability of the tokens that are kept
    top_k: int = Field(default=0, ge=0, description="tokens that are kept, the most likely ones; 0: all")
    min_p: float = Field(
        default=0.0, ge=0, le=1, description="least probability of a token that is kept, as a share of the most likely"
    )
    stop: tuple[str, ...] = Field(default=(), description="texts that end a response, and are cut off it")
    few_shot: tuple[Example, ...] = Field(
        default=(), description="worked examples before each problem: problem and solution"
    )
    batch_size: int = Field(ge=1, description="samples decoded at a time")
    seed: int = Field(description="of the samples' random numbers")  # the same for every checkpoint of a study
    threads: int = Field(ge=1, description="that torch keeps to")
    backend: Literal["local", "transformers", "vllm", "server"] = Field(
        default="local", description="what generates; vllm has an environment of its own"
    )
    prompt_form: Literal["base", "chat"] = Field(
        default="base", description="base for plain text, chat for the model's chat template"
    )
    system_prompt: str | None = Field(default=None, description="of a chat model: the turn before all others")
    chat_template_kwargs: dict[str, Any] = Field(
        default={}, description="what a chat template is told, such as enable_thinking"
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

    @field_validator("stop")
    @classmethod
    def _has_text(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if not all(stop):
            raise NotAccepted(f"is {list(stop)}", "texts that are not empty")
        return stop

    @model_validator(mode="after")
    def _is_for_chat(self) -> Self:
        for key in ("system_prompt", "chat_template_kwargs"):
            if getattr(self, key) and self.prompt_form != "chat":
                raise NotAccepted(f"is {getattr(self, key)!r} with plain text", "prompt_form chat", key)
        return self

    @property
    def is_portable(self) -> bool:
        """Whether arithmetic takes code paths that every processor has; bfloat16 and other backends have their own."""
        return self.backend == "local" and self.device == "cpu" and self.dtype != "bfloat16"

    def choose_code_paths(self) -> None:
        """Choose the code paths of this process's arithmetic, before numpy and torch are imported."""
        if self.is_portable:
            choose_code_paths()

    @property
    def sampling(self) -> SamplingParameters:
        """The settings that shape the distribution of tokens."""
        return SamplingParameters(
            self.max_new_tokens, self.temperature, self.top_p, self.top_k, self.min_p, self.batch_size
        )

    @property
    def turns_before(self) -> list[Turn]:
        """The turns before a problem: the system's, and those of the worked examples."""
        turns = [] if self.system_prompt is None else [("system", self.system_prompt)]
        for example in self.few_shot:
            turns += [("user", render_prompt(self.prompt, example.problem)), ("assistant", example.solution)]
        return turns

    @property
    def prompting(self) -> dict[str, Any]:
        """The settings that shape prompts and their ends, as JSON, without those that are left at their defaults."""
        keys = {"stop", "few_shot", "system_prompt", "chat_template_kwargs"}
        return self.model_dump(mode="json", include=keys, exclude_defaults=True)
