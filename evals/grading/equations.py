r"""Equations as names of values: which sides are labels (``x``, ``f(x)``, ``(x,y)``), and which are to be solved."""

import re
from collections.abc import Sequence

from evals.grading.exact import canonical_integer, compact
from evals.grading.remarks import letters
from evals.grading.structure import split_group, split_top_level

_FUNCTION = re.compile(r"(\\?[A-Za-z]+)\(([a-z])\)")
_LETTER_COMMAND = re.compile(
    r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|varphi|omega|angle|overline|triangle|sigma|rho|tau|epsilon)"
)
_CALL = re.compile(r"\\?[A-Za-z]+\s*\([^()]*\)")
_VALUE_OF = re.compile(r"(?:\\Pr|(?:\\math\w+\s*)?\{?[PE]\}?|[f-hF-H])\s*\([^()]*\)")  # f(2), P(X=1)
NOT = re.compile(r"\bnot\b", re.IGNORECASE)
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\w)")


def is_label(text: str) -> bool:
    r"""Return whether the left side of an equation only names the right one: ``x``, ``f(x)``, ``|AB|``."""
    bare = _SUBSCRIPT.sub("", text)
    if _VALUE_OF.fullmatch(text.strip()):
        return True
    if NOT.search(bare):
        return False
    return not re.search(r"[\d+\-^]|\\(?:pi|sqrt|sum|int|prod|lim)(?![a-zA-Z])", bare) and has_letters(bare)


def has_letters(text: str) -> bool:
    """Return whether a formula has a variable, functions and other commands left out."""
    return bool(re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", text)) or _LETTER_COMMAND.search(text))


def is_condition(sides: Sequence[str]) -> bool:
    """Return whether an equation is to be solved (``2x = 5``, ``... = 0``), instead of naming its last side's value."""
    left, right = _CALL.sub("", _SUBSCRIPT.sub("", sides[0])), sides[-1]
    if len(sides) != 2 or not has_letters(left) or is_label(sides[0]) or is_label(right):
        return False
    variables = letters(left) | set(_LETTER_COMMAND.findall(left))
    return canonical_integer(right) == "0" or (len(variables) == 1 and bool(re.search(r"\d|\^", left)))


def in_order(ours: list[str], theirs: list[str]) -> tuple[list[str], list[str]]:
    """Tuples with names (``(y,x)=(2,1)``) in the order of the names, unless only the gold answer has names."""
    if len(ours) != 2 or not (len(theirs) == 1 or _named(theirs)):
        return ours, theirs
    return _named(ours) or ours, _named(theirs) or theirs


def _named(sides: Sequence[str]) -> list[str] | None:
    """The values of ``(y,x)=(2,1)`` in the order of x, y, z or a, b, c; None for anything else."""
    groups = [split_group(side) for side in sides]
    if len(groups) != 2 or groups[0] is None or groups[1] is None or len(groups[0].items) != len(groups[1].items):
        return None
    names = groups[0].items
    if len(set(names)) != len(names) or not (
        "".join(sorted(names)) in "xyz abcd" and len("".join(names)) == len(names)
    ):
        return None
    return [f"({','.join(value for _, value in sorted(zip(names, groups[1].items, strict=True)))})"]


def function_variables(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, str] | None:
    """The variables n and x of ``f(n) = ...`` and ``f(x) = ...``; None if not both are functions of one name."""
    mine, other = (_FUNCTION.fullmatch(compact(sides[0])) for sides in (ours, theirs))
    return (mine[2], other[2]) if mine and other and mine[1] == other[1] else None


def labels(items: Sequence[str]) -> frozenset[str] | None:
    """The names that the items are given, if there are at least two different ones."""
    names = frozenset(compact(sides[0]) for item in items if len(sides := split_top_level(item, ("=",))) > 1)
    return names if len(names) > 1 else None


def shared_label(items: Sequence[str]) -> Sequence[str]:
    """``x = 2, 3`` names both: drop the name."""
    sides = [split_top_level(item, ("=",)) for item in items]
    if items and len(sides[0]) == 2 and is_label(sides[0][0]) and all(len(parts) == 1 for parts in sides[1:]):
        return [sides[0][1], *items[1:]]
    return items
