r"""Boxes: the contents of the last ``\boxed{...}`` (or ``\fbox``) of a text, and of those that go with it."""

import re
from typing import NamedTuple

_BOX = re.compile(r"\\(?:[a-zA-Z]{0,32}boxed|fbox|framebox)(?![a-zA-Z])\s*")
_BRACELESS = re.compile(  # a number, a letter or a command, and what follows it without a space
    r"(?=[-+\d.\\(\[]|[^\x00-\x7f]|[A-Za-z](?![A-Za-z]| [a-z]))"
    r"((?:\\(?![a-zA-Z]*box)[a-zA-Z]+(?:\{[^{}]{0,99}\}){0,2}|[^\s$\\{},;`]){1,60})"
)
_LONGEST_COMMAND = 40
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_PLACEHOLDER = re.compile(
    r"(?i)[\[{<(\s]{0,3}(?:\\text\w*\s*\{)?\s*(?:\?+|\.{2,}|\u2026|\\[lc]?dots|(?:\\?_)+|\\(?:square|Box|ldots)|#|"
    r"\$?LETTER|(?:(?:your|the|final|correct|my|an?)\s+)*\$?(?:answer|solution|result|expression|integer|number|value|"
    r"letter|option)(?:\s+here)?)\s*\}?[\]}>)\s]{0,3}"
)
_INSTRUCTION = re.compile(
    r"\b(?:within|inside|in|into|using|use|with|by|a|an|the|format|notation|form|of)\s*[`$\"'({]*$"
)
_MAX_GAP = 70  # characters between two boxes that can still be parts of one answer
_CONNECTOR = re.compile(r",|;|&|\b(?:and|or)\b")
_BARE_GAP = re.compile(r"(?:\\q?quad|[^A-Za-z0-9=])*")
_MAX_BARE_GAP = 24  # the same, where there are no words between them
REVISION = re.compile(
    r"(?i)[.!?]\s|\n\s*\n|\b(?:but|wait|actually|instead|rather|correct\w*|wrong|no|not|then|so|thus|hence|therefore|"
    r"final|finally|answer|check\w*|recheck\w*|recall|gives?|because|since|however|hmm+|oops|sorry|mistake)\b"
)


class Box(NamedTuple):
    """A box in a text."""

    begin: int  # of its command
    opening: int  # where its content begins
    closing: int | None  # where its content ends; None if it is never closed
    end: int  # of the box

    def content(self, text: str) -> str:
        """The text inside the box."""
        return text[self.opening : self.closing].strip()


def _is_placeholder(text: str, box: Box, content: str) -> bool:
    r"""Return whether a box only shows where an answer goes: ``\boxed{?}``, "within \boxed{}", the word ``\boxed``."""
    if content:
        return not content[0].isdigit() and _PLACEHOLDER.fullmatch(content) is not None
    return text[box.opening - 1] != "{" or _INSTRUCTION.search(text, max(0, box.begin - 40), box.begin) is not None


def boxes(text: str) -> list[Box]:
    """Every box of a text, in the order in which they begin, in time that is linear in the text's length."""
    first = text.find("box")
    if first < 0:
        return []
    in_order: list[Box] = []
    braced: dict[int, int] = {}  # an opening brace, and the box whose content it begins
    for start in _BOX.finditer(text, max(0, first - _LONGEST_COMMAND)):
        begin, opening = start.span()
        if text.startswith("{", opening):
            braced[opening] = len(in_order)
            in_order.append(Box(begin, opening + 1, None, len(text)))
            continue
        match = _BRACELESS.match(text, opening)
        end = opening if match is None else match.end() - match[0].endswith(".")
        in_order.append(Box(begin, opening, end, end))
    open_braces: list[int] = []
    unclosed = len(braced)
    for brace in _BRACES.finditer(text, min(braced)) if braced else ():
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif brace[0] == "}" and open_braces and (index := braced.get(open_braces.pop())) is not None:
            in_order[index] = Box(*in_order[index][:2], *brace.span())
            unclosed -= 1
            if not unclosed:
                break
    return in_order


def last_boxes(text: str, lenient: bool = False) -> list[str] | None:
    r"""Contents of the last box, and of those before it that are parts of its answer: ``\boxed{-2} and \boxed{1}``.

    None if there is no box; empty if the last one is empty or was never closed. With ``lenient`` an unclosed last box
    reaches to the end of the text (for golds, which people cut short).
    """
    every = boxes(text)
    if len(every) == 1 and every[0].closing is not None and (only := every[0].content(text)).isdecimal():
        return [only]  # as most texts
    outer: list[Box] = []
    inside = 0
    for box in every:
        if box.closing is None or box.end > inside:  # else within the box before it, which is read as a whole
            outer.append(box)
            inside = inside if box.closing is None else box.end
    if not outer:
        return None
    parts: list[str] = []
    following = len(text)
    for box in reversed(outer):
        if box.closing is None:
            if parts:
                break
            return [box.content(text).strip()] if lenient else []
        content = box.content(text)
        if _is_placeholder(text, box, content):
            continue
        if parts and not _joins(text[box.end : following]):
            break
        if not content and not parts:
            return []
        if "box" in content:
            bare = _BOX.sub("", content).strip()
            content = bare[1:-1] if bare.startswith("{") and matching(bare, 0) == len(bare) - 1 else bare
        if not parts or parts[0] != content:
            parts.insert(0, content)
        following = box.begin
    return parts or None


def _joins(gap: str) -> bool:
    """Return whether the text between two boxes joins them into one answer."""
    if len(gap) <= _MAX_BARE_GAP and _BARE_GAP.fullmatch(gap) and "\n\n" not in gap:
        return True
    return len(gap) <= _MAX_GAP and _CONNECTOR.search(gap) is not None and REVISION.search(gap) is None


def matching(text: str, opening: int) -> int | None:
    r"""The place of the brace or parenthesis that closes the one at ``opening``; ``\{`` and ``\}`` are characters."""
    opened, closed = text[opening], {"{": "}", "(": ")"}[text[opening]]
    depth, position = 0, opening
    while position < len(text):
        depth += (text[position] == opened) - (text[position] == closed)
        if depth == 0:
            return position
        position += 2 if text[position] == "\\" else 1
    return None
