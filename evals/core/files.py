"""Reading and writing files so that a reader never sees a half-written one.

Every writer goes through a temporary file in the target's directory, fsync and an atomic rename; a full disk or a
read-only directory becomes a one-line :class:`~evals.core.errors.UserError` and leaves the previous file as it was.
JSON lines are compressed where a file's name ends in .bz2: bzip2 has one implementation, and so the same bytes on every
machine, which zlib has not.
"""

from __future__ import annotations

import bz2
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.core.errors import InvalidInput, UserError, first_line

if TYPE_CHECKING:
    import pandas as pd


TEMPORARY = ".tmp"  # the end of the names of files that are being written; they begin with a dot
MOST_BYTES = 2**30
"""The largest document that is read as a whole; one that is compressed may be no larger when it is unpacked."""
_PACKED = ".bz2"
_SURROGATE = re.compile("[\ud800-\udfff]")


def located(path: Path) -> Path:
    """A path from the root on, without ``..``: names of runs and studies do not depend on how a path is said."""
    absolute, there = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    return absolute if Path(os.path.realpath(absolute)) == there else there  # ``..`` after a link leads elsewhere


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it onto ``path`` if the block succeeds, remove it otherwise.

    The writer holds a lock on it, which the operating system frees when the process dies, however it dies: what dead
    writers of ``path`` left is removed first.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        with open(temporary, "xb") as held:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_EX)
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # the rename survives a power cut
        finally:
            os.close(directory)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files of ``path`` whose writers are dead."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*{TEMPORARY}"):
        with contextlib.suppress(OSError), open(leftover, "rb") as file:  # it is written, or another removes it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write ``content`` to ``path`` atomically, as UTF-8; half a surrogate pair, which UTF-8 has not, becomes "?"."""
    write_bytes(path, content.encode("utf-8", "replace"))


def write_json(out: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; NaN and infinities are refused, for JSON has no such numbers."""
    write_text(out, json_text(value))


def json_text(value: Any) -> str:
    """The spelling that :func:`write_json` writes."""
    return _writable(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def unpacked(path: Path) -> Path:
    """The path without the ending of compressed lines."""
    return path.with_name(path.name.removesuffix(_PACKED))


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line; of ``rows`` only one is in memory at a time.

    A compressed file takes the place of the other one, which an earlier version wrote.
    """
    with replacing(path) as temporary, _open_lines(temporary, "wt", path.suffix, "utf-8") as file:
        for row in rows:
            file.write(_writable(json.dumps(row, ensure_ascii=False, allow_nan=False)) + "\n")
    if path.suffix == _PACKED:
        with contextlib.suppress(OSError):
            unpacked(path).unlink()


def _open_lines(path: Path, mode: str, suffix: str, encoding: str | None = None) -> Any:
    return bz2.open(path, mode, encoding=encoding) if suffix == _PACKED else open(path, mode, encoding=encoding)


def _writable(content: str) -> str:
    """JSON in which half a surrogate pair, as a model's bytes can decode to, is escaped: it reads back as itself."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", content)


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Write a data frame as parquet, without its index."""
    with replacing(path) as temporary:
        frame.to_parquet(temporary, index=False)


def read_parquet(path: Path, required: Iterable[str] = ()) -> pd.DataFrame:
    """Read a data frame, which has to have the ``required`` columns."""
    import pandas as pd  # not for everyone who writes JSON: planning imports this module
    import pyarrow as pa

    with reading(path), open(path, "rb") as file:
        try:
            frame = pd.read_parquet(file)
        except (pa.ArrowException, OSError, ValueError) as error:  # of a foreign file, or a damaged one
            raise UserError(f"{path}: is not parquet ({first_line(error)})") from None
    if missing := [column for column in required if column not in frame]:
        raise InvalidInput(str(path), "", f"lacks the columns {', '.join(missing)}")
    return frame


def parse_json(text: str | bytes, source: str) -> Any:
    """Parse JSON, such as the value of an option; what is none is a :class:`UserError` that names the ``source``."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{source}: is not valid JSON ({error})") from None
    except RecursionError:
        raise UserError(f"{source}: is JSON that is nested too deeply") from None


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Make what keeps a file from being read a :class:`UserError`."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except EOFError:
        raise UserError(f"{path}: is cut off: its end is missing") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error.reason})") from None
    except OSError as error:  # such as a directory
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_json(path: Path) -> Any:
    """Read a JSON file; one that is missing or is not JSON is a :class:`UserError`, here and below."""
    with reading(path), open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(f"{path}: has more than {MOST_BYTES} bytes, which are the most that are read")
    return parse_json(content, str(path))


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a UTF-8 file that are not blank, each after its place: ``file: line 3``; one is in memory at a time.

    A byte order mark at the start of the file is passed over.
    """
    with reading(path), _open_lines(path, "rt", path.suffix, "utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{path}: line {number}", line


def read_jsonl(path: Path, required: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Read one JSON object a line; a line that is none, or lacks one of the ``required`` keys, is named."""
    required = tuple(required)
    rows: list[dict[str, Any]] = []
    for where, line in read_lines(path):
        row = parse_json(line, where)
        missing = [key for key in required if not isinstance(row, dict) or key not in row]
        if missing or not isinstance(row, dict):
            raise UserError(f"{where} lacks {', '.join(missing) or 'an object'}")
        rows.append(row)
    return rows


def sha256_bytes(content: bytes) -> str:
    """Hexadecimal SHA-256 of ``content``."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with reading(path), open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_lines(path: Path) -> str:
    """Hexadecimal SHA-256 of the lines of a file, the same whether they are compressed or not."""
    with reading(path), _open_lines(path, "rb", path.suffix) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """The one spelling of a JSON value that fingerprints are computed from: sorted keys, no white space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(value: Any) -> str:
    """Hexadecimal SHA-256 of a value's canonical JSON."""
    return sha256_bytes(canonical_json(value).encode("utf-8"))
