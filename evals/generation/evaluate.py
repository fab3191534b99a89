"""Sampling a benchmark: batches are kept as they are finished, and written in the order of the problems at the end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from evals.core.errors import UserError
from evals.core.files import canonical_json, sha256_bytes, write_jsonl
from evals.core.manifest import Manifest, hash_files, read_manifest
from evals.core.records import Sample
from evals.core.single_writer import is_held, single_writer
from evals.generation.backend import Backend, Response
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import Plan, make_plan
from evals.generation.settings import EvaluationSettings

if TYPE_CHECKING:
    from evals.generation.sampler import Draws


def sample_benchmark(
    models: Sequence[Checkpoint],
    problems: Path,
    settings: EvaluationSettings,
    out: Path,
    split: int | None = None,
    splits: int = 1,
    others: Mapping[Path, str] | None = None,
    draws: Draws | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> None:
    """Sample what is missing of the responses of a model to a problem set (:func:`sample_plan`).

    To load a model takes longer than to sample a small benchmark. A job that has loaded it goes on with ``others``, a
    directory of problems -> prompt each: what is missing of their samples is kept for the jobs that write them, beside
    ``out``. Problems that were not found disjoint from the training's are passed over, and so are benchmarks that
    another process samples, or whose samples are there. ``parameters`` of the samples are those that a rule ``draws``
    adds where several models decode together.
    """
    parameters = parameters or {}
    plan = make_plan(models, problems, settings).with_parameters(**parameters)
    load = cache(plan.load_backend)
    sample_plan(plan, load, out, draws, split, splits)
    if not load.cache_info().currsize:
        return
    for other, prompt in (others or {}).items():
        beside = out.with_name(other.name)
        if not (other / "disjoint.json").is_file():
            continue
        try:
            plan = make_plan(models, other, settings.model_copy(update={"prompt": prompt}))
            plan = plan.with_parameters(**parameters)
            if not _is_written(plan, beside):
                sample_plan(plan, load, beside, draws, split or 0, splits, wait=False)
        except UserError as error:
            print(f"{other}: is left to its own job: {error}", flush=True)


def _is_written(plan: Plan, out: Path) -> bool:
    try:
        return read_manifest(out / "manifest.json", "samples").fingerprint == plan.fingerprint
    except UserError:
        return False


def sample_plan(
    plan: Plan,
    load: Callable[[], Backend],
    out: Path,
    draws: Draws | None = None,
    split: int | None = None,
    splits: int = 1,
    wait: bool = True,
) -> None:
    """Sample what is missing; unless this is one split of several, write ``samples.jsonl`` and its manifest.

    Finished batches are kept under ``out/state``. A batch is made whole, of the same samples in any job, so that
    neither an interruption nor the number of splits changes which samples are computed together.

    Args:
        plan: the samples that are wanted.
        load: loads the backend; called if there is something to sample.
        out: directory of the samples.
        draws: the rule that tokens are drawn by; None draws from the only model.
        split: which of ``splits`` parts of the batches to make, from 0; None for all that are missing.
        splits: number of jobs that the batches are divided into.
        wait: for another process that makes the same samples; otherwise they are left to it.
    """
    part = "samples" if split is None or splits == 1 else f"split-{split + 1}-of-{splits}"
    state = out / "state" / plan.identity
    if not wait and is_held(state / f".writer-{part}"):
        return
    started = time.monotonic()
    with single_writer(state / f".writer-{part}", "samples into this directory"):
        done = FinishedSamples(state, part)
        before = len(done.samples)
        mine = [batch for number, batch in enumerate(plan.batches()) if split is None or number % splits == split]
        missing = [[job for job in batch if (plan.ids[job[0]], job[1]) not in done.samples] for batch in mine]
        if any(missing):
            backend, tokenizer = load(), plan.models[-1].tokenizer
            with tqdm(total=sum(map(len, missing)), desc=" ".join(out.parts[-2:]), disable=None) as bar:
                for batch in filter(None, missing):
                    responses = backend.generate(plan.requests(batch), draws)
                    texts = [tokenizer.decode(response.tokens, skip_special_tokens=True) for response in responses]
                    done.append([_sample(plan, *each) for each in zip(batch, responses, texts, strict=True)])
                    bar.update(len(batch))
        if split is None:
            seconds = time.monotonic() - started
            _write(plan, done, out, {"seconds": round(seconds, 3), "rows_kept_from_earlier": before})


def _sample(plan: Plan, job: tuple[int, int], response: Response, text: str) -> Sample:
    truncated = not response.finished
    return Sample(
        problem_id=plan.ids[job[0]],
        sample=job[1],
        **(withheld(text, truncated) if plan.gated else {"text": text}),
        tokens=len(response.tokens),
        finish_reason="length" if truncated else "stop",
        replaced=response.replaced,
    )


def withheld(text: str, truncated: bool) -> dict[str, Any]:
    r"""The fields that stand for a response to a gated benchmark: the letter it chose, and a hash of the whole.

    A response may quote its question, which may not be published. The letter is stored as ``\boxed{C}``, which the
    grader reads as it read the whole response; the hash still tells two responses apart.
    """
    from evals.grading.extraction import extract_answer  # these packages are not in every backend's environment
    from evals.grading.verdict import Kind

    letter = extract_answer(text, Kind.CHOICE, truncated).answer
    kept = rf"\boxed{{{letter}}}" if letter else ""
    return {"text": kept, "text_sha256": sha256_bytes(text.encode("utf-8"))}


def _write(plan: Plan, done: FinishedSamples, out: Path, details: Mapping[str, Any]) -> None:
    """Write the samples in the order of the problems, and their manifest.

    A prompt that leaves no room for an answer has empty responses of length 0, cut by the context: they count as
    truncated, and as wrong.
    """
    room = plan.room
    no_response = Response([], finished=False)
    samples = [
        done.samples[plan.ids[index], number] if room[index] else _sample(plan, (index, number), no_response, "")
        for index in range(len(plan.ids))
        for number in range(plan.settings.samples_per_problem)
    ]
    path = out / "samples.jsonl"
    write_jsonl(path, (sample.to_json() for sample in samples))
    Manifest(
        kind="samples",
        inputs=plan.inputs,
        outputs=hash_files(out, path),
        parameters=plan.parameters,
        fingerprint=plan.fingerprint,
        details={
            "rows": len(samples),
            "tokens": sum(sample.tokens for sample in samples),
            "prompts_too_long": room.count(0),
            "prompts_with_less_room": sum(0 < tokens < plan.settings.max_new_tokens for tokens in room),
            "unknown_prompt_tokens": plan.unknown_tokens,
            "prompt_tokens": sum(map(len, plan.prompts)),
            **details,
        },
    ).write(out / "manifest.json")


class FinishedSamples:
    """The finished samples of one plan, in append-only files of one line a batch that survive a kill at any moment.

    They lie in a directory named by the plan's fingerprint that Snakemake does not know of, so that earlier samples
    outlive a job, a larger k and a deleted output. ``part`` names this job's file, the only one that it appends to.
    """

    def __init__(self, directory: Path, part: str) -> None:
        self._path = directory / f"{part}.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        self.samples: dict[tuple[str | int, int], Sample] = {}
        for path in sorted(directory.glob("*.jsonl")):
            end = 0
            for rows, batch_end in _read_batches(path):
                end = batch_end
                self._add([Sample.parse(row, str(path)) for row in rows])
            if path == self._path and end < path.stat().st_size:
                os.truncate(path, end)  # a kill in the middle of a line: that batch is made again, whole

    def _add(self, samples: Sequence[Sample]) -> None:
        self.samples |= {(sample.problem_id, sample.sample): sample for sample in samples}

    def append(self, samples: Sequence[Sample]) -> None:
        """Add one finished batch, on the disk when this returns."""
        rows = [sample.to_json() for sample in samples]
        line = canonical_json({"rows": rows, "sha256": sha256_bytes(canonical_json(rows).encode("utf-8"))}) + "\n"
        try:
            with open(self._path, "ab") as file:
                file.write(line.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        self._add(samples)


def _read_batches(path: Path) -> Iterator[tuple[Sequence[Mapping[str, Any]], int]]:
    """The batches of a file and where each ends in it; an unfinished last line is left out."""
    end = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                batch = json.loads(line)
                intact = batch["sha256"] == sha256_bytes(canonical_json(batch["rows"]).encode("utf-8"))
            except (ValueError, KeyError, TypeError):
                intact = False
            if not intact:
                raise UserError(f"{path}: line {number} is damaged; delete the file to sample its problems again")
            end += len(line)
            yield batch["rows"], end
