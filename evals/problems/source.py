"""The rows of a problem set: of the Hugging Face Hub at a pinned revision, of a local copy of that, or of a file.

Nothing of a source is ever run: no loading script, no pickle. Hub and local copy go through the same code.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evals.core.config.problem_sets import ReleaseName, SourceTable
from evals.core.errors import InvalidInput, UserError, first_line
from evals.core.files import read_json, read_jsonl, read_parquet, reading, sha256_file

TOKEN_VARIABLE = "HF_TOKEN"
_UPSTREAM_ID = "source_id"
"""A local file's key for the id that a problem has upstream; without it ``id`` is the problem's id."""
_LONGEST_CAUSE = 200
_ROWS_AT_A_TIME = 1000


class Source:
    """One table of rows; of a gated one, the Hub asks for a token, and no message may quote a row."""

    def __init__(self, table: SourceTable, gated: bool = False) -> None:
        self._at = table
        self._gated = gated
        self.path = Path(table.path) if table.path else None
        self.where = f"{table.name}: {self.path or table.repository}"

    @property
    def is_file(self) -> bool:
        """Return whether the rows are those of one local file, in the project's own format or a release's."""
        return self.path is not None and not self.path.is_dir()

    @property
    def inputs(self) -> dict[str, str]:
        """Path and hash of the local file that is read, if it is one."""
        return {str(self.path): sha256_file(self.path)} if self.is_file and self.path is not None else {}

    def read(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """The set's rows, with at least the named columns; a local file in the project's form has these alone."""
        if self.path is None or not self.is_file:
            return list(self.scan(columns))
        return [{**row, "id": row.get(_UPSTREAM_ID, row.get("id"))} for row in _read_file(self.path, columns)]

    def has(self, columns: Sequence[str]) -> bool:
        """Return whether the first row of the local file has some columns."""
        assert self.path is not None
        return set(columns) <= set(next(iter(_read_file(self.path)), {}))

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The set's rows one by one, a local file's with the repository's own columns: for millions of rows."""
        selected = self._at.rows
        if selected is None:
            yield from self._scan(columns)
        else:
            needed = list(dict.fromkeys([*columns, selected.column]))
            yield from selected.select(self._scan(needed), self.where)

    def _scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        if self.path is not None and self.is_file:
            yield from _read_file(self.path, columns)
        else:
            for batch in self._table(columns).iter(batch_size=_ROWS_AT_A_TIME):
                for values in zip(*batch.values(), strict=True):
                    yield dict(zip(batch, values, strict=True))

    def read_release(self, name: ReleaseName) -> list[dict[str, Any]]:
        """All rows of a public release, in the project's form."""
        from evals.problems.releases import RELEASES

        release = RELEASES[name]
        return release.rows(list(self.scan(release.columns)), self.where)

    def _table(self, columns: Sequence[str]) -> Any:
        at = self._at
        if at.repository is None:
            raise InvalidInput(at.name, "path", f"{self.path} is a directory", "a file")
        import datasets  # takes a second to import, which planning a study must not cost

        datasets.disable_progress_bars()
        token = os.environ.get(TOKEN_VARIABLE) or False  # False: never the token that somebody's login left on disk
        base = f"hf://datasets/{at.repository}@{at.revision or 'main'}" if self.path is None else str(self.path)
        try:
            if at.files:
                files = {at.split: [f"{base}/{file}" for file in at.files]}
                table = datasets.load_dataset("json", data_files=files, split=at.split, token=token)
            else:
                path, revision = (at.repository, at.revision) if self.path is None else (str(self.path), None)
                table = datasets.load_dataset(path, at.configuration, split=at.split, revision=revision, token=token)
        except Exception as error:  # the library, its builders and its HTTP client raise dozens of kinds
            raise UserError(self._unreadable(error)) from None
        if missing := [column for column in columns if column not in table.column_names]:
            complaint = f"lacks column {', '.join(missing)}; has: {', '.join(sorted(table.column_names))}"
            raise InvalidInput(self.where, "", complaint)
        return table.select_columns(list(columns))

    def _unreadable(self, error: Exception) -> str:
        """One line: what cannot be read, from where, why, and what to do instead."""
        cause = type(error).__name__
        if not self._gated and str(error).strip():  # a reader's complaint may quote the row that it stumbled over
            told, token = first_line(error), os.environ.get(TOKEN_VARIABLE)
            cause = f"{cause}: {(told.replace(token, '***') if token else told)[:_LONGEST_CAUSE]}"
        if self.path is not None:
            return f"{self.where}: cannot be read as a copy of {self._at.repository} ({cause})"
        terms = f"accept its terms on the Hub and set {TOKEN_VARIABLE}, or " if self._gated else ""
        return (
            f"{self.where}: cannot be read from the Hugging Face Hub ({cause}); {terms}name a local copy in the "
            f"study: benchmark_sources: {{{self._at.name}: {{path: FILE_OR_DIRECTORY}}}} (docs/benchmarks.md)"
        )


_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_FORMS = (".jsonl", ".json", *_SEPARATORS, ".parquet")


def _read_file(path: Path, columns: Sequence[str] = ()) -> Sequence[dict[str, Any]]:
    """The rows of a file: JSON lines, one JSON array (``.json``), a table with commas or tabs, or Parquet."""
    suffix = path.suffix.lower()
    if suffix not in _FORMS and path.exists():
        raise InvalidInput(str(path), "", f"ends in {suffix or 'no suffix'}", ", ".join(_FORMS))
    if suffix == ".jsonl" or not path.exists():
        return read_jsonl(path, required=columns)
    if suffix == ".json":
        rows = read_json(path)
    elif suffix == ".parquet":
        import pyarrow as pa  # not for everyone who plans a study

        rows = pa.Table.from_pandas(read_parquet(path), preserve_index=False).to_pylist()
    else:
        with reading(path), open(path, encoding="utf-8-sig", newline="") as handle:
            rows = list(csv.DictReader(handle, delimiter=_SEPARATORS[suffix]))
    if not isinstance(rows, list):
        raise InvalidInput(str(path), "", "is no array", "one JSON array of objects")
    for number, row in enumerate(rows, start=1):
        if missing := [column for column in columns if not isinstance(row, dict) or row.get(column) is None]:
            has = f"; has: {', '.join(map(str, row))}" if isinstance(row, dict) else ""
            raise InvalidInput(f"{path}: row {number}", "", f"lacks {', '.join(missing)}{has}")
    return rows
