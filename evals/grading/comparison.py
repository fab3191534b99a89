r"""Comparing two answers part by part: lists, sets, tuples, intervals, matrices and equations.

The parts are compared by whatever ``leaf`` is given: the exact rules in the calling process, algebra in a worker.
Verdicts are three-valued: True, False, or None where ``leaf`` could not tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evals.grading.exact import compact, decide
from evals.grading.structure import Group, as_list, expand_signs, matrix_entries, split_group, split_top_level

Leaf = Callable[[str, str], bool | None]

MAX_ITEMS = 200
MAX_UNMATCHED = 30
"""Items of two unordered lists, spelled differently, that are compared each with each."""

_RELATION = re.compile(r"<|>|\\(?:le|ge|neq)(?![a-zA-Z])")
_MEMBER = re.compile(r"^\s*\\?[A-Za-z](?:_\{?\w+\}?)?\s*\\in(?![a-zA-Z])\s*")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|sim|doteq)(?![a-zA-Z])")
_REMARK = re.compile(
    r"^\(\s*[A-J]\s*\)\s+(?=[\d\\])|(?<=\d)\s+[ap]m$|(?<=[\w})])\s*,?\s*(?:\(?\\pmod\s*\{?\w+\}?\)?|\(\s*\\?mod\s+\w+\s*\)"
    r"|\(?[a-z]\s*\\in\s*\\math\w+\s*\{?\s*[ZNQ]\s*\}?\s*(?:[_^]\s*(?:\{\s*)?[+*0>]\s*\}?)?\)?"
    r"|(?<=\s)(?:for|where|when|if|with)\s(?!.*\b(?:otherwise|else)\b)[^,;]+)$",
    re.DOTALL,
)
_FUNCTION = re.compile(r"(\\?[A-Za-z]+)\(([a-z])\)")
_NOT = re.compile(r"\bnot\b", re.IGNORECASE)
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\w)")


def compare(answer: str, gold: str, leaf: Leaf) -> bool | None:
    """Compare two normalised answers, part by part.

    Args:
        answer: the answer, from :func:`evals.grading.normalisation.normalise`.
        gold: the gold answer, normalised too.
        leaf: compares two answers that have no parts.
    """
    if not answer or not gold:
        return False
    exact = decide(answer, gold)
    if exact is not None:
        return exact
    answer, gold = _MEMBER.sub("", answer), _MEMBER.sub("", gold)
    answer, gold = _without_approximation(answer), _without_approximation(gold)
    remarks = _REMARK.search(answer), _REMARK.search(gold)
    if (remarks[0] is None) != (
        remarks[1] is None
    ):  # a condition or modulus that the other side leaves to the question
        return compare(_REMARK.sub("", answer).strip(), _REMARK.sub("", gold).strip(), leaf)
    groups = split_group(answer), split_group(gold)
    proportions = split_top_level(answer, (":",)), split_top_level(gold, (":",))
    if max(map(len, proportions)) > 2 and "=" not in answer + gold:
        return _compare_proportions(*proportions, leaf)
    if (equation := _compare_equation(answer, gold, groups, leaf)) is not None:
        return equation.verdict
    matrices = matrix_entries(answer), matrix_entries(gold)
    if matrices[0] is not None and matrices[1] is not None:
        return _compare_matrices(matrices[0], matrices[1], leaf)
    if groups[0] is None and groups[1] is None:
        ours, theirs = expand_signs((answer,)), expand_signs((gold,))
        if len(ours) == len(theirs) == 1:
            exact = decide(answer, gold)
            return exact if exact is not None else leaf(answer, gold)
        return _unordered(ours, theirs, leaf)
    return _compare_groups(groups[0] or as_list(answer), groups[1] or as_list(gold), leaf, answer, gold)


def _compare_groups(ours: Group, theirs: Group, leaf: Leaf, answer: str, gold: str) -> bool | None:
    if len(ours.items) > MAX_ITEMS or len(theirs.items) > MAX_ITEMS:
        return None
    if ours.opening == theirs.opening == "u":
        return _unordered(ours.items, theirs.items, leaf) or leaf(answer, gold)
    if (ours.opening == "u") != (theirs.opening == "u") or _has_relation(ours) or _has_relation(theirs):
        if _has_relation(ours) and _has_relation(theirs) and _unordered(ours.items, theirs.items, leaf):
            return True
        return leaf(answer, gold)
    if ours.unordered and theirs.unordered:
        mine, reference = expand_signs(_shared_label(ours.items)), expand_signs(_shared_label(theirs.items))
        labels = _labels(mine), _labels(reference)
        if (labels[0] is None) != (labels[1] is None):  # only one names its parts: then their order is all there is
            return _ordered(mine, reference, leaf)
        return _unordered(mine, reference, leaf)
    if len(ours.items) != len(theirs.items):
        return False
    if (ours.may_be_interval or theirs.may_be_interval) and ours.brackets != theirs.brackets:
        return False
    if len(ours.items) == 1:
        return compare(ours.items[0], theirs.items[0], leaf)
    return _ordered(ours.items, theirs.items, leaf)


def _ordered(ours: Sequence[str], theirs: Sequence[str], leaf: Leaf) -> bool | None:
    if len(ours) != len(theirs):
        return False
    unknown = False
    for mine, reference in zip(ours, theirs, strict=True):
        verdict = compare(mine, reference, leaf)
        if verdict is False:
            return False
        unknown = unknown or verdict is None
    return None if unknown else True


def _unordered(ours: Sequence[str], theirs: Sequence[str], leaf: Leaf) -> bool | None:
    """Match each of ours with one of theirs; equality is transitive, so that the first partner found will do."""
    mine, remaining = _distinct(ours), _distinct(theirs)
    if len(mine) != len(remaining):
        return False
    spelled_alike = mine.keys() & remaining.keys()
    unmatched = [item for spelling, item in mine.items() if spelling not in spelled_alike]
    references = [item for spelling, item in remaining.items() if spelling not in spelled_alike]
    if len(unmatched) > MAX_UNMATCHED:
        return None
    unknown = False
    for item in unmatched:
        verdicts: list[bool | None] = []
        for reference in sorted(references, key=lambda other: not decide(item, other)):
            verdicts.append(compare(item, reference, leaf))
            if verdicts[-1]:
                references.remove(reference)
                break
        else:
            if None not in verdicts:
                return False
            unknown = True
    return None if unknown else True


def _distinct(items: Sequence[str]) -> dict[str, str]:
    """The items without repetitions, by spelling: a list of solutions is a set."""
    return {compact(item): item for item in items}


@dataclass(frozen=True, slots=True)
class _EquationVerdict:
    verdict: bool | None


def _compare_equation(
    answer: str, gold: str, groups: tuple[Group | None, Group | None], leaf: Leaf
) -> _EquationVerdict | None:
    """Compare where at least one side is one equation (not a list of them); None if neither is."""
    ours, theirs = (
        split_top_level(text, ("=",)) if group is None else [text]
        for text, group in zip((answer, gold), groups, strict=True)
    )
    if len(ours) == len(theirs) == 1 or not all(ours) or not all(theirs):
        return None
    if any(map(_NOT.search, ours[:-1])):
        return _EquationVerdict(False)
    if len(theirs) == 1:
        return None if _RELATION.search(answer) else _EquationVerdict(compare(_stands_for(ours), gold, leaf))
    if len(ours) == 1:
        if is_label(theirs[0]) or not _has_letters(gold):
            return _EquationVerdict(compare(answer, theirs[-1], leaf))
        return _EquationVerdict(leaf(answer, gold))
    ours = list(_renamed(ours, theirs))
    if is_label(theirs[0]) and _same_label(ours, theirs):
        return _EquationVerdict(compare(ours[-1], theirs[-1], leaf))
    return _EquationVerdict(leaf(answer, gold))


def _stands_for(sides: Sequence[str]) -> str:
    """The last side of an equation; the first one of ``7 = n``."""
    return sides[0] if is_label(sides[-1]) and not is_label(sides[0]) else sides[-1]


def _same_label(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Return whether two equations name the same thing; ``W(x)`` and ``W(n)`` do if no value depends on x or n."""
    if compact(ours[0]) == compact(theirs[0]):
        return True
    functions = _FUNCTION.fullmatch(compact(ours[0])), _FUNCTION.fullmatch(compact(theirs[0]))
    if functions[0] is None or functions[1] is None or functions[0][1] != functions[1][1]:
        return False
    return functions[0][2] not in ours[-1] and functions[1][2] not in theirs[-1]


