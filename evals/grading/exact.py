r"""Decisions that need no algebra: equal spellings, numbers, words; and the parts of an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, product

MAX_DIGITS = 1_000  # of a number that is turned into a Fraction; longer ones are compared digit by digit
MAX_EXPONENT = 400
ROUNDED_DECIMALS = 6
ROUNDED_DIGITS = 6
DIGITS_OF_DOUBLES = range(16, 18)
DOUBLE_ERROR = Fraction(1, 2**51)  # relative; a few roundings of an IEEE 754 double
_SHORTEST_WORD = 3

_INTEGER = re.compile(r"([-+]?)\s*(\d+|\d{1,3}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+)")
_DECIMAL = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)?\.(\d+)|(\d{1,3}(?:,\d{3})+|\d+)\.?")
_TIGHT = re.compile(r",\d")
_DECIMAL_COMMA = re.compile(r"-?(?:0,\d+|\d+,(?:\d{2}|\d{4,}))")
_ONE_DECIMAL = re.compile(r"-?\d+,\d")
_QUOTIENTS = (  # 3/4, 2 3/4, 2\frac{3}{4}
    re.compile(r"()(-?\d[\d.]*)\s*/\s*(-?\d[\d.]*)"),
    re.compile(r"(\d+)\s+(\d+)\s*/\s*(\d+)"),
    re.compile(r"(\d+)?\s*\\frac\s*\{\s*(-?[\d.]+)\s*\}\s*\{\s*(-?[\d.]+)\s*\}"),
)
_SCIENTIFIC = re.compile(r"(?:([\d.]+)\s*(?:\\times|\\cdot)\s*)?10\s*\^\s*(?:\{\s*([-+]?\d+)\s*\}|(\d))")
_PRIMED = re.compile(r"([A-Za-z\d)}\]!])\s*(?:\^\s*\{?\s*)?('+|(?:\\prime(?![a-zA-Z])\s*)+)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_LONG_WORD = re.compile(rf"[A-Za-z]{{{_SHORTEST_WORD},}}|(?i:no)")
_PRODUCT = re.compile(
    r"[A-Z][a-z]*[A-Z][A-Za-z]*[a-z]|[a-z][A-Z]|(?<![A-Za-z])[B-HJ-Zb-z]-|-[A-Za-z](?![A-Za-z])"
)  # GMm, R-r
_VERDICT = re.compile(
    r"(?is)(yes|no|true|false)\s*(?:[.,;:-]+\s|\s(?=because|since|as\b))(?!.*\b(?:yes|no|not|but|true|"
    r"false|except|unless)\b).*"
)  # a word, and the reason for it
_OPTION = re.compile(r"\(?\s*([A-Z])\s*\)?[.:]?")
_OPTION_WITH_TEXT = re.compile(r"\(\s*([A-J])\s*\)\s*[^\s,;+*/^=-](?!.*\([A-J]\)).*", re.DOTALL)
_IN_BASE = re.compile(r"\(?([0-9A-Z]+)\)?\s*_\s*(?:\{\s*(\w+)\s*\}|(\w))")
_PROPORTION = re.compile(r"(\d+)\s*:\s*(\d+)")
_TOKEN = re.compile(
    r"(?s)\\begin\{[^{}]*\}|\\end\{[^{}]*\}|\\[{}]|\\(?:langle|rangle|lvert|rvert|lfloor|rfloor|lceil|"
    r"rceil)(?![a-zA-Z])|\\[a-zA-Z]+|\\.|."
)
_DEEPER = ("(", "[", "{", r"\{", r"\begin{", r"\langle", r"\lfloor", r"\lceil")
_SHALLOWER = (")", "]", "}", r"\}", r"\end{", r"\rangle", r"\rfloor", r"\rceil")
_THOUSANDS = re.compile(r"(?:[^,]*=)?\s*-?\d{1,3}(?:,\d{3})+(?:\.\d+)?\s*")
_NAME = re.compile(r"^[^,=]*=")
_THREE_DIGITS = re.compile(r"\d{3}(?!\d)")
_BRACKETS = ((r"\{", r"\}"), (r"\langle", r"\rangle"), *product("([", ")]"), ("{", "}"))
_MATRIX = re.compile(
    r"(?s)^[(\[]?\s*\\begin\{(?P<name>[pb]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?"
    r"(?P<body>.*)\\end\{(?P=name)\}\s*[)\]]?$"
)


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number as written."""

    value: Fraction
    decimals: int | None = None  # digits after its decimal point; None if it was not written as a decimal
    digits: int = 0  # its significant digits, if it was
    percent: bool = False  # it was followed by a percent sign


