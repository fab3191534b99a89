"""The settings of sampling: how tokens are drawn, how a model is prompted, and what a benchmark's samples are."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from evals.core.errors import NotAccepted
from evals.core.numbers import BOUNDED, Count, Index, NotNegative, Share, ShareOrZero
from evals.core.record import Record
from evals.core.run_spec import Head, OneDevice
from evals.core.values import UNIQUE, Prompt, Text


class Example(Record):
    """A worked example that a few-shot prompt begins with."""

    problem: str = Field(description="the problem's text")
    solution: str = Field(description="the response that is shown")


class TokenDistribution(Record):
    """The distribution that tokens are drawn from, and the most of them."""

    max_new_tokens: Count = Field(description="longest response in tokens, its end token included")
    temperature: NotNegative = Field(
        default=1.0, description="sampling temperature; 0 takes the most likely token (greedy)"
    )
    top_p: Share = Field(
        default=1.0,
        description="top-p (nucleus) sampling: share of the probability that is kept; 1: all",
    )
    top_k: Index = Field(default=0, description="top-k sampling: number of tokens that are kept; 0: all")
    min_p: ShareOrZero = Field(
        default=0.0,
        description="min-p sampling: least probability of a kept token, as a share of the likeliest one's",
    )

    def resolved(self) -> dict[str, float | int]:
        """Everything that shapes the distribution, so that no default of an engine or checkpoint enters."""
        penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        kept = {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}
        return {"temperature": self.temperature, **kept, **penalties}


class SamplingParameters(TokenDistribution):
    """The settings of drawing tokens, in evaluation and in training."""

    sampling_batch_size: Count = Field(
        default=256, description="responses decoded or asked for at a time; it can change rounding"
    )


class BenchmarkSampling(SamplingParameters):
    """The sampling of benchmarks, for every model of a study alike."""

    seed: Index = Field(description="random seed")
    stop: Annotated[tuple[Text, ...], *UNIQUE] = Field(
        default=(),
        description="texts that end a response and are cut off it",
    )
    few_shot: tuple[Example, ...] = Field(default=(), description="worked examples before each problem")
    backend: Literal["local", "transformers", "vllm", "server"] = Field(
        default="local",
        description="inference backend (docs/benchmarks.md); models of source server are sampled by their server",
    )
    max_model_len: Annotated[int, Field(ge=2), BOUNDED] | None = Field(
        default=None, description="a context shorter than the model's, in tokens"
    )
    tensor_parallel_size: Count = Field(default=1, description="GPUs that share a model; vLLM")


class Prompting(Record):
    """The prompts of a model that exists."""

    prompt_form: Literal["base", "chat"] = Field(
        default="base", description="base: plain text; chat: the user's turn of the chat template"
    )
    system_prompt: Text | None = Field(
        default=None, description="prompt_form chat: the turn before all others, of a model that is not trained"
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default={},
        description="prompt_form chat: arguments of the template, such as {enable_thinking: false}",
    )

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        for key in ("system_prompt", "chat_template_kwargs"):
            if getattr(self, key) and self.prompt_form != "chat":
                raise NotAccepted(f"is given with prompt_form {self.prompt_form}", "prompt_form chat", key)
        return self


class Sampling(BenchmarkSampling, Prompting, Head):
    """Everything that decides a model's samples but its weights, the problems and their number."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="float32", description="precision of weights and activations; auto: the checkpoint's own"
    )


class OfBenchmark(Record):
    """The settings of sampling that each benchmark has of its own."""

    prompt: Prompt = Field(description="template with {problem} in it")
    samples_per_problem: Count = Field(description="the k of avg@k")


class SamplingMachine(OneDevice):
    """The execution of jobs that sample; it changes no sample."""

    sampling_threads: Count = Field(default=1, description="threads of a job that samples")
    gpu_memory_utilization: Share = Field(default=0.9, description="share of a GPU's memory that vLLM takes to sample")
