"""The table that problems are read from, and which of its rows are taken."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from evals.core.config.settings import (
    UNIQUE,
    Commit,
    Omittable,
    Repository,
    Settings,
    Text,
    optional,
)
from evals.core.errors import InvalidInput, NotAccepted
from evals.core.files import sha256_bytes
from evals.core.record import Record


class SelectedRows(Settings):
    """The rows of a source that a set consists of, by the value of one column."""

    column: Text = Field(description="the column")
    among: Omittable[Annotated[tuple[Text, ...], Field(min_length=1), *UNIQUE]] = optional("the values that are taken")
    first: Omittable[Text] = optional("the first value that is taken, such as a date, 2024-08-01")
    last: Omittable[Text] = optional("the last value that is taken; values are compared as text of this length")
    tenths: Omittable[Annotated[tuple[Annotated[int, Field(ge=0, le=9)], ...], Field(min_length=1), *UNIQUE]] = (
        optional(
            "tenths of the rows, 0 to 9: a row is in one by a hash of the letters of its value, without regard to case"
        )
    )

    @model_validator(mode="after")
    def _check_condition(self) -> Self:
        is_range = self.first is not None or self.last is not None
        if (self.among is not None) + is_range + (self.tenths is not None) != 1:
            raise NotAccepted(f"selects column {self.column}", "with among, with tenths, or with first, last or both")
        return self

    def take(self, value: Any, where: str) -> bool:
        """Say whether a row with this value belongs to the set; ``where`` names the source in messages."""
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
    """The table that problems are read from; the values of a study's benchmark or training set.

    Attributes:
        name: of the benchmark or training set, for messages and ids.
        repository: of the Hugging Face Hub; None where there is only a file.
        revision: a commit on the Hub; None is its newest.
        path: a file, or a directory with a copy of the repository, to read instead of the Hub.
        rows: those that are taken; None takes all.
    """

    name: Text
    repository: Repository | None = None
    revision: Commit | None = None
    configuration: Text | None = None
    split: Text = "train"
    files: tuple[str, ...] = ()
    path: Text | None = None
    rows: SelectedRows | None = None
