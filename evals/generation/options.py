"""The settings of sampling as they are given on a command line, checked before anything heavy is imported."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from evals.core.arithmetic import choose_code_paths
from evals.core.errors import InvalidInput

if TYPE_CHECKING:
    from evals.generation.plan import EvaluationSettings


@dataclasses.dataclass(frozen=True)
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

    def settings(self, **more: float) -> EvaluationSettings:
        """Check the options, with ``more`` fields of the settings, and choose the code paths of their arithmetic."""
        if self.backend == "local" and self.device == "cpu":  # numpy is about to be imported
            choose_code_paths()
        from evals.generation.plan import EvaluationSettings

        try:
            return EvaluationSettings.parse(dataclasses.asdict(self) | more, "")
        except InvalidInput as error:
            raise InvalidInput("", f"--{error.key.replace('_', '-')}", error.found, error.accepted) from None
