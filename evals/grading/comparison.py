r"""Comparing two answers part by part: lists, sets, tuples, intervals, matrices and equations.

The parts are compared by whatever ``leaf`` is given: the exact rules in the calling process, algebra in a worker.
Verdicts are three-valued: True, False, or None where ``leaf`` could not tell.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, combinations

from evals.grading import equations
from evals.grading.exact import canonical_integer, compact, decide, plain_number
from evals.grading.normalisation import RELATION
from evals.grading.remarks import without_unit_symbols
from evals.grading.structure import (
    Group,
    as_list,
    expand_signs,
    is_bracketed,
    matrix_entries,
    split_group,
    split_top_level,
)

Leaf = Callable[[str, str], bool | None]

MAX_ITEMS = 200
MAX_UNMATCHED = 30
"""Items of two unordered lists, spelled differently, that are compared each with each."""

_MEMBER = re.compile(r"^\s*\\?[A-Za-z](?:_\{?\w+\}?)?\s*\\in(?![a-zA-Z])\s*")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|sim|doteq)(?![a-zA-Z])")
_REMARK = re.compile(  # a condition, a modulus
    r"^\(\s*[A-J]\s*\)\s+(?=[\d\\])|(?<=\d)\s+[ap]m$|(?<=[\w})])\s*,?\s*(?:\(?\\pmod\s*\{?\w+\}?\)?|\(\s*\\?mod\s+\w+\s*\)"
    r"|\(?(?:\\forall\s*)?[a-z]\s*\\in\s*\\math\w+\s*\{?\s*[ZNQ]\s*\}?\s*(?:[_^]\s*(?:\{\s*)?[+*0>]\s*\}?)?\)?"
    r"|(?<=\s)(?:for|where|when|if|with)\s(?=.*(?<![A-Za-z])[A-Za-z](?![A-Za-z])|.*\b(?:all|any|every|integers?)\b)(?!.*\b(?:otherwise|else|probability|means?|not)\b)[^,;]+)$",
    re.DOTALL,
)
_OVER_REALS = re.compile(
    r"(?<=[\w})])(?:\s*,\s*\(?|\s+\(|\s+\\forall|\s*,?\s*\(?\\forall)\s*[a-z]\s*\\in\s*\(-\\infty,\s*\\infty\)\s*\)?$"
)
_INTEGER_NAME = re.compile(r"(?<![A-Za-z\\])[kmnl](?![A-Za-z(])")
_INTEGERS = re.compile(r"\\in\s*\\math\w+\s*\{?\s*[ZN]")
_RELATED = re.compile(r"^\\?[A-Za-z]+\s*(?=[<>]|\\[lg]e(?![a-z]))")
_TUPLE = re.compile(r"\([^()]*,[^()]*\)$")
_POINT = re.compile(r"^[A-Z]\s*(?=\([^()]*,[^()]*\)$)")
_TWICE = re.compile(r"(?P<value>[^()]+?)\s+\((?P<other>[^()]+)\)")
_NUMBERED = re.compile(r"\s*([A-Za-z])_\{?\d+\}?\s*=")


def compare(answer: str, gold: str, leaf: Leaf) -> bool | None:
    """Compare two normalised answers, part by part; ``leaf`` compares two that have no parts."""
    if not answer or not gold:
        return False
    exact = decide(answer, gold)
    if exact is not None:
        return exact
    if is_bracketed(answer) != is_bracketed(gold):
        return False
    answer = _in_the_names_of(gold, answer)
    answer, gold = (_OVER_REALS.sub("", _without_approximation(_MEMBER.sub("", side))) for side in (answer, gold))
    if bool(_REMARK.search(answer)) != bool(_REMARK.search(gold)):  # which the other side leaves to the question
        return compare(_REMARK.sub("", answer).strip(), _REMARK.sub("", gold).strip(), leaf)
    if plain_number(gold) is not None:
        answer = _without_unit_or_repetition(answer)
    elif plain_number(answer) is not None:
        gold = without_unit_symbols(gold)
    if RELATION.match(answer) or RELATION.match(gold):  # ``> 3`` beside ``x > 3``
        answer, gold = (_RELATED.sub("", side) for side in (answer, gold))
    if _TUPLE.match(answer) or _TUPLE.match(gold):  # ``(3,4)`` beside ``P(3,4)``
        answer, gold = (_POINT.sub("", side) for side in (answer, gold))
    if r"\setminus" in answer + gold:
        return leaf(answer, gold)
    group, gold_group = split_group(answer), split_group(gold)
    proportions = split_top_level(answer, (":",)), split_top_level(gold, (":",))
    if max(map(len, proportions)) > 2 and "=" not in answer + gold:  # 2:3:4, by the ratio of each part to the first
        ratios = [[rf"\frac{{{part}}}{{{parts[0]}}}" for part in parts[1:]] for parts in proportions]
        return _ordered(ratios[0], ratios[1], leaf)
    sides = [answer] if group else split_top_level(answer, ("=",))
    gold_sides = [gold] if gold_group else split_top_level(gold, ("=",))
    if max(len(sides), len(gold_sides)) > 1 and all(sides) and all(gold_sides):
        if any(map(equations.NOT.search, sides[:-1])):
            return False
        if len(gold_sides) > 1 or not RELATION.search(answer):
            return _compare_equations(sides, gold_sides, answer, gold, leaf)
    rows, gold_rows = matrix_entries(answer), matrix_entries(gold)
    if rows is not None and gold_rows is not None:
        same_shape = [len(row) for row in rows] == [len(row) for row in gold_rows]
        return same_shape and _ordered(list(chain(*rows)), list(chain(*gold_rows)), leaf)
    for vector, other in ((rows, gold_group), (gold_rows, group)):
        if vector and other and other.opening == "(" and other.closing == ")" and min(len(vector), len(vector[0])) == 1:
            entries = list(chain(*vector))
            return _ordered(entries, other.items, leaf) if vector is rows else _ordered(other.items, entries, leaf)
    if group or gold_group:
        return _compare_groups(group or as_list(answer), gold_group or as_list(gold), leaf, answer, gold)
    signed, gold_signed = expand_signs((answer,)), expand_signs((gold,))
    if len(signed) > 1 or len(gold_signed) > 1:
        return _unordered(signed, gold_signed, leaf)
    exact = decide(answer, gold)
    return exact if exact is not None else leaf(answer, gold)


def _without_unit_or_repetition(text: str) -> str:
    r"""Drop the symbols of units after a number (``7 m/s``), and the same number in other words (``\frac12 (50%)``)."""
    twice = _TWICE.fullmatch(text)
    if twice and decide(twice["value"], twice["other"]) and plain_number(twice["other"]) is not None:
        return twice["value"]
    return without_unit_symbols(text)


def _in_the_names_of(gold: str, answer: str) -> str:
    r"""Name an answer's arbitrary integer as the gold does: ``\frac{\pi}{2}+k\pi`` is ``\frac{\pi}{2}+n\pi``."""
    ours, theirs = set(_INTEGER_NAME.findall(answer)), set(_INTEGER_NAME.findall(gold))
    periodic = min(text.count(r"\pi") for text in (answer, gold)) > 1
    if len(ours) == len(theirs) == 1 and ours != theirs and (periodic or _INTEGERS.search(answer + gold)):
        return _INTEGER_NAME.sub(theirs.pop(), answer)
    return answer


