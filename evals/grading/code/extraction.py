"""Finding the program in a response: a closed Markdown block of code. Nothing is guessed."""

from __future__ import annotations

import re

from evals.grading.extraction import Extraction, visible_part
from evals.grading.verdict import Reason

_FENCE = re.compile(r"^[ \t]{0,3}(```+|~~~+)[ \t]*([\w+.-]*)[^\n]*$", re.MULTILINE)
_PYTHON = ("", "python", "python3", "py")


def extract_program(text: str, entry_point: str | None, truncated: bool) -> Extraction:
    """The program that a response commits to.

    Args:
        text: the whole response; thinking does not count.
        entry_point: the function (or ``Class.method``) that is called; None for a script.
        truncated: the response was cut off; a block that was closed counts all the same.

    Returns:
        The last closed block of Python that defines the entry point; where none does, or for a script, the last one.
    """
    blocks = _blocks(visible_part(text))
    if not blocks:
        return Extraction(None, Reason.TRUNCATED if truncated else Reason.NO_ANSWER)
    if entry_point is None:
        return Extraction(blocks[-1])
    name = re.escape(entry_point.partition(".")[0])
    defines = re.compile(rf"^(?:async\s+)?(?:def|class)\s+{name}\b|^{name}\s*=", re.MULTILINE)
    return Extraction(next((block for block in reversed(blocks) if defines.search(block)), blocks[-1]))


def _blocks(text: str) -> list[str]:
    """Closed blocks that are Python, or of no stated language; empty ones left out."""
    found = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[1][0] == opened[1][0] and len(fence[1]) >= len(opened[1]) and not fence[2]:
            content = text[opened.end() + 1 : fence.start()]
            if opened[2].lower() in _PYTHON and content.strip():
                found.append(content)
            opened = None
    return found
