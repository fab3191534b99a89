"""Benchmarks (config/benchmarks/*.yaml), published training sets (config/datasets/*.yaml), and the tables of both."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from evals.core.errors import InvalidInput, refuse
from evals.core.files import sha256_bytes
from evals.core.numbers import Count, Index, Several
from evals.core.record import Record, Settings, setting
from evals.core.records import ProblemKind
from evals.core.values import UNIQUE, Commit, Matching, Name, Prompt, Repository, Sha256, Text, Title

GENERATED = "generated"

_JsonLines = Annotated[str, Matching(r"[^\x00-\x1f]+\.jsonl", "a file name that ends in .jsonl")]
Kinds = Annotated[tuple[ProblemKind, ...], Field(min_length=1)]


def require_verifier(kinds: Sequence[ProblemKind], verifier: str | None) -> None:
    """Check that problems with several right answers are not graded by the one that they have."""
    for kind in kinds:
        lacks, name = verifier is None and kind.family in ("program", "countdown"), kind.family
        refuse(lacks, f"lacks verifier, which problems of family {name} need (config/verifiers/{name}.py)")


Verifier = Annotated[
    Text | None,
    Field(
        description="a Python file that grades or gives the rewards (docs/your_verifier.md); a study's comes before a "
        "training set's"
    ),
]


class SelectedRows(Settings):
    """The rows of a source that a set consists of, by the value of one column."""

    column: Text = setting("the column")
    among: Annotated[tuple[Text, ...], Field(min_length=1), *UNIQUE] | None = setting("the values that are taken", None)
    first: Text | None = setting("the first value that is taken, such as a date, 2024-08-01", None)
    last: Text | None = setting("the last value that is taken, compared as text", None)
    tenths: Annotated[tuple[Annotated[int, Field(ge=0, le=9)], ...], Field(min_length=1), *UNIQUE] | None = setting(
        "tenths of the rows, by a hash of the letters of the value", None
    )
    drawn: Count | None = setting("so many of the rows, those of the smallest SHA-256 of the value", None)

    def check_whole(self) -> None:
        ways = [self.among, self.first if self.last is None else self.last, self.tenths, self.drawn]
        accepted = "with among, with tenths, with drawn, or with first, last or both"
        refuse(ways.count(None) != 3, f"selects column {self.column}", accepted)

    def select(self, rows: Iterable[dict[str, Any]], where: str) -> Iterator[dict[str, Any]]:
        """Yield the rows that belong to the set, in their order; ``where`` names the source in messages."""
        if self.drawn is None:
            yield from (row for row in rows if self._takes(row[self.column], where))
            return
        hashed = ((sha256_bytes(str(row[self.column]).encode("utf-8")), number, row) for number, row in enumerate(rows))
        drawn = heapq.nsmallest(self.drawn, hashed, key=itemgetter(0, 1))
        yield from (row for _, _, row in sorted(drawn, key=itemgetter(1)))

    def _takes(self, value: Any, where: str) -> bool:
        text = str(value)
        if self.among is not None:
            return text in self.among
        if self.tenths is not None:
            letters = "".join(filter(str.isalpha, text.casefold()))
            if not letters:
                accepted = "values with letters, which rows.tenths needs"
                raise InvalidInput(where, f"column {self.column}", "has a value without letters", accepted)
            return int(sha256_bytes(letters.encode("utf-8")), 16) % 10 in self.tenths
        return (self.first is None or text >= self.first) and (self.last is None or text[: len(self.last)] <= self.last)


class SourceTable(Record):
    """The table that problems are read from; the values of a study's benchmark or training set."""

    name: Text  # of the benchmark or training set, for messages and ids
    repository: Repository | None = None  # of the Hugging Face Hub; None where there is only a file
    revision: Commit | None = None  # a commit on the Hub; None is its newest
    configuration: Text | None = None
    split: Text = "train"
    files: tuple[str, ...] = ()
    path: Text | None = None  # a file, or a directory with a copy of the repository, to read instead of the Hub
    rows: SelectedRows | None = None  # those that are taken; None takes all


class PublishedSet(Settings):
    """A published training set (docs/benchmarks.md)."""

    source: Name = setting("name of a file in config/datasets")
    path: Text | None = setting("a local copy: a JSON lines file or a directory", None)
    exclude: Annotated[tuple[str, ...], *UNIQUE] | None = setting("ids of problems to leave out", None)


class Prompts(Settings):
    """A prompt for either kind of model."""

    base: Prompt = setting("for a model that continues text")
    chat: Prompt = setting("the user's turn for a model with a chat template")


AnyPrompt = Annotated[
    Annotated[Prompt, Tag("text")] | Annotated[Prompts, Tag("Prompts")],
    Discriminator(lambda content: "text" if isinstance(content, str) else "Prompts"),
]