def _compare_groups(ours: Group, theirs: Group, leaf: Leaf, answer: str, gold: str) -> bool | None:
    if len(ours.items) > MAX_ITEMS or len(theirs.items) > MAX_ITEMS:
        return None
    ours, theirs = _regrouped(ours, theirs), _regrouped(theirs, ours)
    if ours.opening == theirs.opening == "u":
        return _unordered(ours.items, theirs.items, leaf) or leaf(answer, gold)
    related = [any(map(RELATION.search, group.items)) for group in (ours, theirs)]
    if (ours.opening == "u") != (theirs.opening == "u") or any(related):
        return (all(related) and _unordered(ours.items, theirs.items, leaf)) or leaf(answer, gold)
    if ours.unordered and theirs.unordered:
        ours, theirs = _unnumbered(ours, theirs), _unnumbered(theirs, ours)
        mine, reference = (expand_signs(equations.shared_label(group.items)) for group in (ours, theirs))
        names = equations.labels(mine), equations.labels(reference)
        if (names[0] is None) != (names[1] is None):  # only one names its parts: then their order is all there is
            return _ordered(mine, reference, leaf)
        together = _unordered(mine, reference, leaf)
        if together is False and len(reference) == 2 * len(mine):
            return _unordered(expand_signs(ours.items, independent=True), reference, leaf)
        return together
    if len(ours.items) != len(theirs.items):
        return False
    brackets = [group.opening + group.closing for group in (ours, theirs)]
    if (ours.may_be_interval or theirs.may_be_interval) and brackets[0] != brackets[1]:
        return False
    if len(ours.items) == 1:
        return compare(ours.items[0], theirs.items[0], leaf)
    return _ordered(ours.items, theirs.items, leaf)


