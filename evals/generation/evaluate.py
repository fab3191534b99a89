"""Sample a checkpoint's responses to a benchmark."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tqdm import tqdm

from evals.artifacts import fingerprint, sha256_bytes, sha256_file, write_jsonl
from evals.generation import VERSION
from evals.generation.backend import BackendSettings, Request, engine_version, load_backend
from evals.generation.checkpoint import context_length, end_token_ids, load_tokenizer, resolved_dtype
from evals.generation.partial import PartialSamples, Row
from evals.generation.prompts import encode_prompts
from evals.generation.sampler import Response, SamplingParameters
from evals.generation.vllm_backend import resolved_sampling
from evals.manifest import Manifest, hash_files, read_manifest, verify_outputs
from evals.problems.problem_set import load
from evals.single_writer import single_writer

_KEYS = ("problem_id", "sample", "text", "text_sha256", "tokens", "finish_reason")


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
class _Plan:
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

    @property
    def identity(self) -> str:
        """Fingerprint of what decides one sample; how many there are of each problem does not."""
        decisive = {key: value for key, value in self.parameters.items() if key != "samples_per_problem"}
        return fingerprint({"parameters": decisive, "inputs": sorted(self.inputs.values())})


def sample_benchmark(
    source: Path, problems_directory: Path, settings: EvaluationSettings, out: Path, split: int | None, splits: int
) -> None:
    """Sample what is missing; unless this is one split of several, write ``samples.jsonl`` and its manifest.

    Finished batches are kept under ``out/state``. A batch is made whole, of the same samples in any job, so that
    neither a kill nor the number of splits changes what a sample is computed beside.

    Args:
        source: directory of a run or base model, with ``checkpoint/`` and ``manifest.json``.
        problems_directory: directory of the benchmark's problems.
        settings: how to sample.
        out: directory of the samples.
        split: which of ``splits`` parts of the batches to make, from 0; None for all that are missing.
        splits: into how many jobs the batches are divided.

    Raises:
        UserError: an input is missing, damaged, or not something that the backend can run.
    """
    checkpoint = source / "checkpoint"
    tokenizer = load_tokenizer(checkpoint)
    plan = _plan(source, problems_directory, settings, tokenizer)
    part = "samples" if split is None else f"split-{split + 1}-of-{splits}"
    state = out / "state" / plan.identity
    started = time.monotonic()
    with single_writer(state / f".writer-{part}", "samples into this directory"):
        done = PartialSamples(state, part)
        before = len(done.rows)
        _sample_missing(plan, settings, checkpoint, tokenizer, done, split, splits)
        if split is None:
            seconds = time.monotonic() - started
            _write(plan, settings, done, out, {"seconds": round(seconds, 3), "rows_kept_from_earlier": before})


def _plan(source: Path, problems_directory: Path, settings: EvaluationSettings, tokenizer: Tokenizer) -> _Plan:
    checkpoint = source / "checkpoint"
    manifest = verify_outputs(source / "manifest.json", source_kind(source))
    problem_set = load(problems_directory)
    texts = problem_set.prompts(settings.prompt)
    prompts = encode_prompts(checkpoint, tokenizer, texts, settings.prompt_form)
    end_tokens = end_token_ids(checkpoint)
    length = context_length(checkpoint, settings.max_model_len)
    limit = settings.sampling.max_new_tokens
    problems_path = problems_directory / "problems.jsonl"
    inputs = {str(source / name): digest for name, digest in manifest.outputs.items() if name.startswith("checkpoint/")}
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
    return _Plan(
        ids=[row["id"] for row in problem_set.rows],
        prompts=prompts,
        room=[max(0, min(limit, length - len(prompt))) for prompt in prompts],
        inputs={**inputs, str(problems_path): sha256_file(problems_path)},
        parameters=parameters,
        end_tokens=end_tokens,
        context_length=length,
        unknown_tokens=sum(prompt.count(unknown) for prompt in prompts) if unknown is not None else 0,
        gated=problem_set.gated,
    )


def _sample_missing(
    plan: _Plan,
    settings: EvaluationSettings,
    checkpoint: Path,
    tokenizer: Tokenizer,
    done: PartialSamples,
    split: int | None,
    splits: int,
) -> None:
    """Make the batches of this split that are not there; the model is loaded if there are any."""
    jobs = [(index, number) for index in range(len(plan.ids)) for number in range(settings.samples_per_problem)]
    jobs = [(index, number) for index, number in jobs if plan.room[index]]
    size = settings.sampling.batch_size
    batches = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    mine = [batch for number, batch in enumerate(batches) if split is None or number % splits == split]
    missing = [[job for job in batch if (plan.ids[job[0]], job[1]) not in done.rows] for batch in mine]
    missing = [batch for batch in missing if batch]
    if not missing:
        return
    backend_settings = BackendSettings(
        settings.backend,
        plan.parameters["dtype"],
        settings.device,
        plan.context_length,
        settings.tensor_parallel_size,
        settings.gpu_memory_utilization,
    )
    backend = load_backend(checkpoint, backend_settings, settings.sampling, plan.end_tokens)
    with tqdm(total=sum(map(len, missing)), desc=checkpoint.parent.name, disable=None) as bar:
        for batch in missing:
            requests = [
                Request(plan.prompts[index], f"evaluation/{settings.seed}/{plan.ids[index]}/{number}", plan.room[index])
                for index, number in batch
            ]
            responses = backend.generate(requests)
            done.append(
                [
                    _row(plan.ids[index], number, response, tokenizer, plan.gated)
                    for (index, number), response in zip(batch, responses, strict=True)
                ]
            )
            bar.update(len(batch))


def _row(problem_id: str, number: int, response: Response, tokenizer: Tokenizer, gated: bool) -> Row:
    return {
        "problem_id": problem_id,
        "sample": number,
        **_stored(tokenizer.decode(response.tokens, skip_special_tokens=True), not response.finished, gated),
        "tokens": len(response.tokens),
        "finish_reason": "stop" if response.finished else "length",
    }


def _stored(text: str, truncated: bool, gated: bool) -> Mapping[str, str]:
    """The fields of a sample that hold its text, or stand for it."""
    if not gated:
        return {"text": text}
    from evals.generation.withheld import withheld  # the grader's packages are not in every backend's environment

    return withheld(text, truncated)


def _write(
    plan: _Plan, settings: EvaluationSettings, done: PartialSamples, out: Path, details: Mapping[str, Any]
) -> None:
    """Samples in the order of the problems, and their manifest.

    A prompt that leaves no room for an answer has empty responses of length 0, cut by the context: they count as
    truncated, and as wrong.
    """
    rows: list[Row] = []
    for index, problem_id in enumerate(plan.ids):
        for number in range(settings.samples_per_problem):
            if plan.room[index]:
                row = done.rows[problem_id, number]
                rows.append({key: row[key] for key in _KEYS if key in row})
            else:
                empty = _stored("", True, plan.gated)
                rows.append(
                    {"problem_id": problem_id, "sample": number, **empty, "tokens": 0, "finish_reason": "length"}
                )
    path = out / "samples.jsonl"
    write_jsonl(path, rows)
    limit = settings.sampling.max_new_tokens
    Manifest(
        kind="samples",
        inputs=plan.inputs,
        outputs=hash_files(out, path),
        parameters=plan.parameters,
        fingerprint=fingerprint({"parameters": plan.parameters, "inputs": sorted(plan.inputs.values())}),
        details={
            "rows": len(rows),
            "tokens": sum(int(row["tokens"]) for row in rows),
            "prompts_too_long": sum(room == 0 for room in plan.room),
            "prompts_with_less_room": sum(0 < room < limit for room in plan.room),
            "unknown_prompt_tokens": plan.unknown_tokens,
            "prompt_tokens": sum(map(len, plan.prompts)),
            **details,
        },
    ).write(out / "manifest.json")


def _unknown_token_id(checkpoint: Path, tokenizer: Tokenizer) -> int | None:
    """The token that stands for what the tokenizer does not know, if it has one."""
    from evals.generation.prompts import special_token_id

    return special_token_id(checkpoint, tokenizer, "unk_token")


def source_kind(directory: Path) -> str:
    """Whether ``directory`` holds a trained run or a base model, from where it stands.

    Raises:
        UserError: its manifest is neither.
    """
    kind = "base_model" if directory.parent.name == "base" else "run"
    read_manifest(directory / "manifest.json", kind)
    return kind
