"""Benchmarks (config/benchmarks/*.yaml) and published training sets (config/datasets/*.yaml)."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from evals.core.config.settings import Settings
from evals.core.config.source_table import SelectedRows, SourceTable
from evals.core.errors import InvalidInput, NotAccepted
from evals.core.numbers import BOUNDED, Count, Index
from evals.core.record import ExtensibleRecord
from evals.core.records import ProblemKind
from evals.core.values import UNIQUE, Commit, Matching, Name, Prompt, Repository, Sha256, Text, Title

GENERATED = "generated"

_JsonLines = Annotated[str, Matching(r"[^\x00-\x1f]+\.jsonl", "a file name that ends in .jsonl")]
Kinds = Annotated[tuple[ProblemKind, ...], Field(min_length=1)]


def require_verifier(kinds: Sequence[ProblemKind], verifier: str | None) -> None:
    """Check that problems with several right answers are not graded by the one that they have."""
    if verifier is None and any(kind.family == "program" for kind in kinds):
        raise NotAccepted("lacks verifier, which problems of family program need (config/verifiers/program.py)")


Verifier = Annotated[
    Text | None,
    Field(
        description="a Python file that grades or gives the rewards (docs/your_verifier.md); a study's comes before "
        "a training set's"
    ),
]


class PublishedSet(Settings):
    """A published training set (docs/benchmarks.md)."""

    source: Name = Field(description="name of a file in config/datasets")
    path: Text | None = Field(default=None, description="a local copy: a JSON lines file or a directory")
    exclude: Annotated[tuple[str, ...], *UNIQUE] | None = Field(
        default=None, description="ids of problems to leave out"
    )


class Prompts(Settings):
    """A prompt for either kind of model."""

    base: Prompt = Field(description="for a model that continues text")
    chat: Prompt = Field(description="the user's turn for a model with a chat template")


AnyPrompt = Annotated[
    Annotated[Prompt, Tag("text")] | Annotated[Prompts, Tag("Prompts")],
    Discriminator(lambda content: "text" if isinstance(content, str) else "Prompts"),
]


class Columns(Settings):
    """The columns of a benchmark's source; a dot leads into a nested column."""

    id: str | None = Field(description="the problem's id; null takes a hash of its text")
    problem: str = Field(description="the problem's text")
    answer: str | None = Field(description="the reference answer; null where options or tests decide")
    options: str | Annotated[tuple[str, ...], Field(min_length=2, max_length=10)] | None = Field(
        default=None,
        description="options of multiple choice: one column with a list, or several, the right one first",
    )
    tests: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None, description="the tests of a program, with grader code"
    )
    entry_point: str | None = Field(default=None, description="the name of the function to write, with grader code")
    examples: str | None = Field(default=None, description="tests that the prompt shows, with grader code")
    topic: str | None = Field(
        default=None,
        description="the problem's topic, a cluster in intervals and tests",
    )
    starter: str | None = Field(default=None, description="the beginning of the program, with grader code")
    metadata: str | None = Field(default=None, description="further data of the tests, with grader code")


ReleaseName = Literal["gsm8k", "gsm8k_steps", "svamp", "olympiadbench", "mawps"]
"""The public releases whose files are read as they are (``evals.problems.releases``)."""
_AS_RELEASED = "columns of the source, or the name of the release whose rows it has (docs/benchmarks.md)"


class Exclusion(Settings):
    """A problem that is left out."""

    id: str | int = Field(description="the problem")
    answer: str = Field(description="the answer that is wrong")
    reason: Text = Field(description="why it is wrong")


class _Benchmark(Settings):
    """The keys of every benchmark."""

    title: Title = Field(description="the name in tables and figures")
    description: str | None = Field(default=None, description="for people")
    licence: str = Field(description="licence of the problems")
    count: Annotated[int, Field(ge=2), BOUNDED] = Field(description="number of problems of the source")
    prompt: AnyPrompt = Field(description="text with {problem} in it once, or one each for base and chat models")
    verifier: Verifier = None
    extraction: Literal["marked", "last_statement"] = Field(
        default="marked",
        description="what counts as the answer: what is marked; or else what the last sentence with a number or "
        "formula states (docs/grading.md)",
    )
    max_new_tokens: Count = Field(
        default=4096,
        description="longest response in tokens by `rlvr-bench eval`",
    )

    @model_validator(mode="after")
    def _check_extraction(self) -> Self:
        grader = "a verifier" if self.verifier is not None else f"grader {getattr(self, 'grader', 'math')}"
        if self.extraction != "marked" and grader != "grader math":
            raise NotAccepted(f"is {self.extraction!r} beside {grader}", "marked, or grader math", "extraction")
        return self