def _renamed(ours: Sequence[str], theirs: Sequence[str]) -> Sequence[str]:
    """``f(n) = n + 1`` with the variable of the other side's ``f(x) = x + 1``; as it is where that is no renaming."""
    functions = _FUNCTION.fullmatch(compact(ours[0])), _FUNCTION.fullmatch(compact(theirs[0]))
    if functions[0] is None or functions[1] is None or functions[0][1] != functions[1][1]:
        return ours
    variable, wanted = (re.compile(rf"(?<![A-Za-z\\]){function[2]}(?![A-Za-z])") for function in functions if function)
    if wanted.search(ours[-1]):
        return ours
    return [variable.sub(functions[1][2], side) for side in ours]


def is_label(text: str) -> bool:
    r"""Return whether the left side of an equation only names the right one: ``x``, ``f(x)``, ``|AB|``."""
    bare = _SUBSCRIPT.sub("", text)
    if _NOT.search(bare):
        return False
    return not re.search(r"[\d+\-^]|\\(?:pi|sqrt|sum|int|prod|lim)(?![a-zA-Z])", bare) and _has_letters(bare)


def _has_letters(text: str) -> bool:
    return (
        re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", text)) is not None
        or re.search(
            r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|varphi|omega|angle|overline|triangle|sigma|rho|tau|epsilon)",
            text,
        )
        is not None
    )


