"""The table that problems are read from, and which of its rows are taken."""

import heapq
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Annotated, Any

from pydantic import Field

from evals.core.errors import InvalidInput, refuse
from evals.core.files import sha256_bytes
from evals.core.numbers import Count
from evals.core.record import Record, Settings, setting
from evals.core.values import UNIQUE, Commit, Repository, Text


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
