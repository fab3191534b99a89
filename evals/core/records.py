"""The records of results: runs, problems, samples, grades, scores, audits (docs/architecture.md)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from evals.core.errors import InvalidInput, NotAccepted, UserError, refuse
from evals.core.files import read_json
from evals.core.manifest import read_manifest
from evals.core.numbers import Index, Positive
from evals.core.record import ExtensibleRecord, Record, absent, setting
from evals.core.values import OtherExtraction

BASE = "base"  # the method's name of a model that was not trained further

ALL_BENCHMARKS = "all"  # the benchmark's name of a mean over benchmarks

MATCH = "match"  # the reason of a grade that is correct

Interval = tuple[float, float]
Estimate = tuple[float, Interval | None]  # a value and its interval; None where none is to be trusted
Weighting = Literal["benchmarks", "problems"] | dict[str, Positive]
"""The weights of benchmarks in a mean over them: all alike, as their numbers of problems, or own ones."""
FinishReason = Literal["stop", "length", "unanswered"]


class Run(ExtensibleRecord):
    """One row of a study's run sheet: a trained policy, or the base model."""

    run: str  # readable id, the name of the run's directories: tiny-dapo-s1
    model: str
    method: str  # method's name in the study, or base for the base model itself
    seed: int | None  # training seed; None for the base model
    title: str  # the method's name for people
    base: int | None = absent()  # which of the model's base models it starts from, or is; None of a model that has one

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
    """A way in which a study trains a method, a row of the sheet of a design (evals/scores/designs.py)."""

    name: str  # the method in the names of its runs, {model}-{name}-s{seed}
    method: str  # the method that it is a way of, with its title
    title: str
    rates: dict[str, float] = Field(default={})  # model -> learning rate
    kind: str = ""  # of difference between sampler and trainer, like dose; empty without any
    dose: str = ""
    levels: dict[str, str] = Field(default={})  # factor -> level, of a cell of a factorial; none of a control


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

    family: Literal["chain", "reverse", "variables", "worded", "hundreds", "lists", "countdown", "program"] = setting(
        "countdown and program need a verifier"
    )
    operands: int = setting("digits of a problem; of lists, functions plus one", ge=2, le=16)


class Gold(ExtensibleRecord):
    """The reference answer of a problem, a line of ``problems.jsonl`` without its text."""

    id: str | int  # unique in its set: aime_2024-60
    answer: str  # what a response has to end in; of a program, the function to define
    family: str | None = None  # the kind of a generated problem, otherwise the name of the set
    topic: str | None = None  # of a benchmark that declares a column of topics
    problem_sha256: str | None = None  # hash of a text that may not be published; the line then has no problem


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
    def of(cls, directory: Path) -> Self:
        path = directory / "problems.jsonl"
        outputs = read_manifest(directory / "manifest.json", "problems").outputs
        if path.name not in outputs:
            raise UserError(f"{directory / 'manifest.json'}: outputs lacks {path.name}")
        return cls(name=directory.name, path=path.as_posix(), sha256=outputs[path.name])


def rows_in(directory: Path, kind: str) -> Path:
    """The file of samples or grades (``kind``) in a directory; those of an earlier version are not compressed."""
    path, earlier = directory / f"{kind}.jsonl.bz2", directory / f"{kind}.jsonl"
    return earlier if earlier.is_file() and not path.is_file() else path


class Sample(ExtensibleRecord):
    """One response to a problem, a line of ``samples.jsonl.bz2``."""

    problem_id: str | int
    sample: int  # the sample's number, from 0
    text: str  # the response; of a gated benchmark, its letter in a box
    text_sha256: str | None = None  # hash of a response whose text is withheld
    tokens: Index | None = None  # with the end token; None in files of other engines that do not say it
    # stop if the response ended by itself, length if it was cut off, unanswered if a server gave none; None likewise
    finish_reason: FinishReason | None = None
    replaced: int | None = None  # tokens that were drawn again, where two models decoded together
    in_thinking: bool | None = None  # true where the prompt ended in <think>; absent elsewhere
    prompt_tokens: int | None = None  # length of the prompt, as a server counted it
    token_ids: list[int] | None = None  # sampled, where the text encoded again is others: in a file of their own

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)


