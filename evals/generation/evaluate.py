"""Sampling a benchmark: samples are kept as they finish, and written in the order of the problems at the end."""

from __future__ import annotations

import bz2
import json
import os
import resource
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.core import arithmetic
from evals.core.errors import UserError
from evals.core.files import canonical_json, sha256_bytes, write_jsonl
from evals.core.manifest import Manifest, hash_files, write_policy_manifest
from evals.core.progress import Progress
from evals.core.records import FinishReason, Sample
from evals.core.single_writer import single_writer
from evals.generation.backend import BACKENDS, TOKENS_BETWEEN_SIGNS, Backend, Response
from evals.generation.chat import encoded_again, ends_in_words
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import SamplePlan, make_plan
from evals.generation.served import NOT_PROMISED
from evals.generation.settings import EvaluationSettings
from evals.generation.thinking import graded_text

if TYPE_CHECKING:
    from evals.generation.backend import Draws


TOKEN_IDS = "token_ids"
"""The key of the tokens of a sample whose text, encoded again, is others; they have a file beside the samples."""


def sample_benchmarks(
    models: Sequence[Checkpoint],
    benchmarks: Mapping[Path, EvaluationSettings],
    out: Path,
    draws: Draws | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> None:
    """Sample what is missing of the responses of a model to problem sets, each into a directory of its name in ``out``.

    The model is loaded once, if anything is missing. A manifest in ``out`` comes last.

    Args:
        models: one, or several that decode together by a rule ``draws``, with ``parameters`` of the samples for it.
        benchmarks: directory of problems -> settings; what shapes the distribution of tokens is the same in all.
        out: directory of the policy.
    """
    plans = [
        make_plan(models, problems, settings).with_parameters(**(parameters or {}))
        for problems, settings in benchmarks.items()
    ]
    longest = max(plans, key=lambda plan: plan.context_length)  # of a model without a limit, what its prompts need
    load = cache(longest.load_backend)
    directories = [out / problems.name for problems in benchmarks]
    with single_writer(out / ".writer", "samples into this directory"):
        for number, (plan, directory) in enumerate(zip(plans, directories, strict=True)):
            progress = partial(Progress, out, unit=f"sample of {directory.name}")
            sample_plan(plan, load, directory, draws, partial(progress, parts_left=len(plans) - number - 1))
        write_policy_manifest("policy_samples", out, [directory / "manifest.json" for directory in directories])


def sample_plan(
    plan: SamplePlan,
    load: Callable[[], Backend],
    out: Path,
    draws: Draws | None = None,
    show: Callable[..., Progress] | None = None,
) -> None:
    """Sample what is missing, and write ``samples.jsonl.bz2``, ``token_ids.jsonl`` and their manifest.

    Finished samples are kept under ``out/state``. A backend that decodes in step makes whole batches, of the same
    samples in any job; another gets everything that is missing at once, and schedules it.

    Args:
        plan: the samples that are wanted.
        load: loads the backend; called if there is something to sample.
        out: directory of the samples.
        draws: the rule that tokens are drawn by; None draws from the only model.
        show: makes the job's progress, of its title and steps; None for one that is written to ``out``.
    """
    started = time.monotonic()
    done = FinishedSamples(out / "state" / plan.identity)
    before, total = len(done), sum(map(len, plan.batches()))
    missing = [[job for job in batch if plan.key(job) not in done] for batch in plan.batches()]
    if batches := list(filter(None, missing)):
        if plan.end_tokens:
            print(f"{out.parts[-2]}: responses end with {ends_in_words(plan.end_tokens)}", flush=True)
        backend, made = load(), total - sum(map(len, batches))
        title, since = " ".join(out.parts[-2:]), started
        progress = (show or partial(Progress, out, unit="sample"))(title=title, steps=total, first_step=made)
        for batch in batches if BACKENDS[plan.settings.backend].in_step else [list(chain(*batches))]:
            running, length = len(batch), 0
            for responses in backend.stream(plan.requests(batch), draws):
                running, length = running - len(responses), length + (0 if responses else TOKENS_BETWEEN_SIGNS)
                if not responses:
                    words = f"{running} running, {length} of at most {plan.settings.max_new_tokens} tokens"
                    progress.report(made, words, running)
                    continue
                answered = {number: response for number, response in responses.items() if response.is_answered}
                samples = [_sample(plan, batch[number], response) for number, response in answered.items()]
                now = time.monotonic()
                done.append(samples, now - since)
                since = now
                made += len(responses)
                progress.report(made)
    seconds = time.monotonic() - started
    _write(plan, done, out, {"seconds": round(seconds, 3), "rows_kept_from_earlier": before})


def _sample(plan: SamplePlan, job: tuple[int, int], response: Response) -> Sample:
    if plan.bodies:  # a server has decoded it, and its chat template is not known here
        text, in_thinking = response.text or "", False
    else:
        text, in_thinking = graded_text(plan.models[-1].tokenizer, plan.prompts[job[0]], response.tokens)
    ends = [start for stop in plan.settings.stop if (start := text.find(stop)) >= 0]
    text = text[: min(ends)] if ends else text
    truncated = not response.finished and not ends
    finish_reason: FinishReason = "unanswered" if not response.is_answered else "length" if truncated else "stop"
    tokens = again = list(response.tokens)
    if not plan.bodies and not plan.gated:
        again = encoded_again(plan.models[-1].tokenizer, text, finish_reason, plan.end)
    return Sample(
        problem_id=plan.ids[job[0]],
        sample=job[1],
        **(withheld(text, truncated, in_thinking) if plan.gated else {"text": text}),
        tokens=len(response.tokens) if response.length is None else response.length,
        finish_reason=finish_reason,
        replaced=response.replaced,
        in_thinking=(in_thinking and not plan.gated) or None,  # gated: we store only the letter
        prompt_tokens=response.prompt_length,
        token_ids=None if again == tokens else tokens,
    )


def withheld(text: str, truncated: bool, in_thinking: bool = False) -> dict[str, Any]:
    r"""The fields that stand for a response to a gated benchmark: the letter it chose, and a hash of the whole.

    A response may quote its question, which may not be published. The letter is stored as ``\boxed{C}``, which the
    grader reads as it read the whole response; the hash still tells two responses apart.
    """
    from evals.grading.extraction import extract_answer  # these packages are not in every backend's environment
    from evals.grading.verdict import Kind, Reason

    letter = extract_answer(text, Kind.CHOICE, truncated, in_thinking)
    kept = "" if isinstance(letter, Reason) else rf"\boxed{{{letter}}}"
    return {"text": kept, "text_sha256": sha256_bytes(text.encode("utf-8"))}


def _write(plan: SamplePlan, done: FinishedSamples, out: Path, details: Mapping[str, Any]) -> None:
    """Write the samples in the order of the problems, token ids where texts do not give them, and the manifest.

    A prompt that leaves no room for an answer has empty responses of length 0, cut by the context: they count as
    truncated, and as wrong.
    """
    room = plan.room
    no_response = Response([], finished=False, is_answered=not plan.bodies)
    counts = {"rows": 0, "tokens": 0, "prompt_tokens": sum(map(len, plan.prompts)), "unanswered": 0}
    threads = sorted(number for number in done.threads if number)

    with_ids: list[tuple[int, int]] = []  # the samples whose text gives other tokens, read once more for them

    def sample_of(job: tuple[int, int]) -> Sample:
        return done[plan.key(job)] if plan.key(job) in done else _sample(plan, job, no_response)

    def rows() -> Iterator[Mapping[str, Any]]:
        for job in product(range(len(plan.ids)), range(plan.settings.samples_per_problem)):
            sample = sample_of(job)
            counts["rows"] += 1
            counts["tokens"] += sample.tokens or 0
            counts["prompt_tokens"] += sample.prompt_tokens or 0
            counts["unanswered"] += sample.finish_reason == "unanswered"
            with_ids.extend([job] if sample.token_ids is not None else [])
            yield {key: value for key, value in sample.to_json().items() if key != TOKEN_IDS}

    files, beside = [out / "samples.jsonl.bz2"], out / f"{TOKEN_IDS}.jsonl"
    write_jsonl(files[0], rows())
    beside.unlink(missing_ok=True)
    if not plan.bodies and not plan.gated:  # a server keeps its tokens, and a gated text is withheld
        kept = (sample_of(job).to_json() for job in with_ids)
        write_jsonl(beside, ({key: row[key] for key in ("problem_id", "sample", TOKEN_IDS)} for row in kept))
        files.append(beside)
    Manifest(
        kind="samples",
        inputs=plan.inputs,
        outputs=hash_files(out, *files),
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
            **({"threads": threads} if threads else {}),
            **details,
        },
    ).write(out / "manifest.json")