def decide(answer: str, gold: str) -> bool | None:
    """Compare two normalised answers where that is certain; None where it is not."""
    spaced = ", " in answer and ", " in gold and len({bool(_TIGHT.search(side)) for side in (answer, gold)}) > 1
    integers = canonical_integer(answer), canonical_integer(gold)
    if None not in integers:
        return integers[0] == integers[1]
    if compact(answer) == compact(gold) and not spaced and not any(integers):  # ``1,000, 2`` is no ``1, 000, 2``
        return True
    if set(_PRIMED.findall(answer)) != set(_PRIMED.findall(gold)) and ("=" in answer) == ("=" in gold):
        return False  # the grammar drops primes
    for decision in (_decide_proportions(answer, gold), _decide_in_base(answer, gold)):
        if decision is not None:
            return decision
    number, reference = _beside(answer, gold), _beside(gold, answer)
    if number is not None and reference is not None:
        return same_number(number, reference)
    return _decide_words(answer, gold)


def compact(text: str) -> str:
    """The text without white space, except where that separates digits or letters from each other."""
    return re.sub(r"\s+(?=[^\w\s]|$)|(?<=[^\w\s])\s+|^\s+", "", text)


def ascii_digit(character: str) -> str:
    """A decimal digit of any script as one of ours; any other character as it is."""
    return character if character.isascii() or not character.isdecimal() else str(int(character))


def canonical_integer(text: str) -> str | None:
    """Sign and digits of an integer, without leading zeros and separators; None if the text is no integer."""
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return text.lstrip("0") or "0"
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    digits = match[2].replace(",", "").replace(" ", "")
    if not digits.isascii():
        digits = "".join(map(ascii_digit, digits))
    digits = digits.lstrip("0")
    return f"-{digits}" if digits and match[1] == "-" else digits or "0"


def _beside(text: str, other: str) -> PlainNumber | None:
    """Read a number; ``2,74`` is a decimal beside a number, and a list beside a list."""
    one_place = _ONE_DECIMAL.fullmatch(text) and "." in other
    if "," not in other and (one_place or _DECIMAL_COMMA.fullmatch(text)):
        text = text.replace(",", ".")
    return plain_number(text)


def plain_number(text: str) -> PlainNumber | None:
    """Read an integer, decimal, fraction, mixed number or power of ten; None if the text is anything else."""
    text = text.strip()
    if not text or len(text) > MAX_DIGITS:
        return None
    percent = text.endswith("%")
    if percent:
        text = text[:-1].strip()
    negative = text.startswith("-")
    body = text.lstrip("+-").strip() if text[:2] not in ("--", "+-", "-+") else text
    number = _unsigned(body)
    return number and replace(number, value=-number.value if negative else number.value, percent=percent)


def _unsigned(text: str) -> PlainNumber | None:
    if (integer := canonical_integer(text)) is not None and text[0] not in "+-":
        return PlainNumber(Fraction(int(integer)))
    if (decimal := _decimal(text)) is not None:
        return decimal
    for quotient in _QUOTIENTS:
        if match := quotient.fullmatch(text):
            ratio = _ratio(match[2], match[3])
            return ratio and PlainNumber(int(match[1] or 0) + ratio.value)
    if (match := _SCIENTIFIC.fullmatch(text)) is None:
        return None
    number, exponent = _decimal(match[1] or "1"), int(match[2] or match[3])
    if number is None or abs(exponent) > MAX_EXPONENT:
        return None
    return PlainNumber(number.value * Fraction(10) ** exponent, (number.decimals or 0) - exponent, number.digits)


def _decimal(text: str) -> PlainNumber | None:
    if not _DECIMAL.fullmatch(text):
        return None
    whole, _, fraction = text.replace(",", "").partition(".")
    value = Fraction(int((whole or "0") + fraction), 10 ** len(fraction))
    return PlainNumber(value, len(fraction), len((whole + fraction).lstrip("0")))


def _ratio(top: str, bottom: str) -> PlainNumber | None:
    try:
        return PlainNumber(Fraction(top) / Fraction(bottom))
    except (ValueError, ZeroDivisionError):
        return None


def same_number(answer: PlainNumber, gold: PlainNumber) -> bool:
    """Return whether two numbers are the same answer: equal, or one is the other correctly rounded.

    Where only one has a percent sign, it may stand for the number before the sign or for a hundredth of it.
    """
    readings = [(answer, gold)]
    if answer.percent != gold.percent:
        readings.append((_as_fraction(answer), _as_fraction(gold)))
    return any(
        ours.value == theirs.value or is_rounding_of(ours, theirs.value) or is_rounding_of(theirs, ours.value)
        for ours, theirs in readings
    )


