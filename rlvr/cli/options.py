"""Options that several commands have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from evals.core.errors import UserError

if TYPE_CHECKING:
    from evals.results import Results as StudyResults
    from evals.scores.loose_files import Reader
    from evals.scores.printed import Format

Paths = list[Path]
Device = Annotated[Literal["cpu", "cuda"], Option(help="that it runs on")]
Threads = Annotated[int, Option(help="that torch keeps to")]
LockWait = Annotated[float, Option(help="patience with another writer of this directory")]
Sheet = Annotated[Path, Option(help="list of run, model, method, seed, title")]
Scores = Annotated[Paths, Option(help="results/scores/*.json")]
Comparisons = Annotated[Path, Option(help="results/comparisons.json")]
Audits = Annotated[Paths, Option(help="results/audits/*.json")]
Reference = Annotated[Path, Option(help="config/reference, for what papers report")]
Notes = Annotated[list[str], Option(help="sentences on what the numbers are evidence of")]
Stem = Annotated[Path, Option(help="path without its ending")]
Directory = Annotated[Path, Option(help="directory that is written")]
File = Annotated[Path, Option(help="file that is written")]
RunFile = Annotated[Path, Argument(help="run.json, the resolved run")]
KindOfSample = Literal["completion", "answer", "choice"]


def default_workers() -> int:
    """Grading processes: one per core that this process may use, four at most."""
    return min(4, len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Results:
    """The files that most tables and figures are made from."""

    scores: Scores
    comparisons: Comparisons
    runs: Sheet

    def read(self) -> StudyResults:
        """Read and check them."""
        from evals.results import read_results

        return read_results(self.runs, self.scores, self.comparisons)


@dataclass(frozen=True)
class Grading:
    """The options of commands that grade samples.

    Attributes:
        kind: how samples are read; default: choice if the problems have options, else completion.
        workers: grading processes; default: up to 4.
    """

    kind: KindOfSample | None = None
    workers: int = field(default_factory=default_workers)

    def reader(self, problems: Sequence[Path]) -> Reader:
        """The reader of grades and samples, with the problems that were given."""
        from evals.grading.verdict import Kind
        from evals.scores.loose_files import Reader

        return Reader(problems, None if self.kind is None else Kind(self.kind), self.workers)


@dataclass(frozen=True)
class Printed:
    """The options of printed results."""

    json: Annotated[bool, Option("--json", help="print JSON, numbers in full precision")] = False
    csv: Annotated[bool, Option("--csv", help="print CSV, numbers in full precision")] = False

    @property
    def form(self) -> Format:
        """The one form that was asked for.

        Raises:
            UserError: two were.
        """
        if self.json and self.csv:
            raise UserError("--json, --csv: are both given; accepted: one of them")
        return "json" if self.json else "csv" if self.csv else "table"
