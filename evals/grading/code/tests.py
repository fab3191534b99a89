"""A problem's tests, in ``tests.jsonl`` beside ``problems.jsonl``: ``{"id", "tests"}``, the tests compressed.

They are compressed because those of LiveCodeBench are gigabytes. docs/grading.md shows the three kinds, unpacked.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import sha256_bytes
from evals.core.record import ExtensibleRecord, scan_rows

TESTS_FILE = "tests.jsonl"
_KEYS: Mapping[str, Mapping[str, type]] = {
    "program": {"entry_point": str, "test": str},
    "calls": {"entry_point": str, "cases": list},
    "stdin": {"cases": list},
}
_LARGEST_TESTS = 1024**3  # bytes of one problem's tests; a file of a kilobyte can stand for more
_CASE_KEYS: Mapping[str, tuple[str, ...]] = {"calls": ("arguments", "expected"), "stdin": ("input", "output")}


def check_tests(tests: Any, where: str) -> Mapping[str, Any]:
    """``tests``, if they are of this format; ``where`` names the problem in the message if they are not."""
    kind: Any = tests.get("kind") if isinstance(tests, dict) else None
    if kind not in _KEYS:
        raise UserError(f"{where}: tests: kind is {kind!r}; accepted: {', '.join(_KEYS)}")
    for key, expected in _KEYS[kind].items():
        if not isinstance(tests.get(key), expected) or not tests[key]:
            raise UserError(f"{where}: tests: {key}: is missing or empty; accepted: a {expected.__name__}")
    if not isinstance(tests.get("preamble", ""), str):
        raise UserError(f"{where}: tests: preamble: is {type(tests['preamble']).__name__}; accepted: text")
    for case in tests.get("cases", ()):
        missing = [key for key in _CASE_KEYS.get(kind, ()) if not isinstance(case, dict) or key not in case]
        if missing:
            raise UserError(f"{where}: tests: a case lacks {', '.join(missing)}")
    return dict(tests)


def _content(tests: Mapping[str, Any]) -> bytes:
    return json.dumps(tests, sort_keys=True, separators=(",", ":")).encode("ascii")


def tests_hash(tests: Mapping[str, Any]) -> str:
    """SHA-256 of what the tests are, however they are compressed."""
    return sha256_bytes(_content(tests))


def pack(tests: Mapping[str, Any]) -> str:
    """Compress tests to text."""
    return base64.b64encode(zlib.compress(_content(tests), 6)).decode("ascii")


class _Row(ExtensibleRecord):
    """A line of the file."""

    id: str | int
    tests: str


def read_tests(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each problem's id and tests, one at a time."""
    for row in scan_rows(path, _Row):
        where = f"{path}: id {row.id!r}"
        try:
            unpacking = zlib.decompressobj()
            content = unpacking.decompress(base64.b64decode(row.tests, validate=True), _LARGEST_TESTS)
            if not unpacking.eof:
                raise ValueError(f"they are cut off, or larger than {_LARGEST_TESTS} bytes")
            tests = json.loads(content)
        except (ValueError, RecursionError, zlib.error) as error:
            raise UserError(f"{where}: tests: cannot be unpacked ({error})") from None
        yield str(row.id), check_tests(tests, where)
