"""The settings of sampling: how tokens are drawn, how a model is prompted, and what a benchmark's samples are."""

from typing import Annotated, Any, Literal

from evals.core.errors import refuse
from evals.core.numbers import Count, Index, NotNegative, Several, Share, ShareOrZero
from evals.core.record import Record, setting
from evals.core.run_spec import Head, OneDevice
from evals.core.values import UNIQUE, Prompt, Text


class Example(Record):
    """A worked example that a few-shot prompt begins with."""

    problem: str = setting("the problem's text")
    solution: str = setting("the response that is shown")


class TokenDistribution(Record):
    """The distribution that tokens are drawn from, and the most of them."""

    max_new_tokens: Count = setting("longest response in tokens, its end token included")
    temperature: NotNegative = setting("sampling temperature; 0 takes the most likely token (greedy)", 1.0)
    top_p: Share = setting("top-p (nucleus) sampling: share of the probability that is kept; 1: all", 1.0)
    top_k: Index = setting("top-k sampling: number of tokens that are kept; 0: all", 0)
    min_p: ShareOrZero = setting(
        "min-p sampling: least probability of a kept token, as a share of the likeliest one's", 0.0
    )

    def resolved(self) -> dict[str, float | int]:
        """Everything that shapes the distribution, so that no default of an engine or checkpoint enters."""
        penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        kept = {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}
        return {"temperature": self.temperature, **kept, **penalties}


class SamplingParameters(TokenDistribution):
    """The settings of drawing tokens, in evaluation and in training."""

    sampling_batch_size: Count = setting("responses decoded or asked for at a time; it can change rounding", 256)


class BenchmarkSampling(SamplingParameters):
    """The sampling of benchmarks, for every model of a study alike."""

    seed: Index = setting("random seed")
    stop: Annotated[tuple[Text, ...], *UNIQUE] = setting("texts that end a response and are cut off it", ())
    few_shot: tuple[Example, ...] = setting("worked examples before each problem", ())
    backend: Literal["local", "transformers", "vllm", "server"] = setting(
        "inference backend (docs/benchmarks.md); models of source server are sampled by their server", "local"
    )
    max_model_len: Several | None = setting("a context shorter than the model's, in tokens", None)
    tensor_parallel_size: Count = setting("GPUs that share a model; vLLM", 1)


class Prompting(Record):
    """The prompts of a model that exists."""

    prompt_form: Literal["base", "chat"] = setting(
        "base: plain text; chat: the user's turn of the chat template", "base"
    )
    system_prompt: Text | None = setting(
        "prompt_form chat: the turn before all others, of a model that is not trained", None
    )
    chat_template_kwargs: dict[str, Any] = setting(
        "prompt_form chat: arguments of the template, such as {enable_thinking: false}", {}
    )

    def check_whole(self) -> None:
        super().check_whole()
        for key in ("system_prompt", "chat_template_kwargs"):
            is_ignored, found = self.prompt_form != "chat", f"is given with prompt_form {self.prompt_form}"
            refuse(is_ignored and getattr(self, key), found, "prompt_form chat", key)


class Sampling(BenchmarkSampling, Prompting, Head):
    """Everything that decides a model's samples but its weights, the problems and their number."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "precision of weights and activations; auto: the checkpoint's own", "float32"
    )


class OfBenchmark(Record):
    """The settings of sampling that each benchmark has of its own."""

    prompt: Prompt = setting("template with {problem} in it")
    samples_per_problem: Count = setting("the k of avg@k")


class SamplingMachine(OneDevice):
    """The execution of jobs that sample; it changes no sample."""

    sampling_threads: Count = setting("threads of a job that samples", 1)
    gpu_memory_utilization: Share = setting("share of a GPU's memory that vLLM takes to sample", 0.9)