class Columns(Settings):
    """The columns of a benchmark's source; a dot leads into a nested column."""

    id: str | None = setting("the problem's id; null takes a hash of its text")
    problem: str = setting("the problem's text")
    answer: str | None = setting("the reference answer; null where options or tests decide")
    options: str | Annotated[tuple[str, ...], Field(min_length=2, max_length=10)] | None = setting(
        "options of multiple choice: one column with a list, or several, the right one first", None
    )
    tests: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = setting(
        "the tests of a program, with grader code", None
    )
    entry_point: str | None = setting("the name of the function to write, with grader code", None)
    examples: str | None = setting("tests that the prompt shows, with grader code", None)
    topic: str | None = setting("the problem's topic, a cluster in intervals and tests", None)
    starter: str | None = setting("the beginning of the program, with grader code", None)
    metadata: str | None = setting("further data of the tests, with grader code", None)


ReleaseName = Literal["gsm8k", "gsm8k_steps", "svamp", "olympiadbench", "mawps"]
"""The public releases whose files are read as they are (``evals.problems.releases``)."""
_AS_RELEASED = "columns of the source, or the name of the release whose rows it has (docs/benchmarks.md)"


class Exclusion(Settings):
    """A problem that is left out."""

    id: str | int = setting("the problem")
    answer: str = setting("the answer that is wrong")
    reason: Text = setting("why it is wrong")


class _Benchmark(Settings):
    """The keys of every benchmark."""

    title: Title = setting("the name in tables and figures")
    description: str | None = setting("for people", None)
    licence: str = setting("licence of the problems")
    count: Several = setting("number of problems of the source")
    prompt: AnyPrompt = setting("text with {problem} in it once, or one each for base and chat models")
    verifier: Verifier = None
    extraction: Literal["marked", "last_statement"] = setting(
        "what counts as the answer: what is marked; or else what the last sentence with a number or formula states "
        "(docs/grading.md)",
        "marked",
    )
    max_new_tokens: Count = setting("longest response in tokens by `rlvr-bench eval`", 4096)

    def check_whole(self) -> None:
        super().check_whole()
        grader = "a verifier" if self.verifier is not None else f"grader {getattr(self, 'grader', 'math')}"
        is_other, found = (
            self.extraction != "marked" and grader != "grader math",
            f"is {self.extraction!r} beside {grader}",
        )
        refuse(is_other, found, "marked, or grader math", "extraction")


class GeneratedBenchmark(_Benchmark, ProblemKind):
    """A benchmark that is drawn from a seed."""

    source: Literal["generated"] = setting("drawn from the seed")
    seed: Index = setting("decides which problems are drawn")

    def check_whole(self) -> None:
        super().check_whole()
        require_verifier([self], self.verifier)

    @property
    def kind(self) -> dict[str, Any]:
        return {"family": self.family, "operands": self.operands}


class _Reading(Settings):
    """The keys that decide how the rows of a source become problems, wherever it is."""

    count: Several = setting("number of problems of the source")
    sha256: Sha256 | None = setting("SHA-256 of the resulting problems.jsonl; null if unknown")
    gated: bool = setting("whether the texts may be written nowhere")
    grader: Literal["math", "choice", "code"] = setting("how responses are graded (docs/grading.md)")
    tests_format: Literal["evalplus", "livecodebench", "own"] | None = setting(
        "form of the tests; required with grader code", None
    )
    boxed_answer: bool | None = setting("whether the answer is the last box of its column", None)
    repairs: Annotated[tuple[Literal["dollars", "integer", "e_notation", "python"], ...], *UNIQUE] | None = setting(
        "repairs of the form of the reference answers", None
    )
    option_seed: Index | None = setting("decides the order of the options; required with grader choice", None)
    exclude: tuple[Exclusion, ...] | None = setting("problems that are left out", None)

    def check_whole(self) -> None:
        super().check_whole()
        found = f"is {self.grader!r} of a gated benchmark"
        refuse(self.gated and self.grader != "choice", found, "choice", "grader")
        for grader, key in (("choice", "option_seed"), ("code", "tests_format")):
            lacks = self.grader == grader and getattr(self, key) is None
            refuse(lacks, f"lacks {key}, which grader {grader} needs")


class BenchmarkProblems(_Reading, SourceTable):
    """Everything that decides a benchmark's problems."""

    count: Several | None = None  # type: ignore[assignment]
    sha256: Sha256 | None = None
    gated: bool = False
    columns: Columns | ReleaseName | None = None


class ReadBenchmark(_Reading, _Benchmark):
    """The keys of every benchmark that is read from the Hugging Face Hub or from a file."""

    samples_per_problem: Count = setting("usual k for a set of this size, for readers")

    def check_whole(self) -> None:
        super().check_whole()
        is_other = self.verifier is not None and self.grader != "math"
        refuse(is_other, f"is given beside grader {self.grader}", "none, or grader math", "verifier")


