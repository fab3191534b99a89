"""A JSON object read into a dataclass: exactly its fields, or one line that says which key is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

from evals.errors import UserError


def exact_keys(kind: type, content: Any, source: str) -> dict[str, Any]:
    """``content`` if its keys are exactly the fields of the dataclass ``kind``.

    Raises:
        UserError: a key is unknown or missing.
    """
    expected = {field.name for field in dataclasses.fields(kind)}
    found = set(content) if isinstance(content, dict) else set()
    if found != expected:
        problem = ", ".join(
            [f"lacks {key}" for key in sorted(expected - found)]
            + [f"has unknown {key}" for key in sorted(found - expected)]
        )
        raise UserError(f"{source}: {problem}; accepted: {', '.join(sorted(expected))}")
    return dict(content)
