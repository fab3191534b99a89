"""Options that every command that samples has, and the settings that they mean."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evals.core.errors import UserError

if TYPE_CHECKING:
    from evals.generation.plan import EvaluationSettings

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add_sampling_options(parser: argparse.ArgumentParser, backends: Sequence[str]) -> None:
    """Declare the options, but for where the model is and what only vllm takes."""
    parser.add_argument("--problems", type=Path, required=True, help="directory of the benchmark's problems")
    parser.add_argument("--prompt", required=True, help="template with {problem} in it")
    parser.add_argument("--samples-per-problem", type=int, required=True)
    parser.add_argument("--max-new-tokens", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--top-p", type=float, required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="samples decoded at a time")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--backend", choices=backends, default="local")
    parser.add_argument("--prompt-form", choices=("base", "chat"), default="base", help="plain text, or chat template")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="auto: the checkpoint's own")
    parser.add_argument("--max-model-len", type=int, help="a context shorter than the model's, in tokens")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def evaluation_settings(arguments: argparse.Namespace) -> EvaluationSettings:
    """The settings that these options mean; torch keeps to the threads that they allow.

    Raises:
        UserError: a number is out of range.
    """
    import torch

    from evals.generation.plan import EvaluationSettings
    from evals.generation.sampler import SamplingParameters

    _check(arguments)
    torch.set_num_threads(arguments.threads)
    return EvaluationSettings(
        arguments.samples_per_problem,
        arguments.seed,
        arguments.prompt,
        SamplingParameters(
            max_new_tokens=arguments.max_new_tokens,
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            batch_size=arguments.batch_size,
        ),
        prompt_form=arguments.prompt_form,
        backend=arguments.backend,
        dtype=arguments.dtype,
        device=arguments.device,
        max_model_len=arguments.max_model_len,
    )


def _check(arguments: argparse.Namespace) -> None:
    for option in ("samples_per_problem", "max_new_tokens", "batch_size", "threads", "max_model_len"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UserError(f"--{option.replace('_', '-')}: is {value}; accepted: 1 or more")
    if not (math.isfinite(arguments.temperature) and arguments.temperature >= 0):
        raise UserError(f"--temperature: is {arguments.temperature}; accepted: 0 or more")
    if not 0 < arguments.top_p <= 1:
        raise UserError(f"--top-p: is {arguments.top_p}; accepted: more than 0, at most 1")
    if "{problem}" not in arguments.prompt:
        raise UserError(f"--prompt: is {arguments.prompt!r}; accepted: a template with {{problem}} in it")