class HubBenchmark(ReadBenchmark):
    """A benchmark of the Hugging Face Hub."""

    source: Literal["hub"] = setting("read from the Hugging Face Hub, or from the study's local copy")
    repository: Repository = setting("repository on the Hub")
    revision: Commit | None = setting("a commit; null takes the newest")
    configuration: Text | None = setting("the repository's configuration", None)
    split: Text = setting("the repository's split")
    files: Annotated[tuple[_JsonLines, ...], Field(min_length=1)] | None = setting(
        "JSON lines files in place of a split", None
    )
    rows: SelectedRows | None = setting("the rows that are taken; default all", None)
    columns: Columns | ReleaseName = setting(_AS_RELEASED)


class FileBenchmark(ReadBenchmark):
    """A benchmark of a file: JSON lines, JSON, CSV, TSV or Parquet, or a file of a release."""

    source: Literal["path"] = setting("read from a file")
    licence: str = setting("licence of the problems", "not said")
    count: Several | None = setting(  # type: ignore[assignment]
        "number of problems of the file; null for any", None
    )
    sha256: Sha256 | None = setting("SHA-256 of the resulting problems.jsonl; null for any", None)
    gated: bool = setting("whether the texts may be written nowhere", False)
    samples_per_problem: Count = setting("usual k for a set of this size, for readers", 4)
    path: Text = setting("the file, relative to the repository (docs/benchmarks.md)")
    rows: SelectedRows | None = setting("the rows of a release's file that are taken; default all", None)
    columns: Columns | ReleaseName | None = setting(_AS_RELEASED, None)

    def check_whole(self) -> None:
        super().check_whole()
        found, accepted = "selects rows of a file in the project's form", "rows with the columns of a release"
        refuse(self.rows is not None and not isinstance(self.columns, str), found, accepted, "rows")


Benchmark = GeneratedBenchmark | HubBenchmark | FileBenchmark


def parse_benchmark(content: Any, source: str) -> Benchmark:
    """Read the content of a benchmark's file."""
    kinds: dict[str, type[Benchmark]] = {GENERATED: GeneratedBenchmark, "hub": HubBenchmark, "path": FileBenchmark}
    given = content if isinstance(content, dict) else {"source": GENERATED}  # each refuses what is no mapping
    if given.get("source") not in [*kinds]:
        key, found = ("source", f"is {given['source']!r}") if "source" in given else ("", "lacks source")
        raise InvalidInput(source, key, found, ", ".join(kinds))
    return kinds[given["source"]].parse(content, source)


class TrainingColumns(Settings):
    """The columns of a training set's source; a dot leads into a nested column."""

    id: str | None = setting("the row's id; null takes a hash of the problem's text")
    problem: str = setting("the problem's text")
    answer: str = setting("the reference answer")


class Counts(Settings):
    """The numbers of rows that remain after each step of reading; null where a number is not known."""

    rows: Count | None = setting("rows of the source, without those that a release leaves out")
    distinct_rows: Count | None = setting("different rows")
    distinct_texts: Count | None = setting("different texts")
    distinct_problems: Count | None = setting("different problems, without prefix and suffix")
    kept: Count | None = setting("problems without those of several answers")


class _TrainingReading(Settings):
    """The keys that decide how the rows of a published set become training problems."""

    columns: TrainingColumns | ReleaseName = setting(_AS_RELEASED)
    prefix: str = setting("text before every problem, which the study's prompt replaces")
    suffix: str = setting("text after every problem, which is taken off")
    counts: Counts = setting("what reading has to find")
    conflicts: tuple[Annotated[tuple[str, ...], Field(min_length=2)], ...] | None = setting(
        "ids of rows with one problem and several answers, which are left out; null if unknown"
    )
    sha256: Sha256 | None = setting("SHA-256 of the resulting problems.jsonl; null if unknown")


class _PublishedSet(Settings):
    """A published set of training problems: its name, and its place on the Hub."""

    title: Title = setting("the name for people")
    description: str | None = setting("for people", None)
    repository: Repository | None = setting("OWNER/NAME on the Hugging Face Hub; without it, local files alone", None)
    revision: Commit | None = setting("a commit", None)
    configuration: Text | None = setting("the repository's configuration", None)
    split: Text | None = setting("the repository's split", None)
    rows: SelectedRows | None = setting("the rows that are taken; without it all", None)

    def check_whole(self) -> None:
        super().check_whole()
        given = [key for key in ("repository", "revision", "split") if getattr(self, key) is not None]
        refuse(0 < len(given) < 3, f"has {', '.join(given)} alone", "repository, revision and split, or none")


class TrainingSet(_TrainingReading, _PublishedSet):
    """A published training set."""

    licence: str = setting("licence of the problems")
    verifier: Verifier = None


class TrainingProblems(_TrainingReading, SourceTable):
    """Everything that decides the problems of a published set.

    ``exclude`` lists ids of problems that the study leaves out.
    """

    exclude: tuple[str, ...] = ()
