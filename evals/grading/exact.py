r"""Decisions that need no algebra: equal spellings, numbers against numbers, words against words.

A decision is either certain or not made: :func:`decide` returns None for everything that needs to be worked out.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

MAX_DIGITS = 1_000  # of a number that is turned into a Fraction; longer ones are compared digit by digit
MAX_EXPONENT = 400
ROUNDED_DECIMALS = 6
ROUNDED_DIGITS = 6
DIGITS_OF_DOUBLES = range(16, 18)
DOUBLE_ERROR = Fraction(1, 2**51)  # relative; a few roundings of an IEEE 754 double
_SHORTEST_WORD = 3

_INTEGER = re.compile(r"([-+]?)\s*(\d+|\d{1,3}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+)")
_DECIMAL = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)?\.(\d+)|(\d{1,3}(?:,\d{3})+|\d+)\.?")
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
    r"(yes|no|true|false)\s*(?:[.,;:-]+\s|\s(?=because|since|as\b))(?!.*\b(?:yes|no|not|but|true|"
    r"false|except|unless)\b).*",
    re.IGNORECASE | re.DOTALL,
)  # a word, and the reason for it
_OPTION = re.compile(r"\(?\s*([A-Z])\s*\)?[.:]?")
_OPTION_WITH_TEXT = re.compile(r"\(\s*([A-J])\s*\)\s*[^\s,;+*/^=-](?!.*\([A-J]\)).*", re.DOTALL)
_IN_BASE = re.compile(r"\(?([0-9A-Z]+)\)?\s*_\s*(?:\{\s*(\w+)\s*\}|(\w))")
_PROPORTION = re.compile(r"(\d+)\s*:\s*(\d+)")


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number as written."""

    value: Fraction
    decimals: int | None = None  # digits after its decimal point; None if it was not written as a decimal
    digits: int = 0  # its significant digits, if it was
    percent: bool = False  # it was followed by a percent sign


def decide(answer: str, gold: str) -> bool | None:
    """Compare two normalised answers where that is certain; None where it is not."""
    if compact(answer) == compact(gold):
        return True
    answer_integer, gold_integer = canonical_integer(answer), canonical_integer(gold)
    if answer_integer is not None and gold_integer is not None:
        return answer_integer == gold_integer
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
    """Return whether two numbers are the same answer.

    Exactly equal, or one is the other correctly rounded to at least six decimals and six significant digits. Where
    only one has a percent sign, it may stand for the number before the sign or for a hundredth of it.
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
    decimals = None if number.decimals is None else number.decimals + 2
    return PlainNumber(number.value / 100, decimals, number.digits)


def is_rounding_of(number: PlainNumber, value: Fraction) -> bool:
    """Return whether a decimal is ``value`` correctly rounded, with enough digits to stand for it.

    As many digits as a computer's double has (``0.30000000000000004``) may be wrong in the last one or two.
    """
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
    numerals = [
        (match[1], match[2] or match[3]) if match else (text, "")
        for match, text in zip(matches, (answer, gold), strict=True)
    ]
    (digits, base), (gold_digits, gold_base) = numerals
    value, gold_value = (_value_in_base(*numeral) for numeral in numerals)
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