class GeneratedBenchmark(_Benchmark, ProblemKind):
    """A benchmark that is drawn from a seed."""

    source: Literal["generated"] = Field(description="drawn from the seed")
    seed: Index = Field(description="decides which problems are drawn")

    @model_validator(mode="after")
    def _check_verifier(self) -> Self:
        require_verifier([self], self.verifier)
        return self

    @property
    def kind(self) -> dict[str, Any]:
        """Family and length of its problems."""
        return {"family": self.family, "operands": self.operands}


class _Reading(Settings):
    """The keys that decide how the rows of a source become problems, wherever it is."""

    count: Annotated[int, Field(ge=2), BOUNDED] = Field(description="number of problems of the source")
    sha256: Sha256 | None = Field(description="SHA-256 of the resulting problems.jsonl; null if unknown")
    gated: bool = Field(description="whether the texts may be written nowhere")
    grader: Literal["math", "choice", "code"] = Field(description="how responses are graded (docs/grading.md)")
    tests_format: Literal["evalplus", "livecodebench", "own"] | None = Field(
        default=None, description="form of the tests; required with grader code"
    )
    boxed_answer: bool | None = Field(default=None, description="whether the answer is the last box of its column")
    repairs: Annotated[tuple[Literal["dollars", "integer", "e_notation", "python"], ...], *UNIQUE] | None = Field(
        default=None, description="repairs of the form of the reference answers"
    )
    option_seed: Index | None = Field(
        default=None, description="decides the order of the options; required with grader choice"
    )
    exclude: tuple[Exclusion, ...] | None = Field(default=None, description="problems that are left out")

    @model_validator(mode="after")
    def _check_grader(self) -> Self:
        if self.gated and self.grader != "choice":
            raise NotAccepted(f"is {self.grader!r} of a gated benchmark", "choice", "grader")
        for grader, key in (("choice", "option_seed"), ("code", "tests_format")):
            if self.grader == grader and getattr(self, key) is None:
                raise NotAccepted(f"lacks {key}, which grader {grader} needs")
        return self


class BenchmarkProblems(_Reading, SourceTable):
    """Everything that decides a benchmark's problems."""

    count: Annotated[int, Field(ge=2), BOUNDED] | None = None  # type: ignore[assignment]
    sha256: Sha256 | None = None
    gated: bool = False
    columns: Columns | ReleaseName | None = None


class ReadBenchmark(_Reading, _Benchmark):
    """The keys of every benchmark that is read from the Hugging Face Hub or from a file."""

    samples_per_problem: Count = Field(description="usual k for a set of this size, for readers")

    @model_validator(mode="after")
    def _check_verifier(self) -> Self:
        if self.verifier is not None and self.grader != "math":
            raise NotAccepted(f"is given beside grader {self.grader}", "none, or grader math", "verifier")
        return self


class HubBenchmark(ReadBenchmark):
    """A benchmark of the Hugging Face Hub."""

    source: Literal["hub"] = Field(description="read from the Hugging Face Hub, or from the study's local copy")
    repository: Repository = Field(description="repository on the Hub")
    revision: Commit | None = Field(description="a commit; null takes the newest")
    configuration: Text | None = Field(default=None, description="the repository's configuration")
    split: Text = Field(description="the repository's split")
    files: Annotated[tuple[_JsonLines, ...], Field(min_length=1)] | None = Field(
        default=None, description="JSON lines files in place of a split"
    )
    rows: SelectedRows | None = Field(default=None, description="the rows that are taken; default all")
    columns: Columns | ReleaseName = Field(description=_AS_RELEASED)