def _labels(items: Sequence[str]) -> frozenset[str] | None:
    """The names that the items are given, if there are at least two different ones."""
    names = frozenset(compact(sides[0]) for item in items if len(sides := split_top_level(item, ("=",))) > 1)
    return names if len(names) > 1 else None


def _shared_label(items: Sequence[str]) -> Sequence[str]:
    """``x = 2, 3`` names both: drop the name."""
    sides = [split_top_level(item, ("=",)) for item in items]
    if len(sides[0]) == 2 and is_label(sides[0][0]) and all(len(parts) == 1 for parts in sides[1:]):
        return [sides[0][1], *items[1:]]
    return items


def _has_relation(group: Group) -> bool:
    return any(_RELATION.search(item) for item in group.items)


def _without_approximation(text: str) -> str:
    r"""Drop ``\approx 0.577`` after an exact value; after a bare name it stands for ``=``."""
    match = _APPROXIMATELY.search(text)
    if match is None:
        return text
    before, after = text[: match.start()].strip(), text[match.end() :].strip()
    if before and "=" not in before and is_label(before):
        return f"{before} = {after}"
    return before or after


def _compare_proportions(ours: Sequence[str], theirs: Sequence[str], leaf: Leaf) -> bool | None:
    """Compare ``2:3:4`` with ``4:6:8``, by the ratio of each part to the first."""
    ratios = [[rf"\frac{{{part}}}{{{parts[0]}}}" for part in parts[1:]] for parts in (ours, theirs)]
    return _ordered(ratios[0], ratios[1], leaf)


def _compare_matrices(
    ours: tuple[tuple[str, ...], ...], theirs: tuple[tuple[str, ...], ...], leaf: Leaf
) -> bool | None:
    if [len(row) for row in ours] != [len(row) for row in theirs]:
        return False
    return _ordered([entry for row in ours for entry in row], [entry for row in theirs for entry in row], leaf)
