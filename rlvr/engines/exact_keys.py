"""A JSON object read into a dataclass: exactly its fields, of their types, or one line that says what is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from evals.core.errors import UserError


def exact_keys(kind: type, content: Any, source: str) -> dict[str, Any]:
    """``content`` if its keys are exactly the fields of the dataclass ``kind``.

    Fields that are annotated with a plain type have to be of it; a whole number passes for any number.

    Raises:
        UserError: a key is unknown or missing, or a value is of another type.
    """
    expected = {field.name for field in dataclasses.fields(kind)}
    found = set(content) if isinstance(content, dict) else set()
    if found != expected:
        problem = ", ".join(
            [f"lacks {key}" for key in sorted(expected - found)]
            + [f"has unknown {key}" for key in sorted(found - expected)]
        )
        raise UserError(f"{source}: {problem}; accepted: {', '.join(sorted(expected))}")
    for key, wanted in get_type_hints(kind).items():
        if wanted in _NAMES and not _is_a(content[key], wanted):
            raise UserError(f"{source}: {key}: is {content[key]!r}; accepted: {_NAMES[wanted]}")
    return dict(content)


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _is_a(value: Any, wanted: type) -> bool:
    """Whether a JSON value is of a plain type; true and false are no numbers."""
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, int | float) if wanted is float else isinstance(value, wanted)
