r"""The parts of an answer: lists, sets, tuples, intervals, unions, matrices. Text in, text out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product

from evals.grading.exact import plain_number

_TOKEN = re.compile(
    r"\\begin\{[^{}]*\}|\\end\{[^{}]*\}|\\[{}]|\\(?:langle|rangle|lvert|rvert|lfloor|rfloor|lceil|"
    r"rceil)(?![a-zA-Z])|\\[a-zA-Z]+|\\.|.",
    re.DOTALL,
)
_DEEPER = ("(", "[", "{", r"\{", r"\begin{", r"\langle", r"\lfloor", r"\lceil")
_SHALLOWER = (")", "]", "}", r"\}", r"\end{", r"\rangle", r"\rfloor", r"\rceil")
_THOUSANDS = re.compile(r"(?:[^,]*=)?\s*-?\d{1,3}(?:,\d{3})+(?:\.\d+)?\s*")
_NAME = re.compile(r"^[^,=]*=")
_THREE_DIGITS = re.compile(r"\d{3}(?!\d)")
_BRACKETS = ((r"\{", r"\}"), (r"\langle", r"\rangle"), *product("([", ")]"), ("{", "}"))
_MATRIX = re.compile(
    r"^[(\[]?\s*\\begin\{(?P<name>[pb]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?"
    r"(?P<body>.*)\\end\{(?P=name)\}\s*[)\]]?$",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers in one: what encloses them, and what they are."""

    opening: str  # "(", "[", "{" (a set), "u" (a union) or nothing (a bare list)
    closing: str  # the bracket at the other end
    items: tuple[str, ...]

    @property
    def unordered(self) -> bool:
        """Sets and bare lists are unordered; anything in parentheses or brackets has an order."""
        return self.opening in ("", "{")

    @property
    def may_be_interval(self) -> bool:
        """Two items between brackets, of which at least one is square."""
        return len(self.items) == 2 and (self.opening == "[" or self.closing == "]")


def as_list(text: str) -> Group:
    """Read a text beside a group: ``1,234`` is two numbers where the other side has parts, one number elsewhere."""
    return Group("", "", tuple(filter(None, split_top_level(text, (",",)))))


def split_group(text: str) -> Group | None:
    """Read a list, set, tuple, interval or union of them; None if the text is one single thing."""
    text = text.strip()
    union = split_top_level(text, (r"\cup",))
    if len(union) > 1:
        return Group("u", "u", tuple(union))
    items = _items(text)
    if len(items) > 1:
        return Group("", "", tuple(filter(None, items)))
    enclosed = _enclosed(text)
    if enclosed is None:
        return None
    opening, inner, closing = enclosed
    items = _items(inner)
    if len(items) == 1 and opening in "([":
        return None if opening == "[" else split_group(inner)
    return Group(opening, closing, tuple(items))


def _items(text: str) -> list[str]:
    """The parts between semicolons, or else between the commas of what is no number."""
    parts = split_top_level(text, (";",))
    return parts if len(parts) > 1 or plain_number(_NAME.sub("", text)) is not None else split_top_level(text, (",",))


def split_top_level(text: str, separators: tuple[str, ...]) -> list[str]:
    """Split at separators that no bracket encloses."""
    parts: list[str] = []
    depth = start = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.startswith(_DEEPER):
            depth += 1
        elif token.startswith(_SHALLOWER):
            depth -= 1
        elif depth == 0 and token in separators:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    if separators == (",",) and any(part[:1].isspace() for part in parts[1:]):  # ``1,000, 2,000`` are two numbers
        for index in range(len(parts) - 1, 0, -1):
            if _THOUSANDS.fullmatch(f"{parts[index - 1]},{parts[index]}") and _THREE_DIGITS.match(parts[index]):
                parts[index - 1 : index + 1] = [f"{parts[index - 1]},{parts[index]}"]
    return [part.strip() for part in parts]


def is_bracketed(text: str) -> bool:
    """Return whether one pair of square brackets encloses a single thing, and no matrix: ``[7]`` is not 7."""
    enclosed = _enclosed(text.strip())
    if enclosed is None or enclosed[0] != "[" or enclosed[2] != "]" or r"\begin" in text:
        return False
    return len(split_top_level(enclosed[1], (",", ";"))) == 1


def _enclosed(text: str) -> tuple[str, str, str] | None:
    """Opening, content and closing where one pair of brackets encloses all of the text (``[0,1)`` is a pair)."""
    for opening, closing in _BRACKETS:
        if not (text.startswith(opening) and text.endswith(closing)) or len(text) < len(opening) + len(closing):
            continue
        inner = text[len(opening) : len(text) - len(closing)]
        if closing in ")]}" and inner.endswith("\\"):
            continue
        steps = (token[0].startswith(_DEEPER) - token[0].startswith(_SHALLOWER) for token in _TOKEN.finditer(inner))
        depths = [0, *accumulate(steps)]
        if depths[-1] != 0 or min(depths) < 0:
            return None
        kind = {r"\{": "{", r"\langle": "("}.get(opening, opening)
        return kind, inner.strip(), {r"\}": "}", r"\rangle": ")"}.get(closing, closing)
    return None


def expand_signs(items: Sequence[str], independent: bool = False) -> tuple[str, ...]:
    r"""Write ``a \pm b`` as the two answers that it stands for; several signs in one item go together, or do not."""
    expanded: list[str] = []
    for item in items:
        if r"\pm" not in item and r"\mp" not in item:
            expanded.append(item)
            continue
        count = 1 if independent and r"\mp" not in item and item.count(r"\pm") == 2 else item.count(r"\pm")
        for plus, minus in (("+", "-"), ("-", "+")):
            signed = re.sub(r"\\mp\s*", f" {minus} ", re.sub(r"\\pm\s*", f" {plus} ", item, count=count))
            expanded += expand_signs([re.sub(r"(^|[=({\[,])\s*\+\s*", r"\1", signed).strip()])
    return tuple(expanded)


def matrix_entries(text: str) -> tuple[tuple[str, ...], ...] | None:
    """Rows of entries of a matrix or vector; None if the text is anything else."""
    match = _MATRIX.match(text.strip())
    if match is None or r"\begin" in match["body"]:
        return None
    rows = [row.strip() for row in re.split(r"\\\\|\\cr(?![a-zA-Z])", match["body"])]
    return tuple(tuple(entry.strip() for entry in row.split("&")) for row in rows if row)