class FileBenchmark(ReadBenchmark):
    """A benchmark of a file: JSON lines, JSON, CSV, TSV or Parquet, or a file of a release."""

    source: Literal["path"] = Field(description="read from a file")
    licence: str = Field(default="not said", description="licence of the problems")
    count: Annotated[int, Field(ge=2), BOUNDED] | None = Field(  # type: ignore[assignment]
        default=None, description="number of problems of the file; null for any"
    )
    sha256: Sha256 | None = Field(default=None, description="SHA-256 of the resulting problems.jsonl; null for any")
    gated: bool = Field(default=False, description="whether the texts may be written nowhere")
    samples_per_problem: Count = Field(default=4, description="usual k for a set of this size, for readers")
    path: Text = Field(description="the file, relative to the repository (docs/benchmarks.md)")
    rows: SelectedRows | None = Field(
        default=None, description="the rows of a release's file that are taken; default all"
    )
    columns: Columns | ReleaseName | None = Field(default=None, description=_AS_RELEASED)

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if self.rows is not None and not isinstance(self.columns, str):
            raise NotAccepted(
                "selects rows of a file in the project's form", "rows with the columns of a release", "rows"
            )
        return self


Benchmark = GeneratedBenchmark | HubBenchmark | FileBenchmark


class _Source(ExtensibleRecord):
    """The key of a benchmark that says which others it has."""

    source: Literal["generated", "hub", "path"]


def parse_benchmark(content: Any, source: str) -> Benchmark:
    """Read the content of a benchmark's file."""
    if isinstance(content, dict) and "source" not in content:
        raise InvalidInput(source, "", "lacks source", "generated, hub, path")
    kinds: dict[str, type[Benchmark]] = {GENERATED: GeneratedBenchmark, "hub": HubBenchmark, "path": FileBenchmark}
    return kinds[_Source.parse(content, source).source].parse(content, source)


class TrainingColumns(Settings):
    """The columns of a training set's source; a dot leads into a nested column."""

    id: str | None = Field(description="the row's id; null takes a hash of the problem's text")
    problem: str = Field(description="the problem's text")
    answer: str = Field(description="the reference answer")


class Counts(Settings):
    """The numbers of rows that remain after each step of reading; null where a number is not known."""

    rows: Count | None = Field(description="rows of the source, without those that a release leaves out")
    distinct_rows: Count | None = Field(description="different rows")
    distinct_texts: Count | None = Field(description="different texts")
    distinct_problems: Count | None = Field(description="different problems, without prefix and suffix")
    kept: Count | None = Field(description="problems without those of several answers")


class _TrainingReading(Settings):
    """The keys that decide how the rows of a published set become training problems."""

    columns: TrainingColumns | ReleaseName = Field(description=_AS_RELEASED)
    prefix: str = Field(description="text before every problem, which the study's prompt replaces")
    suffix: str = Field(description="text after every problem, which is taken off")
    counts: Counts = Field(description="what reading has to find")
    conflicts: tuple[Annotated[tuple[str, ...], Field(min_length=2)], ...] | None = Field(
        description="ids of rows with one problem and several answers, which are left out; null if unknown"
    )
    sha256: Sha256 | None = Field(description="SHA-256 of the resulting problems.jsonl; null if unknown")


class _PublishedSet(Settings):
    """A published set of training problems: its name, and its place on the Hub."""

    title: Title = Field(description="the name for people")
    description: str | None = Field(default=None, description="for people")
    repository: Repository | None = Field(
        default=None, description="OWNER/NAME on the Hugging Face Hub; without it, local files alone"
    )
    revision: Commit | None = Field(default=None, description="a commit")
    configuration: Text | None = Field(default=None, description="the repository's configuration")
    split: Text | None = Field(default=None, description="the repository's split")
    rows: SelectedRows | None = Field(default=None, description="the rows that are taken; without it all")

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        given = {key for key in ("repository", "revision", "split") if getattr(self, key) is not None}
        if given and len(given) < 3:
            raise NotAccepted(f"has {', '.join(sorted(given))} alone", "repository, revision and split, or none")
        return self


class TrainingSet(_TrainingReading, _PublishedSet):
    """A published training set."""

    licence: str = Field(description="licence of the problems")
    verifier: Verifier = None


class TrainingProblems(_TrainingReading, SourceTable):
    """Everything that decides the problems of a published set.

    ``exclude`` lists ids of problems that the study leaves out.
    """

    exclude: tuple[str, ...] = ()
