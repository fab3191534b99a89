"""The records of results: runs, problems, samples, grades, scores, comparisons (docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from evals.core.errors import InvalidInput, NotAccepted, UserError, refuse
from evals.core.files import read_json
from evals.core.manifest import read_manifest
from evals.core.numbers import Index, Positive
from evals.core.record import ExtensibleRecord, Record, setting
from evals.core.values import OtherExtraction

BASE = "base"
"""The method's name of a model that was not trained further."""

ALL_BENCHMARKS = "all"
"""The benchmark's name of a mean over benchmarks."""

MATCH = "match"
"""The reason of a grade that is correct."""

Interval = tuple[float, float]
Weighting = Literal["benchmarks", "problems"] | dict[str, Positive]
"""The weights of benchmarks in a mean over them: all alike, as their numbers of problems, or own ones."""
FinishReason = Literal["stop", "length", "unanswered"]


class Run(ExtensibleRecord):
    """One row of a study's run sheet: a trained policy, or the base model.

    Attributes:
        run: readable id, the name of the run's directories: ``tiny-dapo-s1``.
        method: method's name in the study, or ``base`` for the base model itself.
        seed: training seed; None for the base model.
        title: the method's name for people.
        base: which of the model's base models it starts from, or is; None of a model that has one.
    """

    run: str
    model: str
    method: str
    seed: int | None
    title: str
    base: int | None = Field(default=None, exclude_if=lambda base: base is None)

    @property
    def base_model(self) -> str:
        """The name of the base model that the run starts from, or is."""
        return base_name(self.model, self.base)


def base_name(model: str, number: int | None) -> str:
    """The name of a model's base model, below results/base/: tiny, or of several tiny-2."""
    return model if number is None else f"{model}-{number}"


def read_runs(path: Path) -> list[Run]:
    """Read ``runs.json``, each run once."""
    content = read_json(path)
    if not isinstance(content, list) or not content:
        raise InvalidInput(str(path), "", "is no list of runs", "objects with run, model, method, seed, title")
    runs = [Run.parse(row, f"{path}: entry {number}") for number, row in enumerate(content, start=1)]
    names = [run.run for run in runs]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UserError(f"{path}: entry {number + 1}: run {name} occurs twice")
    return runs


class Way(Record):
    """A way in which a study trains a method, a row of the sheet of a design (evals/scores/designs.py).

    Attributes:
        name: the method in the names of its runs, ``{model}-{name}-s{seed}``.
        method: the method that it is a way of, with its title.
        rates: model -> learning rate.
        kind, dose: of difference between sampler and trainer; empty without any.
        levels: factor -> level, of a cell of a factorial; none of a control.
    """

    name: str
    method: str
    title: str
    rates: dict[str, float] = Field(default={})
    kind: str = ""
    dose: str = ""
    levels: dict[str, str] = Field(default={})


@dataclass(frozen=True)
class Condition:
    """A row of the main table: one method on one model, over all of its seeds; the base model has a single run."""

    model: str
    method: str
    title: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs if run.seed is not None)


def conditions_of(runs: Sequence[Run]) -> tuple[Condition, ...]:
    """Group runs by model and method: models and methods in the order met, the base of each model first.

    With several models a title names its model, unless the titles of the models differ by themselves.
    """
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.model, run.method), []).append(run)
    models = list(dict.fromkeys(run.model for run in runs))
    titles = {method: {run.title for run in runs if run.method == method} for _, method in grouped}
    conditions = []
    for (model, method), members in grouped.items():
        title, differ = members[0].title, len(titles[method]) == len(models)
        title = title if differ else f"{title} ({model})"
        conditions.append(Condition(model, method, title, tuple(members)))
    return tuple(sorted(conditions, key=lambda row: (models.index(row.model), row.method != BASE)))


class ProblemKind(Record):
    """A family of generated problems at one length."""

    family: Literal["chain", "reverse", "variables", "worded", "hundreds", "program"] = setting(
        "program needs a verifier"
    )
    operands: int = setting("digits of a problem", ge=2, le=16)


class Gold(ExtensibleRecord):
    """The reference answer of a problem, a line of ``problems.jsonl`` without its text.

    Attributes:
        id: unique in its set: ``aime_2024-60``.
        answer: what a response has to end in; of a program, the function to define.
        family: the kind of a generated problem, otherwise the name of the set.
        topic: of a benchmark that declares a column of topics.
        problem_sha256: hash of a text that may not be published; the line then has no ``problem``.
    """

    id: str | int
    answer: str
    family: str | None = None
    topic: str | None = None
    problem_sha256: str | None = None


class Problem(Gold):
    """A problem with its text, a line of ``problems.jsonl``: id ``chain_3-07``, "Compute 3+4*7 ...", answer "9"."""

    problem: str


class ProblemFile(Record):
    """The ``problems.jsonl`` of a set under ``results/problems``, identified by the hash of its bytes."""

    name: str
    path: str
    sha256: str

    @property
    def role(self) -> Literal["training", "evaluation"]:
        """The use that a study makes of the set."""
        return "training" if self.name == "train" else "evaluation"

    @classmethod
    def of(cls, directory: Path) -> ProblemFile:
        """Identify the problem set of a directory by its manifest."""
        path = directory / "problems.jsonl"
        outputs = read_manifest(directory / "manifest.json", "problems").outputs
        if path.name not in outputs:
            raise UserError(f"{directory / 'manifest.json'}: outputs lacks {path.name}")
        return cls(name=directory.name, path=path.as_posix(), sha256=outputs[path.name])


