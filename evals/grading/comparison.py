r"""Comparing two answers part by part: lists, sets, tuples, intervals, matrices and equations.

``leaf`` compares what has no parts: the exact rules in the calling process, algebra in a worker; None: it cannot tell.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations

from evals.grading import exact, languages
from evals.grading.exact import Group, compact, decide, expand_signs, plain_number, split_group, split_top_level
from evals.grading.normalisation import RELATION, normalise
from evals.grading.remarks import FONT, NAMES, letters, without_unit_symbols

Leaf = Callable[[str, str], bool | None]

MAX_ITEMS = 200
MAX_UNMATCHED = 30  # items of two unordered lists, spelled differently, that are compared each with each

_MEMBER = re.compile(r"^\s*\\?[A-Za-z](?:_\{?\w+\}?)?\s*\\in(?![a-zA-Z])\s*")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|sim|doteq)(?![a-zA-Z])")
_REMARK = re.compile(  # a condition, a modulus
    r"^\(\s*[A-J]\s*\)\s+(?=[\d\\])|(?<=\d)\s+[ap]m$|(?<=[\w})])\s*,?\s*(?:\(?\\pmod\s*\{?\w+\}?\)?|\(\s*\\?mod\s+\w+\s*\)"
    r"|\(?(?:\\forall\s*)?[a-z]\s*\\in\s*\\math\w+\s*\{?\s*[ZNQ]\s*\}?\s*(?:[_^]\s*(?:\{\s*)?[+*0>]\s*\}?)?\)?"
    r"|(?<=\s)(?:for|where|when|if|with)\s(?=.*(?<![A-Za-z])[A-Za-z](?![A-Za-z])|.*\b(?:all|any|every|integers?)\b)(?!.*\b(?:otherwise|else|probability|means?|not|were)\b)[^,;]+)$",
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
_FUNCTION = re.compile(r"(\\?[A-Za-z]+)\(([a-z])\)")
_LETTER_COMMAND = re.compile(
    r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|varphi|omega|angle|overline|triangle|sigma|rho|tau|epsilon)"
)
_CALL = re.compile(r"\\?[A-Za-z]+\s*\([^()]*\)")
_VALUE_OF = re.compile(r"(?:\\Pr|(?:\\math\w+\s*)?\{?[PE]\}?|[f-hF-H])\s*\([^()]*\)")  # f(2), P(X=1)
_NOT = re.compile(r"\bnot\b", re.IGNORECASE)
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\w)")
_NUMBER = r"\$?-?\d[\d,]*(?:\.\d+)?(?:\s+\d+/\d+|/\d+)?"
_PART = re.compile(
    rf"\s*(?:,|\band\b|,\s*and\b)?\s*(?P<number>{_NUMBER})[\s-]*(?:,\s*(?=rem))?"
    r"(?P<unit>[A-Za-z]+(?: remainder| of)*|''|['\"])?\.?"
)
_DRESS = re.compile(rf"{FONT}|\\(?:[,;:! ]|q?quad(?![A-Za-z]))|[${{}}~\s]|\\(?=\$)|quotient(?: of| is|:)?")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{(\d+)\}\s*\{(\d+)\}|(\d)(\d))")
_DOLLARS = re.compile(r"\\?\$\s*(\d[\d,]*(?:\.\d+)?)")
_REMAINDER = re.compile(r"r|rem|remainder|with (?:a )?remainder(?: of)?", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NO_UNIT = re.compile(rf"(?!quarters?$)(?:{languages.QUANTITIES}|{NAMES}|times|over|by|than|with)", re.IGNORECASE)
_MIXED = re.compile(r"(\d{1,9})\s+and\s+(\d{1,9}\s?/\s?\d{1,9})")  # 20 and 1/2
_DATE = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\6(\d{4})")


def compare(answer: str, gold: str, leaf: Leaf) -> bool | None:
    """Compare two normalised answers, part by part; ``leaf`` compares two that have no parts."""
    if not answer or not gold:
        return False
    if (certain := decide(answer, gold)) is not None:
        return certain
    if exact.is_bracketed(answer) != exact.is_bracketed(gold):
        return False
    answer = _in_the_names_of(gold, answer)
    answer, gold = (_OVER_REALS.sub("", _without_approximation(_MEMBER.sub("", side))) for side in (answer, gold))
    if bool(_REMARK.search(answer)) != bool(_REMARK.search(gold)):  # which the other side leaves to the question
        return compare(_REMARK.sub("", answer).strip(), _REMARK.sub("", gold).strip(), leaf)
    if plain_number(gold) is not None:
        twice = _TWICE.fullmatch(answer)  # ``\frac12 (50%)``
        repeats = twice and decide(twice["value"], twice["other"]) and plain_number(twice["other"])
        answer = twice["value"] if twice and repeats else without_unit_symbols(answer)
    elif plain_number(answer) is not None:
        gold = without_unit_symbols(gold)
    for form, name in ((RELATION, _RELATED), (_TUPLE, _POINT)):  # ``> 3`` beside ``x > 3``, ``(3,4)`` beside ``P(3,4)``
        if form.match(answer) or form.match(gold):
            answer, gold = name.sub("", answer), name.sub("", gold)
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
        if any(map(_NOT.search, sides[:-1])):
            return False
        if len(gold_sides) > 1 or not RELATION.search(_VALUE_OF.sub("", answer)):
            return _compare_equations(sides, gold_sides, answer, gold, leaf)
    rows, gold_rows = exact.matrix_entries(answer), exact.matrix_entries(gold)
    if rows is not None and gold_rows is not None:
        same_shape = [len(row) for row in rows] == [len(row) for row in gold_rows]
        return same_shape and _ordered(list(chain(*rows)), list(chain(*gold_rows)), leaf)
    for vector, other in ((rows, gold_group), (gold_rows, group)):
        if vector and other and other.opening == "(" and other.closing == ")" and min(len(vector), len(vector[0])) == 1:
            entries = list(chain(*vector))
            return _ordered(entries, other.items, leaf) if vector is rows else _ordered(other.items, entries, leaf)
    if beside := group or gold_group:
        groups = group or Group.of_list(answer, beside), gold_group or Group.of_list(gold, beside)
        return _compare_groups(*groups, leaf, answer, gold)
    signed, gold_signed = expand_signs((answer,)), expand_signs((gold,))
    if len(signed) > 1 or len(gold_signed) > 1:
        return _unordered(signed, gold_signed, leaf)
    certain = decide(answer, gold)
    return certain if certain is not None else leaf(answer, gold)


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
    if {ours.opening, theirs.opening} <= {"", "{"}:  # what is in parentheses or brackets has an order
        ours, theirs = _unnumbered(ours, theirs), _unnumbered(theirs, ours)
        mine, reference = (expand_signs(_shared_label(group.items)) for group in (ours, theirs))
        sides = ((split_top_level(item, ("=",)) for item in items) for items in (mine, reference))
        named = [len({compact(parts[0]) for parts in each if len(parts) > 1}) > 1 for each in sides]
        if named[0] != named[1]:  # only one gives its parts different names: then their order is all there is
            return _ordered(mine, reference, leaf)
        together = _unordered(mine, reference, leaf)
        if together is False and len(reference) == 2 * len(mine):
            return _unordered(expand_signs(ours.items, independent=True), reference, leaf)
        return together
    if len(ours.items) != len(theirs.items):
        return False
    brackets = [group.opening + group.closing for group in (ours, theirs)]
    if len(ours.items) == 2 and brackets[0] != brackets[1] and set("[]") & set("".join(brackets)):  # an interval
        return False
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
    if len(ours) == 2 and (len(theirs) == 1 or _named(theirs)):
        ours, theirs = _named(ours) or ours, _named(theirs) or theirs
    integers = {exact.canonical_integer(side) for side in ours}
    if len(integers) > 1 and None not in integers:
        return False  # ``8 = 7`` is none of the two
    if _is_label(theirs[-1]) and not _is_label(theirs[0]):
        theirs = theirs[::-1]  # ``2 = x``
    if len(theirs) == 1:  # the last side of an equation; the first one of ``7 = n``
        named_last = _is_label(ours[-1]) and not _is_label(ours[0])
        return not _is_condition(ours) and compare(ours[0] if named_last else ours[-1], gold, leaf)
    if len(ours) == 1:
        labelled = _is_label(theirs[0]) or not _has_letters(gold)
        return compare(answer, theirs[-1], leaf) if labelled else leaf(answer, gold)
    functions = [_FUNCTION.fullmatch(compact(sides[0])) for sides in (ours, theirs)]
    if (one := functions[0]) and (other := functions[1]) and one[1] == other[1]:  # f(n) = ... and f(x) = ...
        variable, renamed = (rf"(?<![A-Za-z\\]){function[2]}(?![A-Za-z])" for function in (one, other))
        if not re.search(renamed, ours[-1]):
            ours = [re.sub(variable, other[2], side) for side in ours]
    if len(theirs) > 2 and all(map(_is_label, theirs)):  # a = b = c
        return _unordered(ours, theirs, leaf)
    if _is_label(theirs[0]) and compact(ours[0]) == compact(theirs[0]):
        return compare(ours[-1], theirs[-1], leaf)
    return leaf(answer, gold)


def _without_approximation(text: str) -> str:
    r"""Drop ``\approx 0.577`` after an exact value; after a bare name it stands for ``=``."""
    match = _APPROXIMATELY.search(text)
    if match is None:
        return text
    before, after = text[: match.start()].strip(), text[match.end() :].strip()
    if before and "=" not in before and _is_label(before):
        return f"{before} = {after}"
    return before or after


def _is_label(text: str) -> bool:
    r"""Return whether the left side of an equation only names the right one: ``x``, ``f(x)``, ``|AB|``."""
    bare = _SUBSCRIPT.sub("", text)
    if _VALUE_OF.fullmatch(text.strip()):
        return True
    if _NOT.search(bare):
        return False
    return not re.search(r"[\d+\-^]|\\(?:pi|sqrt|sum|int|prod|lim)(?![a-zA-Z])", bare) and _has_letters(bare)


def _has_letters(text: str) -> bool:
    """Return whether a formula has a variable, functions and other commands left out."""
    return bool(re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", text)) or _LETTER_COMMAND.search(text))


def _is_condition(sides: Sequence[str]) -> bool:
    """Return whether an equation is to be solved (``2x = 5``, ``... = 0``), instead of naming its last side's value."""
    left, right = _CALL.sub("", _SUBSCRIPT.sub("", sides[0])), sides[-1]
    if len(sides) != 2 or not _has_letters(left) or _is_label(sides[0]) or _is_label(right):
        return False
    variables = letters(left) | set(_LETTER_COMMAND.findall(left))
    return exact.canonical_integer(right) == "0" or (len(variables) == 1 and bool(re.search(r"\d|\^", left)))


