"""Options by their names: what each is, wherever a command has one of that name; and groups of options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from evals.core.errors import UserError

if TYPE_CHECKING:
    from evals.scores.loose_files import Reader
    from evals.scores.printed import Format

Paths = list[Path]
Words = list[str]
RunFile = Annotated[Path, Argument(help="run.json, the resolved run")]


@dataclass(frozen=True)
class Grading:
    """The options of commands that grade samples.

    Attributes:
        kind: how samples are read; default: choice if the problems have options, else completion; last_statement: where
            a completion marks no answer, what its last sentence with a number states.
        workers: grading processes; default: up to 4.
        score: of other tools' logs, the score that says what is correct, such as exact_match,strict-match.
        correct_from: take that score as correct from this value on; default: 0 and 1 alone are accepted.
        regrade: grade the texts of other tools' logs with our grader, against the answers in the log.
        require_all: refuse files in which a problem has no response; default: a warning.
        columns: read any CSV, JSONL or parquet, such as problem=id,correct=is_right; also text, gold, answer, tokens.
    """

    kind: Literal["completion", "last_statement", "answer", "choice"] | None = None
    workers: int = min(4, len(os.sched_getaffinity(0)))
    score: str | None = None
    correct_from: float | None = None
    regrade: bool = False
    require_all: bool = False
    columns: str | None = None

    def reader(self, problems: Sequence[Path]) -> Reader:
        """The reader of grades and samples, with the problems that were given."""
        from evals.grading.verdict import Kind
        from evals.logs.formats import read_columns
        from evals.logs.response import Judging
        from evals.scores.loose_files import Reader

        kind = None if self.kind is None else Kind(self.kind)
        judging = Judging(self.score, self.correct_from, self.regrade)
        return Reader(problems, kind, self.workers, judging, read_columns(self.columns), self.require_all)


@dataclass(frozen=True)
class Printed:
    """The options of printed results."""

    json: Annotated[bool, Option("--json", help="print JSON, numbers in full precision")] = False
    csv: Annotated[bool, Option("--csv", help="print CSV, numbers in full precision")] = False

    @property
    def form(self) -> Format:
        """The one form that was asked for."""
        if self.json and self.csv:
            raise UserError("--json, --csv: are both given; accepted: one of them")
        return "json" if self.json else "csv" if self.csv else "table"


HELP = {
    "confidence": "confidence level of the intervals",
    "memory_limit": "memory limit of a worker in MiB",
    "out": "file or directory to write; for a table or figure, without the ending",
    "permutations": "number of random sign flips",
    "resamples": "number of bootstrap replicates",
    "seed": "random seed",
    "time_limit": "time limit of a comparison in seconds",
    "weighting": "what counts the same in the mean over benchmarks: benchmarks, problems, or weights NAME=WEIGHT,...",
    "workers": "number of worker processes; default: one per available core",
}
"""Option -> its help, in every command that does not say otherwise."""
