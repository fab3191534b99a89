"""Values as lines of JSON, types kept. Plain data alone: reading a line can run nothing."""

import json
from typing import Any

_PLAIN: dict[str, tuple[Any, Any, Any]] = {  # types, how they are written, and read
    "int": (int, hex, lambda digits: int(digits, 16)),
    "float": (float, float.hex, float.fromhex),
    "complex": (
        complex,
        lambda value: [value.real.hex(), value.imag.hex()],
        lambda parts: complex(*map(float.fromhex, parts)),
    ),
    "str": ((), None, lambda codes: "".join(map(chr, codes))),
    "bytes": ((bytes, bytearray), lambda value: value.hex(), bytes.fromhex),
}
_COLLECTIONS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class Unsendable(Exception):
    """A value that is, or contains, something else than plain data."""


def dump(value: Any) -> str:
    """The line of a value."""
    return json.dumps(_encode(value))


def load(line: str) -> Any:
    """The value of a line; ValueError, whatever is wrong with it."""
    try:
        return _decode(json.loads(line))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(type(error).__name__) from None


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"str": [ord(character) for character in value]} if not value.isascii() else str(value)
    for name, (kind, write, _) in _PLAIN.items():
        if isinstance(value, kind):
            return {name: write(value)}
    if isinstance(value, dict):
        return {"dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
    for name, kind in _COLLECTIONS.items():
        if isinstance(value, kind):
            return {name: [_encode(item) for item in value]}
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return _encode(value.tolist())
    raise Unsendable(type(value).__name__)


def _decode(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    ((name, content),) = value.items()
    if name in _PLAIN:
        return _PLAIN[name][2](content)
    if name == "dict":
        return {_decode(key): _decode(item) for key, item in content}
    return _COLLECTIONS[name](_decode(item) for item in content)
