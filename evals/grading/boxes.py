r"""Boxes: the contents of the last ``\boxed{...}`` (or ``\fbox``) of a text, and of those that go with it."""

import re
from collections.abc import Iterator

_BOX = re.compile(r"\\(?:[a-zA-Z]{0,32}boxed|fbox|framebox)(?![a-zA-Z])")
_BRACELESS = re.compile(r"((?:\\(?![a-zA-Z]*box)[a-zA-Z]+(?:\{[^{}]{0,99}\}){0,2}|[^\s$\\{},;]){1,60})")
_LONGEST_COMMAND = 40
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_PLACEHOLDER = re.compile(
    r"(?:\\text\w*\s*\{)?\s*(?:\?+|\.{2,}|\u2026|\\[lc]?dots|(?:\\?_)+|\\(?:square|Box|ldots)|#|\$?ANSWER|\$?LETTER|"
    r"(?:(?:your|the|final|correct|my)\s+)*(?:answer|solution|result|expression)(?:\s+here)?)\s*\}?",
    re.IGNORECASE,
)
_INSTRUCTION = re.compile(
    r"\b(?:within|inside|in|into|using|use|with|by|a|an|the|format|notation|form|of)\s*[`$\"'({]*$"
)
_MAX_GAP = 70  # characters between two boxes that can still be parts of one answer
_CONNECTOR = re.compile(r",|;|&|\b(?:and|or)\b")
_BARE_GAP = re.compile(r"(?:\\q?quad|[^A-Za-z0-9=])*")
_MAX_BARE_GAP = 24  # the same, where there are no words between them
_TEXT_COMMAND = re.compile(r"\\(?:text|mbox|textrm|mathrm)(?![a-zA-Z])|\\q?quad")
REVISION = re.compile(
    r"[.!?]\s|\n\s*\n|\b(?:but|wait|actually|instead|rather|correct\w*|wrong|no|not|then|so|thus|hence|therefore|"
    r"final|finally|answer|check\w*|recheck\w*|recall|gives?|because|since|however|hmm+|oops|sorry|mistake)\b",
    re.IGNORECASE,
)


def _is_placeholder(text: str, begin: int, content: str) -> bool:
    r"""Return whether a box only shows where an answer goes: ``\boxed{?}``, "within \boxed{}", ``\boxed{answer}``."""
    if content[:1].isdigit():
        return False
    return bool(_PLACEHOLDER.fullmatch(content) if content else _INSTRUCTION.search(text, max(0, begin - 40), begin))


def boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """Where each box begins and ends, and what it holds; boxes within boxes are given too, unclosed ones are not."""
    for match in _BOX.finditer(text) if "box" in text else ():
        content, stop = _box_content(text, match.end())
        if content is not None:
            yield match.start(), stop, content


def last_boxes(text: str, lenient: bool = False) -> list[str] | None:
    r"""Contents of the last box, and of the boxes before it that are parts of the same answer.

    ``\boxed{-2} \text{ and } \boxed{1}`` is one answer of two parts; ``\boxed{180}. Checking again gives \boxed{204}``
    is a revision, of which the last counts.

    None if there is no box at all; an empty list if the last one is empty or was never closed. With ``lenient`` an
    unclosed last box reaches to the end of the text (for golds, which people cut short).
    """
    first = text.find("box")
    starts = [match.span() for match in _BOX.finditer(text, max(0, first - _LONGEST_COMMAND))] if first >= 0 else []
    if not starts:
        return None
    parts: list[str] = []
    following = len(text)
    for begin, end in reversed(starts):
        if begin >= following:
            continue
        content, stop = _box_content(text, end)
        if content is None:
            if parts:
                break
            return [text[end:].strip().removeprefix("{").strip()] if lenient else []
        if _is_placeholder(text, begin, content):
            continue
        if stop > following:  # a box around boxes: what it holds has been read already
            inner = _BOX.sub("", content).strip()
            parts = [inner[1:-1] if inner.startswith("{") and inner.endswith("}") and len(parts) == 1 else inner]
            following = begin
            continue
        if parts and not _joins(text[stop:following]):
            break
        if not content and not parts:
            return []
        if not parts or parts[0] != content:
            parts.insert(0, content)
        following = begin
    return parts or None


def _joins(gap: str) -> bool:
    """Return whether the text between two boxes joins them into one answer."""
    if len(gap) <= _MAX_BARE_GAP and _BARE_GAP.fullmatch(gap) and "\n\n" not in gap:
        return True
    words = _TEXT_COMMAND.sub(" ", gap)
    return len(gap) <= _MAX_GAP and _CONNECTOR.search(words) is not None and REVISION.search(words) is None


def _box_content(text: str, position: int) -> tuple[str | None, int]:
    """Content of the box whose command ends at ``position``, and where it stops; None if it is never closed."""
    while position < len(text) and text[position].isspace():
        position += 1
    if not text.startswith("{", position):
        match = _BRACELESS.match(text, position)
        return (match[1].rstrip("."), match.end()) if match else (None, position)
    closing = matching_brace(text, position)
    return (None, position) if closing is None else (text[position + 1 : closing].strip(), closing + 1)


def ends_in_bare_box(text: str) -> bool:
    r"""Return whether the text stops within ``\boxed 4``, which could have become 42."""
    *_, command = _BOX.finditer(text)
    return _box_content(text, command.end())[1] == len(text) and not text.endswith("}")


def matching_brace(text: str, opening: int) -> int | None:
    r"""Index of the brace that closes the one at ``opening``; ``\{`` and ``\}`` are characters, not braces."""
    depth = 0
    for match in _BRACES.finditer(text, opening):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None