Key = tuple[str | int, int]
"""The id of a problem, and the number of a sample."""

_LINES_IN_MEMORY = 4


class FinishedSamples:
    """The finished samples of one plan, in an append-only file that survives a kill at any moment.

    A line has the samples that were finished together, compressed: a finished file is there for a larger k alone. The
    texts stay on the disk: in memory is only where they are.
    The file lies in a directory named by the plan's fingerprint that Snakemake does not know of, so that earlier
    samples outlive a job, a larger k and a deleted output. Each line has that name too: one without it, or with
    another, as of a file that was copied here, is refused.

    Attributes:
        seconds: what the samples took, in all processes that made them.
        peak_memory_bytes: the largest resident set of these processes.
        threads: what these processes kept to.
    """

    def __init__(self, directory: Path) -> None:
        self._path = path = directory / "samples.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        self.seconds, self.peak_memory_bytes = 0.0, 0
        self.threads = set[int]()
        self._places: dict[Key, tuple[int, int]] = {}  # offset of the line in the file, in bytes; row in that line
        self._line_at = lru_cache(_LINES_IN_MEMORY)(self._read_line)
        if not path.exists():
            return
        whole = 0
        for start, end, line in _read_lines(path):
            if line.get("plan") != directory.name:
                raise UserError(f"{path}: has samples of another plan; delete the file to sample its problems again")
            self._enter(start, line, [Sample.parse(row, str(path)) for row in json.loads(_text_of(line))])
            whole = end
        if whole < path.stat().st_size:
            os.truncate(path, whole)  # a kill in the middle of a line: its samples are made again

    def _enter(self, start: int, line: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        for row, sample in enumerate(samples):
            self._places[sample.problem_id, sample.sample] = start, row
        self.seconds += line["seconds"]
        self.peak_memory_bytes = max(self.peak_memory_bytes, line["peak_memory_bytes"])
        self.threads.add(line["threads"])

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __getitem__(self, key: Key) -> Sample:
        start, row = self._places[key]
        return Sample.parse(self._line_at(start)[row], str(self._path))

    def _read_line(self, start: int) -> Sequence[Mapping[str, Any]]:
        with open(self._path, "rb") as file:
            file.seek(start)
            rows: Sequence[Mapping[str, Any]] = json.loads(_text_of(json.loads(file.readline())))
            return rows

    def append(self, samples: Sequence[Sample], seconds: float) -> None:
        """Add samples that finished together and took so many seconds, on the disk when this returns."""
        text = canonical_json([sample.to_json() for sample in samples]).encode("utf-8")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        packed = b64encode(bz2.compress(text)).decode("ascii")
        line = {"packed": packed, "sha256": sha256_bytes(text), "seconds": round(seconds, 6), "peak_memory_bytes": peak}
        line["plan"] = self._path.parent.name
        line["threads"] = arithmetic.describe().get("threads", 0)
        try:
            with open(self._path, "ab") as file:
                start = file.tell()
                file.write(f"{canonical_json(line)}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        self._enter(start, line, samples)


def _text_of(line: Mapping[str, Any]) -> bytes:
    """The samples of a line as JSON; lines of earlier versions have them uncompressed, or packed by zlib."""
    if "rows" in line:
        return canonical_json(line["rows"]).encode("utf-8")
    packed = b64decode(line["packed"])
    return bz2.decompress(packed) if packed.startswith(b"BZh") else zlib.decompress(packed)


def _read_lines(path: Path) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Read each line of a file with the places of its start and end; an unfinished last line is left out."""
    start = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                content = json.loads(line)
                intact = content["sha256"] == sha256_bytes(_text_of(content))
            except (ValueError, KeyError, TypeError, OSError, zlib.error):
                intact = False
            if not intact:
                raise UserError(f"{path}: line {number} is damaged; delete the file to sample its problems again")
            yield start, start + len(line), content
            start += len(line)
