r"""Values that their words decide: several units, opposites, remainders and dates.

``5\text{ ft }6\text{ in}`` is a sum in a common unit, ``12\text{ R }3`` a quotient and a remainder; none is a product.
"""

import re
from fractions import Fraction

from evals.grading import languages
from evals.grading.exact import plain_number
from evals.grading.normalisation import normalise
from evals.grading.remarks import FONT

_NUMBER = r"\$?-?\d[\d,]*(?:\.\d+)?(?:\s+\d+/\d+|/\d+)?"
_PART = re.compile(
    rf"\s*(?:,|\band\b|,\s*and\b)?\s*(?P<number>{_NUMBER})[\s-]*(?P<unit>[A-Za-z]+(?: remainder| of)*|['\"])?\.?"
)
_DRESS = re.compile(rf"{FONT}|\\(?:[,;:! ]|q?quad(?![A-Za-z]))|[${{}}~\s]|\\(?=\$)")
_REMAINDER = re.compile(r"r|rem|remainder|with (?:a )?remainder(?: of)?", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NO_UNIT = re.compile(rf"{languages.QUANTITIES}|times|over|to|or|by|than|with", re.IGNORECASE)
_MIXED = re.compile(r"(\d{1,9}) and (\d{1,9}\s?/\s?\d{1,9})")  # 20 and 1/2
_DATE = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\6(\d{4})")


def decide_quantities(answer: str, gold: str) -> bool | None:
    """Compare two answers by their words, where these decide; None where they do not."""
    ours, theirs = _DRESS.sub(" ", answer).strip(), _DRESS.sub(" ", gold).strip()
    for mixed, other in ((_MIXED.fullmatch(ours), gold), (_MIXED.fullmatch(theirs), answer)):
        if mixed and (number := plain_number(normalise(other))):
            return number == plain_number(f"{mixed[1]} {mixed[2]}")
    dates = [
        date and [int(field) for field in re.findall(r"\d+", date[0])] for date in map(_DATE.fullmatch, (ours, theirs))
    ]
    if any(dates):
        return dates[0] == dates[1]
    words, others = ({word.lower() for word in _WORD.findall(side)} for side in (ours, theirs))
    own, foreign = " ".join(words - others), " ".join(others - words)
    if (
        own
        and foreign
        and any(_name(own, foreign, *pair) or _name(foreign, own, *pair) for pair in languages.OPPOSITES)
    ):
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


def _name(words: str, others: str, one: str, other: str) -> bool:
    """Return whether the words have the one word of a pair, and the others its opposite."""
    return bool(re.search(rf"\b(?:{one})\b", words) and re.search(rf"\b(?:{other})\b", others))


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
        if unit not in ("", "r") and (_NO_UNIT.fullmatch(unit) or not (known or len(unit) > 3)):
            return None
        parts.append((number.value, unit if known else unit.lower().rstrip("s")))
        position = match.end()
    return parts if len(parts) == 1 or all(unit for _, unit in parts[:-1]) else None


def _in_one_unit(parts: list[tuple[Fraction, str]]) -> list[Fraction] | None:
    """The parts in the smallest unit of a measure that has all their units; None if none has."""
    for measure in languages.MEASURES:
        factors = [
            next((size for pattern, size in measure.items() if re.fullmatch(pattern, unit)), None) for _, unit in parts
        ]
        if None not in factors:
            return [value * Fraction(size or 0) for (value, _), size in zip(parts, factors, strict=True)]
    return None
