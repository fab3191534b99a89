"""Reading of compressed logs, with a bound on what they become."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import MOST_BYTES, parse_json, reading

ZSTANDARD = 93
"""The method of compression that inspect_ai uses within zip files (APPNOTE.TXT, 4.4.5); Python's zipfile lacks it."""


def read_zstandard(path: Path) -> Any:
    """Read JSON that is compressed with Zstandard."""
    with reading(path), _errors(path):
        return parse_json(_decompressed(path.read_bytes(), path), str(path))


class Archive:
    """The JSON documents of a zip file, one in memory at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path), _errors(path):
            self._file = zipfile.ZipFile(path)  # closed with this object: its directory is read once
            self._entries = {entry.filename: entry for entry in self._file.infolist()}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def read(self, name: str) -> Any:
        """Read one document."""
        entry, where = self._entries[name], f"{self.path}: {name}"
        if entry.file_size > MOST_BYTES:
            raise UserError(f"{where}: has {entry.file_size} bytes; accepted: up to {MOST_BYTES}")
        with reading(self.path), _errors(self.path):
            if entry.compress_type == ZSTANDARD:
                content = _decompressed(self._compressed(entry), self.path)
                if zlib.crc32(content) != entry.CRC:
                    raise zipfile.BadZipFile(f"{name} has another checksum")
                return parse_json(content, where)
            with self._file.open(entry) as document:
                return parse_json(document.read(MOST_BYTES), where)

    def _compressed(self, entry: zipfile.ZipInfo) -> bytes:
        """The bytes behind an entry's local header, which ends with a name and extra fields of its own lengths."""
        with open(self.path, "rb") as file:
            file.seek(entry.header_offset + 26)
            lengths = file.read(4)
            file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
            return file.read(entry.compress_size)


def _decompressed(content: bytes, path: Path) -> bytes:
    import pyarrow as pa  # not for those who read other formats

    stream = pa.CompressedInputStream(pa.BufferReader(content), "zstd")
    parts, size = [], 0
    while part := stream.read(2**20):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise UserError(f"{path}: unpacks to more than {MOST_BYTES} bytes, which is the most that is accepted")
    return b"".join(parts)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Make what is wrong with compressed bytes a :class:`UserError`."""
    try:
        yield
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the file system, and not of the decoder
            raise
        raise UserError(f"{path}: cannot be unpacked ({error})") from None
