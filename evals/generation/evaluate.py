"""Sampling a benchmark: samples are kept as they finish, and written in the order of the problems at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.core.errors import UserError
from evals.core.files import sha256_bytes, write_jsonl
from evals.core.manifest import Manifest, hash_files, read_manifest
from evals.core.progress import Progress
from evals.core.records import Sample
from evals.core.single_writer import is_held, single_writer
from evals.generation.backend import BACKENDS, Backend, Response
from evals.generation.chat import ends_in_words
from evals.generation.checkpoint import Checkpoint
from evals.generation.finished import FinishedSamples
from evals.generation.plan import Plan, make_plan
from evals.generation.served import NOT_PROMISED
from evals.generation.settings import EvaluationSettings
from evals.generation.thinking import graded_text

if TYPE_CHECKING:
    from evals.generation.sampler import Draws


def sample_benchmark(
    models: Sequence[Checkpoint],
    problems: Path,
    settings: EvaluationSettings,
    out: Path,
    split: int | None = None,
    splits: int = 1,
    others: Mapping[Path, Mapping[str, Any]] | None = None,
    draws: Draws | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> None:
    """Sample what is missing of the responses of a model to a problem set (:func:`sample_plan`).

    To load a model takes longer than to sample a small benchmark. A job that has loaded it goes on with ``others``, a
    directory of problems -> settings of their own: what is missing of their samples is kept for the jobs that write
    them, beside ``out``. Problems that were not found disjoint from the training's are passed over, and so are
    benchmarks that another process samples, or whose samples are there. ``parameters`` of the samples are those that a
    rule ``draws`` adds where several models decode together.
    """
    parameters = parameters or {}
    plan = make_plan(models, problems, settings).with_parameters(**parameters)
    load = cache(plan.load_backend)
    others = others or {}
    shown = partial(Progress, out if split is None else _state(plan, out), unit="sample")
    sample_plan(plan, load, out, draws, split, splits, partial(shown, parts_left=len(others)))
    if not load.cache_info().currsize:
        return
    for left, (other, own) in zip(reversed(range(len(others))), others.items(), strict=True):
        beside = out.with_name(other.name)
        if not (other / "disjoint.json").is_file():
            continue
        try:
            plan = make_plan(models, other, settings.model_copy(update=dict(own)))
            plan = plan.with_parameters(**parameters)
            if not _is_written(plan, beside):
                progress = partial(shown, unit=f"sample of {other.name}", parts_left=left)
                sample_plan(plan, load, beside, draws, split or 0, splits, progress, wait=False)
        except UserError as error:
            print(f"{other}: is left to its own job: {error}", flush=True)


def _state(plan: Plan, out: Path) -> Path:
    """The directory of finished samples."""
    return out / "state" / plan.identity


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
    show: Callable[..., Progress] | None = None,
    wait: bool = True,
) -> None:
    """Sample what is missing; unless this is one split of several, write ``samples.jsonl`` and its manifest.

    Finished samples are kept under ``out/state``. A backend that decodes in step makes whole batches, of the same
    samples in any job; another gets everything that is missing at once, and schedules it.

    Args:
        plan: the samples that are wanted.
        load: loads the backend; called if there is something to sample.
        out: directory of the samples.
        draws: the rule that tokens are drawn by; None draws from the only model.
        split: which of ``splits`` parts of the batches to make, from 0; None for all that are missing.
        splits: number of jobs that the batches are divided into.
        show: makes the job's progress, of its title and steps; None for one that is written to ``out``.
        wait: for another process that makes the same samples; otherwise they are left to it.
    """
    part = "samples" if split is None or splits == 1 else f"split-{split + 1}-of-{splits}"
    state, show = _state(plan, out), show or partial(Progress, out, unit="sample")
    if not wait and is_held(state / f".writer-{part}"):
        return
    started = time.monotonic()
    with single_writer(state / f".writer-{part}", "samples into this directory"):
        done = FinishedSamples(state, part)
        before = len(done)
        mine = [batch for number, batch in enumerate(plan.batches()) if split is None or number % splits == split]
        missing = [[job for job in batch if plan.key(job) not in done] for batch in mine]
        batches = list(filter(None, missing))
        if batches:
            if plan.end_tokens:
                print(f"{out.parts[-2]}: responses end with {ends_in_words(plan.end_tokens)}", flush=True)
            backend, made = load(), 0
            count, total = sum(map(len, batches)), sum(map(len, mine))
            title = " ".join(out.parts[-2:])
            since = started
            progress = show(title=title, steps=total, first_step=total - count)
            for batch in batches if BACKENDS[plan.settings.backend].in_step else [list(chain(*batches))]:
                for responses in backend.stream(plan.requests(batch), draws):
                    samples = [_sample(plan, batch[place], response) for place, response in responses.items()]
                    now = time.monotonic()
                    done.append(samples, now - since)
                    since = now
                    made += len(responses)
                    progress.report(total - count + made)
        if split is None:
            seconds = time.monotonic() - started
            _write(plan, done, out, {"seconds": round(seconds, 3), "rows_kept_from_earlier": before})


def _sample(plan: Plan, job: tuple[int, int], response: Response) -> Sample:
    if plan.bodies:  # a server has decoded it, and its chat template is not known here
        text, in_thinking = response.text or "", False
    else:
        text, in_thinking = graded_text(plan.models[-1].tokenizer, plan.prompts[job[0]], response.tokens)
    ends = [place for stop in plan.settings.stop if (place := text.find(stop)) >= 0]
    text = text[: min(ends)] if ends else text
    truncated = not response.finished and not ends
    return Sample(
        problem_id=plan.ids[job[0]],
        sample=job[1],
        **(withheld(text, truncated, in_thinking) if plan.gated else {"text": text}),
        tokens=len(response.tokens) if response.length is None else response.length,
        finish_reason="length" if truncated else "stop",
        replaced=response.replaced,
        in_thinking=(in_thinking and not plan.gated) or None,  # of a gated one only the letter is kept
        prompt_tokens=response.prompt_length,
    )


def withheld(text: str, truncated: bool, in_thinking: bool = False) -> dict[str, Any]:
    r"""The fields that stand for a response to a gated benchmark: the letter it chose, and a hash of the whole.

    A response may quote its question, which may not be published. The letter is stored as ``\boxed{C}``, which the
    grader reads as it read the whole response; the hash still tells two responses apart.
    """
    from evals.grading.extraction import extract_answer  # these packages are not in every backend's environment
    from evals.grading.verdict import Kind

    letter = extract_answer(text, Kind.CHOICE, truncated, in_thinking).answer
    kept = rf"\boxed{{{letter}}}" if letter else ""
    return {"text": kept, "text_sha256": sha256_bytes(text.encode("utf-8"))}


def _write(plan: Plan, done: FinishedSamples, out: Path, details: Mapping[str, Any]) -> None:
    """Write the samples in the order of the problems, and their manifest.

    A prompt that leaves no room for an answer has empty responses of length 0, cut by the context: they count as
    truncated, and as wrong.
    """
    room = plan.room
    no_response = Response([], finished=False)
    counts = {"rows": 0, "tokens": 0, "prompt_tokens": sum(map(len, plan.prompts))}

    def rows() -> Iterator[Mapping[str, Any]]:
        for index in range(len(plan.ids)):
            for number in range(plan.settings.samples_per_problem):
                job = (index, number)
                sample = done[plan.key(job)] if room[index] else _sample(plan, job, no_response)
                counts["rows"] += 1
                counts["tokens"] += sample.tokens or 0
                counts["prompt_tokens"] += sample.prompt_tokens or 0
                yield sample.to_json()

    path = out / "samples.jsonl"
    write_jsonl(path, rows())
    Manifest(
        kind="samples",
        inputs=plan.inputs,
        outputs=hash_files(out, path),
        parameters=plan.parameters,
        fingerprint=plan.fingerprint,
        details={
            **counts,
            "prompts_too_long": room.count(0),
            "prompts_with_less_room": sum(0 < tokens < plan.settings.max_new_tokens for tokens in room),
            "unknown_prompt_tokens": plan.unknown_tokens,
            # Of all processes that made samples; of a smaller k than theirs, its share.
            "sampling_seconds": round(done.seconds * min(1.0, counts["rows"] / max(1, len(done))), 3),
            "peak_memory_bytes": done.peak_memory_bytes,
            **({"not_promised": NOT_PROMISED} if plan.bodies else {}),
            **details,
        },
    ).write(out / "manifest.json")