def _unnumbered(ours: Group, theirs: Group) -> Group:
    """Read ``x_1=5, x_2=7`` as two values of x where the other side calls both x."""
    names = [_NUMBERED.match(item) for item in ours.items]
    bases = {name[1] for name in names if name}
    if None in names or len(bases) != 1 or {item.partition("=")[0].strip() for item in theirs.items} != bases:
        return ours
    return replace(ours, items=tuple(_NUMBERED.sub(r"\1=", item) for item in ours.items))


def _regrouped(ours: Group, theirs: Group) -> Group:
    """Read ``p=5,q=2,p=7,q=2`` as two pairs where the other side has pairs: ``p=5,q=2;p=7,q=2``."""
    sizes = {len(split_top_level(item, (",",))) for item in theirs.items}
    if ours.opening or theirs.opening or len(sizes) != 1 or not all("=" in item for item in ours.items):
        return ours
    size = sizes.pop()
    if size == 1 or len(ours.items) != size * len(theirs.items):
        return ours
    return Group("", "", tuple(",".join(ours.items[start : start + size]) for start in range(0, len(ours.items), size)))


def _ordered(ours: Sequence[str], theirs: Sequence[str], leaf: Leaf) -> bool | None:
    if len(ours) != len(theirs):
        return False
    return _unless(False, (compare(mine, reference, leaf) for mine, reference in zip(ours, theirs, strict=True)))


def _unordered(ours: Sequence[str], theirs: Sequence[str], leaf: Leaf) -> bool | None:
    """Compare two lists as sets: each item of either is equal to an item of the other."""
    mine, references = ({compact(item): item for item in items} for items in (ours, theirs))
    larger = max(mine, references, key=len).values()
    if len(mine) != len(references) and all(decide(*pair) is False for pair in combinations(larger, 2)):
        return False  # one value more than the other has
    unmatched = [item for spelling, item in mine.items() if spelling not in references]
    missed = [item for spelling, item in references.items() if spelling not in mine]
    if max(len(unmatched), len(missed)) > MAX_UNMATCHED:
        return None

    def has_equal(pairs: Iterable[tuple[str, str]]) -> bool | None:
        likely_first = sorted(pairs, key=lambda pair: not decide(*pair))
        return _unless(True, (compare(*pair, leaf) for pair in likely_first))

    return _unless(
        False,
        chain(
            (has_equal((item, reference) for reference in references.values()) for item in unmatched),
            (has_equal((item, reference) for item in mine.values()) for reference in missed),
        ),
    )


def _unless(decisive: bool, verdicts: Iterable[bool | None]) -> bool | None:
    """The verdict on all (``decisive`` is False) or on any (True); None where an unknown one could decide it."""
    unknown = False
    for verdict in verdicts:
        if verdict is decisive:
            return decisive
        unknown = unknown or verdict is None
    return None if unknown else not decisive


def _compare_equations(ours: list[str], theirs: list[str], answer: str, gold: str, leaf: Leaf) -> bool | None:
    """Compare by the sides of equations, where at least one of the two answers is one."""
    ours, theirs = equations.in_order(ours, theirs)
    if len(ours) > 1 and None not in (integers := {canonical_integer(side) for side in ours}) and len(integers) > 1:
        return False  # ``8 = 7`` is none of the two
    if equations.is_label(theirs[-1]) and not equations.is_label(theirs[0]):
        theirs = theirs[::-1]  # ``2 = x``
    if len(theirs) == 1 and equations.is_condition(ours):
        return False
    if len(theirs) == 1:  # the last side of an equation; the first one of ``7 = n``
        named_last = equations.is_label(ours[-1]) and not equations.is_label(ours[0])
        return compare(ours[0] if named_last else ours[-1], gold, leaf)
    if len(ours) == 1:
        labelled = equations.is_label(theirs[0]) or not equations.has_letters(gold)
        return compare(answer, theirs[-1], leaf) if labelled else leaf(answer, gold)
    if variables := equations.function_variables(ours, theirs):
        mine, other = (re.compile(rf"(?<![A-Za-z\\]){variable}(?![A-Za-z])") for variable in variables)
        if not other.search(ours[-1]):
            ours = [mine.sub(variables[1], side) for side in ours]
    if len(theirs) > 2 and all(map(equations.is_label, theirs)):  # a = b = c
        return _unordered(ours, theirs, leaf)
    if equations.is_label(theirs[0]) and compact(ours[0]) == compact(theirs[0]):
        return compare(ours[-1], theirs[-1], leaf)
    return leaf(answer, gold)


def _without_approximation(text: str) -> str:
    r"""Drop ``\approx 0.577`` after an exact value; after a bare name it stands for ``=``."""
    match = _APPROXIMATELY.search(text)
    if match is None:
        return text
    before, after = text[: match.start()].strip(), text[match.end() :].strip()
    if before and "=" not in before and equations.is_label(before):
        return f"{before} = {after}"
    return before or after
