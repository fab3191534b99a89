"""The finished samples of one plan, on the disk as soon as they are there."""

from __future__ import annotations

import json
import os
import resource
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from evals.core import arithmetic
from evals.core.errors import UserError
from evals.core.files import canonical_json, sha256_bytes
from evals.core.records import Sample

Key = tuple[str | int, int]
"""The id of a problem, and the number of a sample."""

_LINES_IN_MEMORY = 4


class _Place(NamedTuple):
    """The place of one finished sample."""

    path: Path
    line: int  # offset of the line in the file, in bytes
    row: int  # in that line


class FinishedSamples:
    """The finished samples of one plan, in an append-only file that survives a kill at any moment.

    A line has the samples that were finished together, compressed: a finished file is there for a larger k alone. The
    texts stay on the disk: in memory is only where they are.
    The file lies in a directory named by the plan's fingerprint that Snakemake does not know of, so that earlier
    samples outlive a job, a larger k and a deleted output. Each line has that name too: one without it, or with
    another, as of a file that was copied here, is refused.

    Attributes:
        seconds: what the samples took, in all processes that made them.
        peak_memory_bytes: the largest resident set of these processes.
        threads: what these processes kept to.
    """

    def __init__(self, directory: Path) -> None:
        self._path = path = directory / "samples.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        self.seconds, self.peak_memory_bytes = 0.0, 0
        self.threads = set[int]()
        self._places: dict[Key, _Place] = {}
        self._line_at = lru_cache(_LINES_IN_MEMORY)(_read_line)
        if not path.exists():
            return
        whole = 0
        for start, end, line in _read_lines(path):
            if line.get("plan") != directory.name:
                raise UserError(f"{path}: has samples of another plan; delete the file to sample its problems again")
            self._enter(path, start, [Sample.parse(row, str(path)) for row in json.loads(_text_of(line))])
            self._count(line)
            whole = end
        if whole < path.stat().st_size:
            os.truncate(path, whole)  # a kill in the middle of a line: its samples are made again

    def _enter(self, path: Path, line: int, samples: Sequence[Sample]) -> None:
        for row, sample in enumerate(samples):
            self._places[sample.problem_id, sample.sample] = _Place(path, line, row)

    def _count(self, line: Mapping[str, Any]) -> None:
        self.seconds += line["seconds"]
        self.peak_memory_bytes = max(self.peak_memory_bytes, line["peak_memory_bytes"])
        self.threads.add(line["threads"])

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __getitem__(self, key: Key) -> Sample:
        location = self._places[key]
        return Sample.parse(self._line_at(location.path, location.line)[location.row], str(location.path))

    def append(self, samples: Sequence[Sample], seconds: float) -> None:
        """Add samples that finished together and took so many seconds, on the disk when this returns."""
        text = canonical_json([sample.to_json() for sample in samples]).encode("utf-8")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        packed = b64encode(zlib.compress(text)).decode("ascii")
        line = {"packed": packed, "sha256": sha256_bytes(text), "seconds": round(seconds, 6), "peak_memory_bytes": peak}
        line["plan"] = self._path.parent.name
        line["threads"] = arithmetic.describe().get("threads", 0)
        try:
            with open(self._path, "ab") as file:
                start = file.tell()
                file.write(f"{canonical_json(line)}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        self._enter(self._path, start, samples)
        self._count(line)


def _read_line(path: Path, start: int) -> Sequence[Mapping[str, Any]]:
    with open(path, "rb") as file:
        file.seek(start)
        rows: Sequence[Mapping[str, Any]] = json.loads(_text_of(json.loads(file.readline())))
        return rows


def _text_of(line: Mapping[str, Any]) -> bytes:
    """The samples of a line as JSON; lines of an earlier version have them uncompressed."""
    if "rows" in line:
        return canonical_json(line["rows"]).encode("utf-8")
    return zlib.decompress(b64decode(line["packed"]))


def _read_lines(path: Path) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Read each line of a file with the places of its start and end; an unfinished last line is left out."""
    start = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                content = json.loads(line)
                intact = content["sha256"] == sha256_bytes(_text_of(content))
            except (ValueError, KeyError, TypeError, zlib.error):
                intact = False
            if not intact:
                raise UserError(f"{path}: line {number} is damaged; delete the file to sample its problems again")
            yield start, start + len(line), content
            start += len(line)