def _named(sides: Sequence[str]) -> list[str] | None:
    """The values of ``(y,x)=(2,1)`` in the order of x, y, z or a, b, c; None for anything else."""
    names, values = ((group.items if (group := split_group(side)) else ()) for side in (sides[0], sides[-1]))
    letters_alone = len(set(names)) == len("".join(names)) == len(names) == len(values)
    if len(sides) != 2 or not names or not letters_alone or "".join(sorted(names)) not in "xyz abcd":
        return None
    return [f"({','.join(value for _, value in sorted(zip(names, values, strict=True)))})"]


def _shared_label(items: Sequence[str]) -> Sequence[str]:
    """``x = 2, 3`` names both: drop the name."""
    sides = [split_top_level(item, ("=",)) for item in items]
    if items and len(sides[0]) == 2 and _is_label(sides[0][0]) and all(len(parts) == 1 for parts in sides[1:]):
        return [sides[0][1], *items[1:]]
    return items


def decide_quantities(answer: str, gold: str) -> bool | None:
    r"""Compare two answers by their words, where these decide; None where they do not.

    ``5\text{ ft }6\text{ in}`` is a sum in a common unit, ``12\text{ R }3`` a quotient and a remainder.
    """
    ours, theirs = (_plain(side, money="cent" in answer + gold) for side in (answer, gold))
    for mixed, other in ((_MIXED.fullmatch(ours), gold), (_MIXED.fullmatch(theirs), answer)):
        if mixed and (number := plain_number(normalise(other))):
            return number == plain_number(f"{mixed[1]} {mixed[2]}")
    dates = [_DATE.fullmatch(side) and list(map(int, re.findall(r"\d+", side))) for side in (ours, theirs)]
    if any(dates):
        return dates[0] == dates[1]
    words, others = ({word.lower() for word in _WORD.findall(side)} for side in (ours, theirs))
    own, foreign = " ".join(words - others), " ".join(others - words)
    if own and foreign and (_are_opposites(own, foreign) or _are_opposites(foreign, own)):
        return False
    parts, reference = _parts(ours), _parts(theirs)
    if parts is None or reference is None or max(len(parts), len(reference)) < 2:
        return None
    if (sums := _in_one_unit([*parts, *reference])) is not None:
        return sum(sums[: len(parts)]) == sum(sums[len(parts) :])
    compound = parts if len(parts) > 1 else reference
    if min(len(parts), len(reference)) < 2 and compound[0][1] != "r" and _in_one_unit(compound) is None:
        return None
    return sorted(parts) == sorted(reference)