def _as_fraction(number: PlainNumber) -> PlainNumber:
    if not number.percent:
        return number
    return PlainNumber(number.value / 100, number.decimals and number.decimals + 2, number.digits)


def is_rounding_of(number: PlainNumber, value: Fraction) -> bool:
    """Return whether a decimal is ``value`` rounded, with enough digits; a double's may be wrong in the last ones."""
    if number.decimals is None or number.decimals < ROUNDED_DECIMALS or number.digits < ROUNDED_DIGITS:
        return False
    if number.digits in DIGITS_OF_DOUBLES and abs(number.value - value) <= abs(value) * DOUBLE_ERROR:
        return True
    return 2 * abs(number.value - value) <= Fraction(1, 10**number.decimals)


def _decide_in_base(answer: str, gold: str) -> bool | None:
    """Compare numerals with a base (``204_5``) digit by digit; a base that only one side names is the question's."""
    matches = _IN_BASE.fullmatch(answer), _IN_BASE.fullmatch(gold)
    if not any(matches):
        return None
    (digits, base), (gold_digits, gold_base) = (
        (match[1], match[2] or match[3]) if match else (text, "")
        for match, text in zip(matches, (answer, gold), strict=True)
    )
    value, gold_value = _value_in_base(digits, base), _value_in_base(gold_digits, gold_base)
    if not all(matches) and value is not None and value == gold_value:
        return True  # 1010_2 is ten
    if not (digits[:1].isdigit() and gold_digits[:1].isdigit()):
        return None
    if (value is None and base.isdecimal()) or (gold_value is None and gold_base.isdecimal()):
        return False
    if digits != gold_digits:
        return False if all(matches) else None
    return base == gold_base or not all(matches)


def _value_in_base(digits: str, base: str) -> int | None:
    """The value of a numeral, of one without a base in base ten; None where it has none: ``12_b``, ``9_5``, ``x``."""
    if not digits[:1].isdigit() and base != "16":
        return None  # C_{15} may be a variable
    try:
        return int(digits, int(base or 10) or 1)
    except ValueError:
        return None


def _decide_proportions(answer: str, gold: str) -> bool | None:
    """Compare ``3:4`` with ``6:8`` or ``3/4``; times of day (``12:00``, ``1:05``) are equal only as written."""
    ours, theirs = _PROPORTION.fullmatch(answer), _PROPORTION.fullmatch(gold)
    if ours is None and theirs is None:
        return None
    if any(match and (match[2].startswith("0") or len(match[0]) > MAX_DIGITS) for match in (ours, theirs)):
        return False
    number = _ratio(ours[1], ours[2]) if ours else plain_number(answer)
    reference = _ratio(theirs[1], theirs[2]) if theirs else plain_number(gold)
    return number.value == reference.value if number and reference else None


def _words(text: str) -> list[str]:
    """The words of an answer, without case and a first article or preposition."""
    words = text.casefold().split()
    return words[1:] if len(words) > 1 and words[0] in ("a", "an", "the", "on", "in", "at") else words


def _decide_words(answer: str, gold: str) -> bool | None:
    """Compare two answers in words; option letters are compared with their case, longer words without."""
    option, reference = _OPTION.fullmatch(answer), _OPTION.fullmatch(gold)
    option = option or (_OPTION_WITH_TEXT.fullmatch(answer) if reference else None)
    reference = reference or (_OPTION_WITH_TEXT.fullmatch(gold) if option else None)
    if option and reference:
        return option[1] == reference[1]
    if (verdict := _VERDICT.fullmatch(answer)) and gold.lower() in ("yes", "no", "true", "false"):
        return bool(verdict[1].lower() == gold.lower())
    if not (_WORDS.fullmatch(answer) and _WORDS.fullmatch(gold)):
        return None
    products = any(_PRODUCT.search(text) or not _LONG_WORD.search(text) for text in (answer, gold))
    if not products and _words(answer) == _words(gold):
        return True
    spaces = " " in answer.strip(), " " in gold.strip()
    if all(spaces) or (not any(spaces) and len(answer) >= _SHORTEST_WORD and len(gold) >= _SHORTEST_WORD):
        return False  # not products of their letters
    return None


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers in one: what encloses them, and what they are."""

    opening: str  # "(", "[", "{" (a set), "u" (a union) or nothing (a bare list)
    closing: str  # the bracket at the other end
    items: tuple[str, ...]

    @classmethod
    def of_list(cls, text: str, beside: Group) -> Group:
        """Read a text beside a group: ``1,234`` is two numbers beside a tuple or a set, and one beside a list."""
        return cls("", "", tuple(filter(None, split_top_level(text, (",",) if beside.opening else ()))))


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