class Grade(ExtensibleRecord):
    """The verdict on one sample, a line of ``grades.jsonl.bz2``."""

    problem_id: str | int
    sample: int
    correct: bool
    answer: str | None  # the answer that was found in the response, or None
    reason: str  # one of :class:`evals.grading.verdict.Reason`; match where the sample is correct, and only there
    tokens: Index | None = None  # of the sample, like finish_reason
    finish_reason: FinishReason | None = None

    def check_whole(self) -> None:
        if self.correct != (self.reason == MATCH):
            accepted = f"{MATCH} where correct is true, and only there"
            raise NotAccepted(f"is {self.reason!r} where correct is {str(self.correct).lower()}", accepted, "reason")


class Score(ExtensibleRecord):
    """One run on one benchmark. Rates and averages are fractions of one; None where no honest value exists."""

    run: str
    model: str
    method: str
    seed: int | None
    base: int | None = absent()  # as of the run
    average_at_k: float
    standard_error: float | None  # of the average, clustered by problem; None with one problem
    confidence_interval: Interval | None  # None where no interval holds (docs/evaluation.md)
    sampling_standard_error: float | None  # of the samples alone, with these problems; None with one sample
    pass_at_k: dict[str, float]  # k -> probability that one of k samples is correct
    g_pass_at_k: dict[str, float]  # threshold -> probability that at least this share of k samples is correct
    majority_at_k: float | None  # share of problems whose most frequent answer is correct
    truncation_rate: float | None  # share of samples that were cut off; None where they do not say it
    no_answer_rate: float  # share of samples without an answer, truncated ones included
    timeout_rate: float
    unparsable_rate: float
    mean_tokens: float | None
    total_tokens: int | None
    correct_counts: tuple[int, ...]  # correct samples of each problem, aligned with problem_ids of the file


class BenchmarkScores(ExtensibleRecord):
    """All runs on one benchmark, the content of ``scores/{benchmark}.json``."""

    benchmark: str
    extraction: OtherExtraction = None
    samples_per_problem: int = Field(ge=1)
    problem_ids: tuple[str | int, ...] = Field(min_length=1)
    clusters: tuple[tuple[str | int, ...], ...] = ()  # groups of near copies, or of problems that have one topic
    by_topic: bool = Field(default=False, exclude_if=lambda by_topic: not by_topic)  # whether the clusters are topics
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
    """The choice of the best among the checkpoints along a run, the content of ``runs/{run}/chosen.json``."""

    run: str  # the training
    benchmark: str
    samples_per_problem: int = Field(ge=1)
    step: int = Field(ge=1)  # after which the chosen policy was
    averages: dict[str, float] = Field(min_length=1)  # step of every policy -> its avg@k, which decided


class Disagreement(Record):
    """A sample on which the second grader disagrees, with the reasons of both."""

    problem_id: str | int
    sample: int
    ours: str
    second: str


class SecondOpinion(ExtensibleRecord):
    """The verdicts of the second grader on the samples of a run."""

    # Of samples that are easy to grade the second grader was asked about a drawn share.
    compared: int  # samples on which both have a verdict
    failed: int  # on which the second one has none
    only_ours: int  # which only ours takes as correct; disagreements are the first of both
    only_second: int
    disagreements: tuple[Disagreement, ...] = ()
    share: float = 1.0


class Audit(ExtensibleRecord):
    """The reliability of a run's grades on a benchmark, in samples."""

    run: str
    samples: int
    correct: int
    truncated: int | None  # None where the samples do not say how they ended
    no_answer: int
    timeouts: int
    unparsable: int
    other_failures: int  # of grading: memory, a killed process, an unreadable gold, a verifier that raised, no response
    no_second_because: str | None  # withheld texts, code or verifier, where the second grader is not asked; or None
    second: SecondOpinion | None


class GraderName(Record):
    """The name and version of a grader."""

    name: str
    version: str


class BenchmarkAudit(ExtensibleRecord):
    """The audit of a policy on one benchmark, the content of ``grades/{policy}/{benchmark}/audit.json``."""

    benchmark: str
    extraction: OtherExtraction = None
    second_grader: GraderName
    audit: Audit
