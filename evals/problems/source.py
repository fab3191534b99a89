"""Where a problem set's rows come from: the Hugging Face Hub at a pinned revision, a local copy of that, or a file.

Nothing of a source is ever run: no loading script, no pickle. Hub and local copy go through the same code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import read_jsonl

TOKEN_VARIABLE = "HF_TOKEN"
_UPSTREAM_ID = "source_id"
"""A local file's key for the id that a problem has upstream; without it ``id`` is the problem's id."""
_LONGEST_CAUSE = 200
_ROWS_AT_A_TIME = 1000


@dataclass(frozen=True)
class Source:
    """One table of rows.

    Attributes:
        name: of the benchmark or data set, for messages.
        repository: id of a data set on the Hub; None where there is only a file.
        revision: commit on the Hub; None is its newest.
        configuration: of the data set; None for its default.
        split: of the data set.
        files: JSON lines files of the repository to read instead of what its card names; for repositories whose only
            other reader is a script.
        path: a JSON lines file, or a directory with a copy of the repository, to read instead of the Hub.
        gated: the Hub asks for a token, and no message may quote a row.
    """

    name: str
    repository: str | None
    revision: str | None
    configuration: str | None
    split: str
    files: tuple[str, ...]
    path: Path | None
    gated: bool

    @property
    def is_file(self) -> bool:
        """Whether the rows are those of one local file, in the project's own format (docs/benchmarks.md)."""
        return self.path is not None and not self.path.is_dir()

    def read(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """All rows, with at least the named columns.

        Raises:
            UserError: the source cannot be read, or lacks a column.
        """
        if self.is_file:
            assert self.path is not None
            rows = read_jsonl(self.path, required=columns)
            return [{**row, "id": row.get(_UPSTREAM_ID, row.get("id"))} for row in rows]
        table: list[dict[str, Any]] = self._table(columns).to_list()
        return table

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """All rows one by one, a local file's with the repository's own columns: for millions of rows.

        Raises:
            UserError: the source cannot be read, or lacks a column.
        """
        if self.is_file:
            assert self.path is not None
            yield from read_jsonl(self.path, required=columns)
        else:
            for batch in self._table(columns).iter(batch_size=_ROWS_AT_A_TIME):
                for values in zip(*batch.values(), strict=True):
                    yield dict(zip(batch, values, strict=True))

    def _table(self, columns: Sequence[str]) -> Any:
        """The data set with the columns."""
        if self.repository is None:
            raise UserError(f"{self.name}: path: {self.path} is a directory; accepted: a JSON lines file")
        import datasets  # takes a second to import, which planning a study must not cost

        datasets.disable_progress_bars()
        token = os.environ.get(TOKEN_VARIABLE) or False  # False: never the token that somebody's login left on disk
        try:
            if self.files:
                files = {self.split: [f"{self._base}/{file}" for file in self.files]}
                table = datasets.load_dataset("json", data_files=files, split=self.split, token=token)
            else:
                where = self.repository if self.path is None else str(self.path)
                revision = self.revision if self.path is None else None
                table = datasets.load_dataset(
                    where, self.configuration, split=self.split, revision=revision, token=token
                )
        except Exception as error:  # the library, its builders and its HTTP client raise dozens of kinds
            raise UserError(self._unreadable(error)) from None
        missing = [column for column in columns if column not in table.column_names]
        if missing:
            raise UserError(
                f"{self._where}: lacks column {', '.join(missing)}; has: {', '.join(sorted(table.column_names))}"
            )
        return table.select_columns(list(columns))

    @property
    def _base(self) -> str:
        if self.path is not None:
            return str(self.path)
        return f"hf://datasets/{self.repository}@{self.revision or 'main'}"

    @property
    def _where(self) -> str:
        return f"{self.name}: {self.repository if self.path is None else self.path}"

    def _unreadable(self, error: Exception) -> str:
        """One line: what, from where, why, and what to do instead."""
        cause = type(error).__name__
        if not self.gated:  # a reader's complaint may quote the row that it stumbled over
            first_line = next(iter(str(error).strip().splitlines()), "")
            cause = f"{cause}: {_without_token(first_line)[:_LONGEST_CAUSE]}" if first_line else cause
        if self.path is not None:
            return f"{self._where}: cannot be read as a copy of {self.repository} ({cause})"
        terms = f"accept its terms on the Hub and set {TOKEN_VARIABLE}, or " if self.gated else ""
        return (
            f"{self._where}: cannot be read from the Hugging Face Hub ({cause}); {terms}name a local copy in the "
            f"study: benchmark_sources: {{{self.name}: {{path: FILE_OR_DIRECTORY}}}} (docs/benchmarks.md)"
        )


def _without_token(text: str) -> str:
    token = os.environ.get(TOKEN_VARIABLE)
    return text.replace(token, "***") if token else text


def source_of(settings: Mapping[str, Any]) -> Source:
    """The source that a benchmark's or data set's settings name."""
    path = settings.get("path")
    return Source(
        name=settings["name"],
        repository=settings.get("repository"),
        revision=settings.get("revision"),
        configuration=settings.get("configuration"),
        split=settings.get("split", "train"),
        files=tuple(settings.get("files", ())),
        path=Path(path) if path else None,
        gated=settings.get("gated", False),
    )
