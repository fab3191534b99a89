"""A check that the files of a manifest are there as they were written: by size and time, or byte by byte."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file, write_json
from evals.core.manifest import Manifest, is_sealed

_SECONDS_BETWEEN_LINES = 5.0


@dataclass
class Comparison:
    """The comparison of files with their manifests; hashes are kept in the file ``cache`` for the next one.

    A manifest is written after its files. So a file is read only if it is newer than its manifest, as after a change or
    in a copy without times, or if ``every_byte`` is asked for.
    """

    every_byte: bool = False
    cache: Path | None = None
    bytes_read: int = 0
    _known: dict[str, list[object]] = field(default_factory=dict)  # path -> its state on the disk, and SHA-256
    _said: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        with contextlib.suppress(UserError):
            known = read_json(self.cache) if self.cache else {}
            self._known = known if isinstance(known, dict) else {}

    def faults(self, path: Path, manifest: Manifest) -> Iterator[str]:
        """Describe what is wrong with a manifest at ``path`` and its outputs, and what to do about it."""
        if is_sealed(path) is False:
            yield f"{path}: was changed after it was written; delete it to make the result again"
        written = path.stat().st_mtime_ns
        for name, digest in manifest.outputs.items():
            file = path.parent / name
            try:
                found = file.stat()
            except OSError:
                yield f"{file}: is missing; delete {path} to make it again"
                continue
            is_newer = found.st_mtime_ns > written
            is_same = manifest.sizes.get(name, found.st_size) == found.st_size
            if is_same and (self.every_byte or is_newer):
                is_same = self._hash(file, found) == digest
            if not is_same:
                yield f"{file}: was changed after it was written; delete {path} to make it again"

    def _hash(self, file: Path, found: os.stat_result) -> str:
        # The time of the last change of the entry itself, which no program can set back, completes the state.
        state = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        known = self._known.get(str(file))
        if isinstance(known, list) and len(known) == 2 and known[0] == state:
            return str(known[1])
        digest = sha256_file(file)
        self._known[str(file)] = [state, digest]
        self.bytes_read += found.st_size
        if time.monotonic() - self._said > _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            print(f"compared {self.bytes_read / 2**20:.0f} MiB, now {file}", file=sys.stderr)
        return digest

    def keep(self) -> None:
        """Keep the hashes; on a disk that takes none they are computed again next time."""
        if self.cache is not None and self.bytes_read:
            with contextlib.suppress(UserError):
                write_json(self.cache, self._known)
