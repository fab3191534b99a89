"""Values and bytes that nobody would write, and how many of them a test tries."""

import copy
import os
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from evals.core.errors import UserError

CASES = int(os.environ.get("HOSTILE_CASES", "150"))
"""Cases of each test: seconds of them run with the other tests, ``make fuzz`` tries a million in all."""

many = settings(max_examples=CASES, derandomize="HOSTILE_CASES" not in os.environ)
numbers = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), 2**53, 1e308, 5e-324, -0.0])
texts = st.text(max_size=80) | st.sampled_from(
    ["", "\n", "a\n", "../x", "{", "{problem}", "$(id)", "\ud800", "a" * 5000]
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


def places(content: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where values stand in a document, itself first: the keys and indices that lead to each."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [place, *(found for key, value in items for found in places(value, (*place, key)))]


def replaced(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a document with another value at a place."""
    if not place:
        return value
    changed = copy.deepcopy(content)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with a few parts cut out, doubled, moved in from elsewhere, or overwritten."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 40)))
        other = draw(st.integers(0, len(content)))
        part = draw(
            st.sampled_from([b"", content[start:end] * 2, content[other : other + 20], b"\x00", b'"', b"{", b"[", b"9"])
            | st.binary(max_size=8)
        )
        content = content[:start] + part + content[end:]
    return content


def one_line(error: UserError) -> None:
    """Check that an error is one line, which does nothing to a terminal."""
    assert str(error) and str(error).isprintable()