def _plain(text: str, money: bool) -> str:
    """The text without fonts, with fractions on the line and, where ``money`` is in several units, with dollars."""
    text = _FRACTION.sub(r" \1\3/\2\4 ", text)
    return _DRESS.sub(" ", _DOLLARS.sub(r"\1 dollars ", text) if money else text).strip()


def _are_opposites(words: str, others: str) -> bool:
    """Return whether the words have the first of a pair, and the others the second."""
    pairs = ((re.search(rf"\b(?:{one})\b", words), other) for one, other in languages.OPPOSITES)
    return any(found and re.search(rf"\b(?:{other})\b", others) for found, other in pairs)


def _parts(text: str) -> list[tuple[Fraction, str]] | None:
    """Numbers and the words behind them; None if the text is anything else."""
    parts: list[tuple[Fraction, str]] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        number = match and plain_number(match["number"].lstrip("$"))
        if not match or number is None:
            return None
        unit = match["unit"] or ""
        unit = "r" if _REMAINDER.fullmatch(unit) else unit
        known = any(re.fullmatch(pattern, unit) for measure in languages.MEASURES for pattern in measure)
        if unit not in ("", "r") and not known and (_NO_UNIT.fullmatch(unit) or len(unit) < 3):
            return None
        parts.append((number.value, unit if known else unit.lower().rstrip("s")))
        position = match.end()
    return parts if len(parts) == 1 or all(unit for _, unit in parts[:-1]) else None


def _in_one_unit(parts: list[tuple[Fraction, str]]) -> list[Fraction] | None:
    """The parts in the smallest unit of a measure that has all their units; None if none has."""
    for measure in languages.MEASURES:
        sizes = [[size for pattern, size in measure.items() if re.fullmatch(pattern, unit)] for _, unit in parts]
        if all(sizes):
            return [value * Fraction(size[0]) for (value, _), size in zip(parts, sizes, strict=True)]
    return None
