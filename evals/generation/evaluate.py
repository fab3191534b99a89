"""Sample a checkpoint's responses to a benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tqdm import tqdm

from evals.core.files import fingerprint, write_jsonl
from evals.core.manifest import Manifest, hash_files, read_manifest, verify_outputs
from evals.core.single_writer import single_writer
from evals.generation.backend import Backend, load_backend
from evals.generation.checkpoint import load_tokenizer
from evals.generation.partial import PartialSamples, Row
from evals.generation.plan import EvaluationSettings, Plan, make_plan
from evals.generation.sampler import Response
from evals.generation.withheld import TEXT_HASH

_KEYS = ("problem_id", "sample", "text", TEXT_HASH, "tokens", "finish_reason")


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
    manifest = verify_outputs(source / "manifest.json", source_kind(source))
    inputs = {str(source / name): digest for name, digest in manifest.outputs.items() if name.startswith("checkpoint/")}
    plan = make_plan(checkpoint, inputs, problems_directory, settings, tokenizer)

    def load() -> Backend:
        return load_backend(checkpoint, plan.backend_settings(settings), settings.sampling, plan.end_tokens)

    sample_plan(plan, settings, load, tokenizer, out, split, splits, checkpoint.parent.name)


def sample_plan(
    plan: Plan,
    settings: EvaluationSettings,
    load: Callable[[], Backend],
    tokenizer: Tokenizer,
    out: Path,
    split: int | None,
    splits: int,
    name: str,
    extra: Callable[[Response], Mapping[str, Any]] = lambda response: {},
) -> None:
    """Sample what is missing of a plan; arguments and errors as for :func:`sample_benchmark`.

    Args:
        plan: what is wanted.
        settings: how to sample.
        load: makes the backend; called if there is something to sample.
        tokenizer: turns responses into text.
        out: directory of the samples.
        split: which of ``splits`` parts of the batches to make, from 0; None for all that are missing.
        splits: into how many jobs the batches are divided.
        name: of what is sampled, for the progress bar.
        extra: further fields of a response's row, beside those that every backend's responses have.
    """
    part = "samples" if split is None else f"split-{split + 1}-of-{splits}"
    state = out / "state" / plan.identity
    started = time.monotonic()
    with single_writer(state / f".writer-{part}", "samples into this directory"):
        done = PartialSamples(state, part)
        before = len(done.rows)
        _sample_missing(plan, settings, load, tokenizer, done, split, splits, name, extra)
        if split is None:
            seconds = time.monotonic() - started
            _write(plan, settings, done, out, {"seconds": round(seconds, 3), "rows_kept_from_earlier": before})


def _sample_missing(
    plan: Plan,
    settings: EvaluationSettings,
    load: Callable[[], Backend],
    tokenizer: Tokenizer,
    done: PartialSamples,
    split: int | None,
    splits: int,
    name: str,
    extra: Callable[[Response], Mapping[str, Any]],
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
    backend = load()
    with tqdm(total=sum(map(len, missing)), desc=name, disable=None) as bar:
        for batch in missing:
            requests = [plan.request(index, number) for index, number in batch]
            responses = backend.generate(requests)
            done.append(
                [
                    {**_row(plan.ids[index], number, response, tokenizer, plan.gated), **extra(response)}
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
    plan: Plan, settings: EvaluationSettings, done: PartialSamples, out: Path, details: Mapping[str, Any]
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
                rows.append({key: row[key] for key in (*_KEYS, *sorted(set(row) - set(_KEYS))) if key in row})
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


def source_kind(directory: Path) -> str:
    """Whether ``directory`` holds a trained run or a base model, from where it stands.

    Raises:
        UserError: its manifest is neither.
    """
    kind = "base_model" if directory.parent.name == "base" else "run"
    read_manifest(directory / "manifest.json", kind)
    return kind
