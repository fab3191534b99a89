"""Samples as they are finished: an append-only file, one line a batch, that survives a kill at any moment.

It lies in a directory per fingerprint that Snakemake does not know of, so earlier samples outlive a job, a larger k and
a deleted output.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import canonical_json, sha256_bytes

Row = Mapping[str, Any]


class PartialSamples:
    """Finished samples of one fingerprint; this process appends to the file of its own part.

    Args:
        directory: of the fingerprint.
        part: name of this job's file.
    """

    def __init__(self, directory: Path, part: str) -> None:
        self._path = directory / f"{part}.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        self.rows: dict[tuple[str, int], Row] = {}
        for path in sorted(directory.glob("*.jsonl")):
            end = 0
            for batch, batch_end in _read_batches(path):
                end = batch_end
                for row in batch:
                    self.rows[row["problem_id"], row["sample"]] = row
            if path == self._path and end < path.stat().st_size:
                os.truncate(path, end)  # a kill in the middle of a line: that batch is made again, whole

    def append(self, rows: Sequence[Row]) -> None:
        """Add one finished batch, on the disk when this returns.

        Raises:
            UserError: the disk is full or not writable.
        """
        line = canonical_json({"rows": rows, "sha256": sha256_bytes(canonical_json(rows).encode("utf-8"))}) + "\n"
        try:
            with open(self._path, "ab") as file:
                file.write(line.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        for row in rows:
            self.rows[row["problem_id"], row["sample"]] = row


def _read_batches(path: Path) -> Iterator[tuple[Sequence[Row], int]]:
    """The batches of a file and where each ends in it; an unfinished last line is left out.

    Raises:
        UserError: a finished line does not have the bytes that it was written with.
    """
    end = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                batch = json.loads(line)
                intact = batch["sha256"] == sha256_bytes(canonical_json(batch["rows"]).encode("utf-8"))
            except (ValueError, KeyError, TypeError):
                intact = False
            if not intact:
                raise UserError(f"{path}: line {number} is damaged; delete the file to sample its problems again")
            end += len(line)
            yield batch["rows"], end