class Sample(ExtensibleRecord):
    """One response to a problem, a line of ``samples.jsonl``.

    Attributes:
        sample: the sample's number, from 0.
        text: the response; of a gated benchmark, its letter in a box.
        text_sha256: hash of a response whose text is withheld.
        tokens: length of the response, its end token included; None in files of other engines that do not say it.
        finish_reason: ``stop`` if the response ended by itself, ``length`` if it was cut off, ``unanswered`` if a
            server gave none; None likewise.
        replaced: tokens that were drawn again, where two models decoded together.
        in_thinking: true where the prompt ended in the opening of thinking (``<think>``); absent elsewhere.
        prompt_tokens: length of the prompt, as a server counted it.
        token_ids: the tokens that were sampled, where the text encoded again is others: in a file of their own.
    """

    problem_id: str | int
    sample: int
    text: str
    text_sha256: str | None = None
    tokens: Index | None = None
    finish_reason: FinishReason | None = None
    replaced: int | None = None
    in_thinking: bool | None = None
    prompt_tokens: int | None = None
    token_ids: list[int] | None = None

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)


class Grade(ExtensibleRecord):
    """The verdict on one sample, a line of ``grades.jsonl``.

    Attributes:
        answer: the answer that was found in the response, or None.
        reason: one of :class:`evals.grading.verdict.Reason`; ``match`` where the sample is correct, and only there.
        tokens, finish_reason: of the sample.
    """

    problem_id: str | int
    sample: int
    correct: bool
    answer: str | None
    reason: str
    tokens: Index | None = None
    finish_reason: FinishReason | None = None

    def check_whole(self) -> None:
        if self.correct != (self.reason == MATCH):
            accepted = f"{MATCH} where correct is true, and only there"
            raise NotAccepted(f"is {self.reason!r} where correct is {str(self.correct).lower()}", accepted, "reason")


class Score(ExtensibleRecord):
    """One run on one benchmark. Rates and averages are fractions of one; None where no honest value exists.

    Attributes:
        standard_error: of the average, clustered by problem; None with one problem.
        confidence_interval: None where no interval holds (docs/evaluation.md).
        sampling_standard_error: of the samples alone, with these problems; None with one sample.
        pass_at_k: k -> probability that one of k samples is correct.
        g_pass_at_k: threshold -> probability that at least this share of k samples is correct.
        majority_at_k: share of problems whose most frequent answer is correct.
        truncation_rate: share of samples that were cut off; None where the samples do not say it, as for tokens.
        no_answer_rate: share of samples without an answer, truncated ones included.
        correct_counts: correct samples of each problem, aligned with ``problem_ids`` of the file.
    """

    run: str
    model: str
    method: str
    seed: int | None
    base: int | None = Field(default=None, exclude_if=lambda base: base is None)  # as of the run
    average_at_k: float
    standard_error: float | None
    confidence_interval: Interval | None
    sampling_standard_error: float | None
    pass_at_k: dict[str, float]
    g_pass_at_k: dict[str, float]
    majority_at_k: float | None
    truncation_rate: float | None
    no_answer_rate: float
    timeout_rate: float
    unparsable_rate: float
    mean_tokens: float | None
    total_tokens: int | None
    correct_counts: tuple[int, ...]


class BenchmarkScores(ExtensibleRecord):
    """All runs on one benchmark, the content of ``scores/{benchmark}.json``.

    Attributes:
        clusters: groups of problems that are near copies of one another, or that have one topic.
        by_topic: whether the clusters are topics.
    """

    benchmark: str
    extraction: OtherExtraction = None
    samples_per_problem: int = Field(ge=1)
    problem_ids: tuple[str | int, ...] = Field(min_length=1)
    clusters: tuple[tuple[str | int, ...], ...] = ()
    by_topic: bool = Field(default=False, exclude_if=lambda by_topic: not by_topic)
    scores: tuple[Score, ...] = Field(min_length=1)

    def check_whole(self) -> None:
        most, problems = self.samples_per_problem, len(self.problem_ids)
        for score in self.scores:
            counts, has = score.correct_counts, f"{score.run}: correct_counts has"
            refuse(len(counts) != problems, f"{has} {len(counts)}", str(problems))
            refuse(min(counts) < 0 or max(counts) > most, f"{has} {min(counts)}..{max(counts)}", f"0..{most}")


def extraction_note(benchmarks: Iterable[str]) -> str:
    """Say which benchmarks are graded by the last statement, below every table of their scores; nothing of others."""
    names = ", ".join(dict.fromkeys(benchmarks))
    if not names:
        return ""
    return (
        f"Extraction last_statement: {names}. Where a response marks no answer, the value counts that its last "
        "sentence with a number or formula states."
    )


class Chosen(Record):
    """The choice of the best among the policies along a training, the content of ``runs/{run}/chosen.json``."""

    run: str  # the training
    benchmark: str
    samples_per_problem: int = Field(ge=1)
    step: int = Field(ge=1)  # after which the chosen policy was
    averages: dict[str, float] = Field(min_length=1)  # step of every policy -> its avg@k, which decided
