"""What sampling a benchmark from a checkpoint consists of, and what identifies it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from evals.core.files import fingerprint, sha256_bytes, sha256_file
from evals.generation import VERSION
from evals.generation.backend import BackendSettings, Request, engine_version
from evals.generation.checkpoint import context_length, end_token_ids, resolved_dtype
from evals.generation.prompts import encode_prompts, special_token_id
from evals.generation.sampler import SamplingParameters
from evals.generation.vllm_backend import resolved_sampling
from evals.problems.problem_set import load


@dataclass(frozen=True)
class EvaluationSettings:
    """How a benchmark is sampled.

    Attributes:
        samples_per_problem: the k of avg@k.
        seed: of the samples' random numbers; the same for every checkpoint of a study.
        prompt: template with ``{problem}`` in it.
        prompt_form: ``base`` for plain text, ``chat`` for the user's turn in the model's chat template.
        sampling: lengths, temperature, top-p.
        backend: name of the backend.
        dtype: of weights and activations; ``auto`` is the checkpoint's own.
        device: "cpu" or "cuda".
        max_model_len: a context shorter than the model's, or None.
        tensor_parallel_size: GPUs that one model is spread over.
        gpu_memory_utilization: share of a GPU's memory that vllm takes; changes no sample.
    """

    samples_per_problem: int
    seed: int
    prompt: str
    sampling: SamplingParameters
    prompt_form: str = "base"
    backend: str = "local"
    dtype: str = "float32"
    device: str = "cpu"
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9


@dataclass(frozen=True)
class Plan:
    """All that is wanted, and what identifies it.

    Attributes:
        ids: the problems, in order.
        prompts: token ids of each problem's prompt.
        room: tokens that are left for each problem's response; 0 where the prompt alone fills the context.
        inputs: files that were read, with their hashes.
        parameters: what the samples depend on.
        end_tokens: what ends a response.
        context_length: longest prompt and response together.
        unknown_tokens: how many of the prompts' tokens stand for text that the tokenizer does not know.
        gated: the texts, and responses that could quote them, may be written nowhere.
    """

    ids: Sequence[str]
    prompts: Sequence[tuple[int, ...]]
    room: Sequence[int]
    inputs: Mapping[str, str]
    parameters: Mapping[str, Any]
    end_tokens: Sequence[int]
    context_length: int
    unknown_tokens: int
    gated: bool

    def request(self, index: int, number: int) -> Request:
        """One sample of a problem; its random numbers are those of seed, problem and number."""
        identity = f"evaluation/{self.parameters['seed']}/{self.ids[index]}/{number}"
        return Request(self.prompts[index], identity, self.room[index])

    def backend_settings(self, settings: EvaluationSettings) -> BackendSettings:
        """How the model is run."""
        return BackendSettings(
            settings.backend,
            self.parameters["dtype"],
            settings.device,
            self.context_length,
            settings.tensor_parallel_size,
            settings.gpu_memory_utilization,
        )

    @property
    def identity(self) -> str:
        """Fingerprint of what decides one sample; how many there are of each problem does not."""
        decisive = {key: value for key, value in self.parameters.items() if key != "samples_per_problem"}
        return fingerprint({"parameters": decisive, "inputs": sorted(self.inputs.values())})


def make_plan(
    checkpoint: Path,
    checkpoint_inputs: Mapping[str, str],
    problems_directory: Path,
    settings: EvaluationSettings,
    tokenizer: Tokenizer,
) -> Plan:
    """All that is wanted of one checkpoint, whose files' hashes are ``checkpoint_inputs``.

    Raises:
        UserError: problems or checkpoint are missing or damaged.
    """
    problem_set = load(problems_directory)
    texts = problem_set.prompts(settings.prompt)
    prompts = encode_prompts(checkpoint, tokenizer, texts, settings.prompt_form)
    end_tokens = end_token_ids(checkpoint)
    length = context_length(checkpoint, settings.max_model_len)
    limit = settings.sampling.max_new_tokens
    problems_path = problems_directory / "problems.jsonl"
    parameters = {
        "engine": settings.backend,
        "version": VERSION,
        "engine_version": engine_version(settings.backend),
        "dtype": resolved_dtype(checkpoint, settings.dtype),
        "tensor_parallel_size": settings.tensor_parallel_size,
        "max_model_len": settings.max_model_len,
        "prompt": settings.prompt,
        "prompt_form": settings.prompt_form,
        "prompts_sha256": sha256_bytes("\0".join(texts).encode("utf-8")),
        "prompt_tokens_sha256": fingerprint(prompts),
        "end_tokens": end_tokens,
        "samples_per_problem": settings.samples_per_problem,
        "seed": settings.seed,
        **dataclasses.asdict(settings.sampling),
        **resolved_sampling(settings.sampling),
    }
    unknown = _unknown_token_id(checkpoint, tokenizer)
    return Plan(
        ids=[row["id"] for row in problem_set.rows],
        prompts=prompts,
        room=[max(0, min(limit, length - len(prompt))) for prompt in prompts],
        inputs={**checkpoint_inputs, str(problems_path): sha256_file(problems_path)},
        parameters=parameters,
        end_tokens=end_tokens,
        context_length=length,
        unknown_tokens=sum(prompt.count(unknown) for prompt in prompts) if unknown is not None else 0,
        gated=problem_set.gated,
    )


def _unknown_token_id(checkpoint: Path, tokenizer: Tokenizer) -> int | None:
    """The token that stands for what the tokenizer does not know, if it has one."""
    return special_token_id(checkpoint, tokenizer, "unk_token")
