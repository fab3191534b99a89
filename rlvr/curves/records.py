"""Readers of binary logs, without the libraries that wrote them: TensorBoard's event files and wandb's offline runs.

Both are records of protocol buffers. The few fields that hold numbers are taken by their numbers in the public
definitions (tensorflow/core/util/event.proto, wandb_internal.proto); everything else is passed over by its length.
Nothing is executed or unpickled.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from evals.core.errors import InvalidInput, UserError
from evals.core.files import MOST_BYTES, reading

Rows = dict[float, dict[str, float]]
"""Step -> its metrics by name."""
SINCE_START = "seconds since the start"
_BLOCK, _HEADER, _START = 32768, 7, b":W&B"


def _content(path: Path) -> bytes:
    with reading(path), open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(f"{path}: has more than {MOST_BYTES} bytes, which are the most that are read")
    return content


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """List the fields of a message: a number, and a whole number or the bytes of what has a length or a fixed size."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = 0
        for shift in range(0, 70, 7):
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number has more than ten bytes")

    while at < len(message):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"a field is of the kind {kind}")
            size = varint()
        if at + size > len(message):
            raise ValueError("a field ends beyond its message")
        yield number, message[at : at + size]
        at += size


def _bytes(message: bytes, number: int) -> Iterator[bytes]:
    return (value for key, value in fields(message) if key == number and isinstance(value, bytes))


def read_tensorboard(path: Path) -> Rows:
    """Read the scalars of an event file; what is cut off at its end, as in a run that goes on, is left out."""
    content, at, rows, start = _content(path), 0, Rows(), None
    try:
        while at + 12 <= len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            event = content[at + 12 : at + 12 + size]
            if len(event) < size:
                break
            at += 16 + size
            step = next((int(value) for key, value in fields(event) if key == 2 and isinstance(value, int)), 0)
            time = next((struct.unpack("<d", value)[0] for value in _bytes(event, 1)), 0.0)
            start = time if start is None else start
            for summary in _bytes(event, 5):
                for value in _bytes(summary, 1):
                    name = next(_bytes(value, 1), b"").decode("utf-8")
                    numbers = [struct.unpack("<f", each)[0] for each in _bytes(value, 2)]
                    numbers += [number for tensor in _bytes(value, 8) for number in _tensor(tensor)]
                    if len(numbers) == 1:
                        row = rows.setdefault(step, {})
                        row[name] = numbers[0]
                        row.setdefault(SINCE_START, time - start)
    except (ValueError, IndexError, struct.error) as error:
        raise InvalidInput(str(path), "", f"is no event file of TensorBoard ({error})") from None
    return rows


def _tensor(tensor: bytes) -> Iterator[float]:
    """The numbers of a scalar tensor of floats: as such, or as their bytes."""
    for key, value in fields(tensor):
        if key in (4, 5) and isinstance(value, bytes) and len(value) in (4, 8):
            yield struct.unpack("<f" if len(value) == 4 else "<d", value)[0]


def read_wandb(path: Path) -> Iterator[tuple[dict[str, str], int | None]]:
    """List the history of an offline run: JSON values by their names, and the step if it stands beside them."""
    content = _content(path)
    if not content.startswith(_START):
        raise InvalidInput(str(path), "", "is no offline run of wandb", f"a file that begins with {_START.decode()}")
    try:
        for record in _log_records(content):
            for history in _bytes(record, 2):
                row, step = {}, None
                for item in _bytes(history, 1):
                    name = "/".join(part.decode("utf-8") for part in [*_bytes(item, 1), *_bytes(item, 2)] if part)
                    row[name] = next(_bytes(item, 16), b"").decode("utf-8")
                for beside in _bytes(history, 2):
                    step = next((value for key, value in fields(beside) if key == 1 and isinstance(value, int)), 0)
                yield row, step
    except (ValueError, IndexError) as error:
        raise InvalidInput(str(path), "", f"cannot be read as an offline run of wandb ({error})") from None


def _log_records(content: bytes) -> Iterator[bytes]:
    """List the records of LevelDB's log format: parts in blocks of 32 KiB, each after checksum, length and kind."""
    at, parts = _HEADER, b""
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:  # the rest of a block is empty
            at += _BLOCK - at % _BLOCK
            continue
        size, kind = struct.unpack_from("<HB", content, at + 4)
        if kind == 0:
            return
        part = content[at + _HEADER : at + _HEADER + size]
        if len(part) < size:
            return  # cut off, as in a run that goes on
        if kind not in (1, 2, 3, 4):
            raise ValueError(f"a part is of the kind {kind}")
        at += _HEADER + size
        parts = part if kind in (1, 2) else parts + part
        if kind in (1, 4):
            yield parts
