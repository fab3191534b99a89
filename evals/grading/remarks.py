r"""Words beside a value: units and remarks that say nothing about it, and others that change or deny it.

``15\text{ cm}^2`` is 15; ``7\text{ squared}``, ``7\text{ is wrong}`` are not 7. Words are dropped if they can be a
unit, a noun or an aside; number words, operators, comparatives, verbs and denials stay, and the whole is no number.
"""

import re
from itertools import chain, pairwise

from evals.grading import languages
from evals.grading.assertion import OTHER
from evals.grading.languages import NEGATIONS, WRONG_WORDS, any_of

_PREFIXED = r"(?:[nmcdhkMGT]|µ|\\mu\s?)?(?:m|g|s|L|l|N|J|W|V|Hz|Pa|eV|mol|bar|cal|Wh|T)"  # SI: "cm", "kJ"
_WORD = rf"(?:[A-Za-z]{{4,}}|(?:{_PREFIXED}|{languages.UNITS}|{languages.NOUNS})(?<=[A-Za-z]{{2}}))(?![A-Za-z])"
FONT = (
    r"\\(?:text(?:rm|bf|it|sf|tt|sc|up|md|normal)?|emph|math(?:rm|bf|it|sf|tt|normal)|[mh]box|boldsymbol|bm|rm|bf|it|sf|"
    r"underline)(?![a-zA-Z])"
)
_FONT = rf"(?:{FONT}|\\(?:operatorname|unit|si)(?![a-zA-Z]))\s*"
_GAP = r"(?:\s|\\[,;:! ]|~|\\q?quad|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|/|\{\})*"
_EXPONENT = r"(?:\s*\^\s*(?:\{\s*-?\s*\d\s*\}|-?\d))?"
_SPACE = re.compile(r"\s|\\[,;: ]|~|quad")
_IN_FONT = rf"{_FONT}\{{(?:[^{{}}\d]|\^\s*\{{?-?\d\}}?)*\}}{_EXPONENT}"
_TEXT_UNIT = re.compile(  # ``\text{ cm}^2``, ``\frac{\text{m}}{\text{s}}``, ``{}^\circ\mathrm{C}``, ``\Omega``
    rf"(?<=[\d\w}}\])%])(?P<unit>(?:{_GAP}(?:(?:\{{\}})?\^\s*\{{?\s*\\circ\s*\}}?\s*)?"
    rf"(?:{_IN_FONT}|\\frac\s*\{{{_IN_FONT}\}}\s*\{{{_IN_FONT}\}}|\\Omega(?![A-Za-z])|\\AA(?![A-Za-z])))+)\s*\.?$"
)
_IN_FONTS = re.compile(rf"{_GAP}{_IN_FONT}")
_PLAIN_UNIT = re.compile(
    rf"^(?P<value>[^=]*?(?:\d|%|\}}|\\pi|\)))\s*(?:(?<=\s){_WORD}\.?(?:[\s/-]+[A-Za-z]+\.?)*|"
    rf"(?:{_PREFIXED}|units?|dollars?|cents?|euros?|yuan|(?:hour|day|minute|second|week|month|year|mile|meter|metre|point)s?|inch(?:es)?|feet|people)(?<=[A-Za-z]{{2}})(?![A-Za-z])|m(?=\^))"
    r"\s*(?:\^\s*\{?\s*\d\s*\}?)?$"
)
_SYMBOL = (
    rf"(?:{_PREFIXED}|{languages.UNITS}|[kM]?\\Omega|\\sec|lm|lx|cd|Wb|Bq|Gy|Sv|rev|bits?|min)"
    r"(?![A-Za-z])(?:\s*\^\s*\{?\s*-?\d\s*\}?)?"
)
_UNIT_SYMBOLS = re.compile(  # ``7 m/s^2``, ``12ft``; one letter after a space alone
    rf"(?<=[\d}}])(?: \s*|(?=\\?[A-Za-z]{{2}}|[A-Za-z](?:\^\{{?\d\}}?)?\s*/)){_SYMBOL}(?:\s*(?:/|"
    rf"\\cdot(?![A-Za-z])|\s)\s*\(?\s*{_SYMBOL}\s*\)?)*(?P<words>(?:(?<![KT])\s+(?:to the )?[a-z]{{4,}})*)$"
)
_NEEDS_SPACE = frozenset("LlNJWVTACFhK")  # beside a digit they are variables: ``3\mathrm{V}``
_NAMED = re.compile(rf"[^\W\d_]{{4,}}|{_PREFIXED}|{languages.UNITS}|{languages.NOUNS}")
_SHORT = re.compile(languages.PARTICLES)
_LETTERS = re.compile(r"[^\W\d_]+")
_SYMBOLS = re.compile(r"(?<![A-Za-z])[A-Za-z]{1,3}(?![A-Za-z])")  # and products of them
_COMMAND = re.compile(r"\\(?:text\w*|mbox|hbox|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_COMMANDS = re.compile(rf"{_FONT}|\\(?:frac|[,;:! ]|q?quad|cdot|times|circ|Omega|AA)(?![A-Za-z])|[{{}}~^]")
NAMES = (  # of constants, functions and letters
    r"(?:pi|alpha|beta|gamma|delta|epsilon|theta|lambda|sigma|omega|infinity|sqrt|sin|cos|tan|cot|sec|csc|log|exp|arc\w+)"
)
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_REFUSED = re.compile(
    rf"\b(?:{languages.DENIALS}|{languages.QUANTITIES}|or|than|least|most)\b|^!|[?=<>+*|]", re.IGNORECASE
)
_DENIED = re.compile(rf"\b(?:{languages.DENIALS}|or)\b|\?", re.IGNORECASE)
_SQUARE_UNIT = re.compile(  # "square meters", "feet squared"
    r"\b(?:squared?|cubed)(?=\s+(?!roots?\b)[A-Za-z]{2})|(?<=[A-Za-z]{2}\s)(?:squared|cubed)\b", re.IGNORECASE
)
_SCALE_WORDS = "|".join(languages.SCALES.values())
_SCALE = re.compile(
    rf"(?<=[\d}}])(?:\s|\\[,;: ]|~)*(?:(?P<font>{_FONT}\{{)(?:\s|\\[,;: ]|-)*|-?(?=[a-z]{{4}}))(?P<word>{_SCALE_WORDS})"
    r"(?![A-Za-z])(?P<rest>[^{}\d]*\}?)\s*$",
    re.IGNORECASE,
)
_REFUSED_FIRST = re.compile(
    rf"(?i)(?:{_SCALE_WORDS}|and|at|over|under|above|below|beyond|almost|nearly|off|too|short|to|by|is|are|was|were|be|"
    r"does|did|do|has|had|have|can|could|would|should|might|must|exceeds?|times\s+(?!as\b|larger|bigger|more|the\b)\w+)\b"
    r"|(?:more|less|fewer|greater|smaller|bigger|larger|higher|lower)\s*$|(?!\w*eed\b)\w{3,}ed\b(?!\s+\w+s\b)"
)
_ASIDE = re.compile(
    rf"(?i)\s*(?:\\[,;: !]|~|\\q?quad)*\s*\(\s*(?:(?:{languages.ABOUT})\b|\\(?:approx|simeq|sim)(?![a-zA-Z])|"
    rf"not\s+[-\d\\]|i\.e\.)(?P<aside>[^()]*(?:\([^()]*\)[^()]*)*)\)\s*\.?$"
)
_WORDS_ASIDE = re.compile(r"(?<=[\d}\s])\s+\(\s*(?P<aside>[A-Za-z]{3,}[A-Za-z\s,'-]*)\)\s*\.?$")
_LEAD_IN_TEXT = re.compile(r"^\\(?:text|mbox|textrm|mathrm)\s*\{(?P<words>[^{}\d]*)\}\s*(?P<rest>.*)$", re.DOTALL)
_LEAD = re.compile(r"^(?P<words>[A-Za-z][A-Za-z ,']*?[A-Za-z:])\s+(?P<rest>[-\d\\($.].*)$", re.DOTALL)
_LEADS_UP = re.compile(r"(?:^|.*\W)(?:is|are|equals|is equal to|becomes)\s*$|.*[:=]\s*$", re.IGNORECASE | re.DOTALL)
_LEADS_ELSEWHERE = re.compile(
    rf"(?i)\b(?:{languages.DENIALS}|if|whether|bounds?|estimate|approximation|{OTHER})\b|\?"
    r"|\b(?:twice|thrice|half|double|triple|square|root|negative|inverse|reciprocal)\b.*\b(?:it|that|answer|result|solution)\b"
)
_STATED = re.compile(
    r"(?<![A-Za-z0-9_.\\^])(?:(?:US|HK|NZ|[AC])?\\?\$|[€£¥₹]|Rs\.?)?\s?(?<![A-Za-z0-9_])[-+\u2212]?(?:\d(?:[\d.,:/]*\d)?|\.\d+)(?:\s?\\?%)?(?![A-Za-z0-9_^])"
)
_SENTENCE_END = re.compile(r"[a-z]{3}[.!?]\s|[?!]")
_END_ASIDE = re.compile(r"(?<=[A-Za-z%])\s*\([^()]*\d[^()]*\)[.!]?\s*$")  # 1.5 hours (90 minutes)
_OTHER_DENIED = re.compile(r",?\s*\(?(?:and |but )?not\s+\$?[\d.,]+[A-Za-z ]{0,40}\)?\.?$")
_REMARK_ON_ANOTHER = re.compile(
    r"\s+of\s+(?:the|these|those|his|her|their|our)\s+|\s*(?!out\b|to\b|by\b)[A-Za-z]{3,}(?:\s+[A-Za-z]+)*?\s+(?:of|for|with|in|from|per|each)(?:\s+(?:the|a|all))?\s+"
)
_NO_SENTENCE = re.compile(r"(?!\\[$%])[=<>*+|\\{}_~^/]|[1-9]|(?<![A-Za-z'])(?![aAI]\b)[A-Za-z](?![A-Za-z'])")
_CHANGES = re.compile(
    rf"(?i)\b(?:{languages.DENIALS}|{languages.QUANTITIES}|or|is too|than|least|most|more|less|fewer|greater|smaller|"
    r"larger|between|below|under|above|(?<!left )over|exceeds?|negative|am|pm)"
    rf"\b|\?|\d\s*!|\btimes as\b|\b0\s+(?:{_SCALE_WORDS})\b|{any_of(NEGATIONS, WRONG_WORDS)}"
)
_WHERE = re.compile(r"^(?P<name>[A-Za-z])\s*,?\s+(?:where|with|for)\s+(?P=name)\s*=\s*(?P<value>[^=]+)$")


def without_text_unit(text: str, variables: frozenset[str] = frozenset()) -> str:
    r"""Remove a trailing ``\text{ cm}^2``, and read ``4\text{ million}`` as a number; ``variables`` are no units."""
    while scale := _SCALE.search(text):
        factor = next(by for by, words in languages.SCALES.items() if re.fullmatch(words, scale["word"].lower()))
        rest = "" if scale["font"] and scale["rest"] == "}" else (scale["font"] or "") + scale["rest"]
        text = text[: scale.start()] + factor + rest
    match = _TEXT_UNIT.search(text)
    if match is None:
        return text
    parts = (part.start() for part in _IN_FONTS.finditer(text, match.start() + 1))
    for start in (match.start(), *parts):  # all words in fonts are the unit, or the last: ``2\mathrm{v}\text{ m}``
        value = text[:start].strip()
        if _is_unit(text[start:], variables | letters(value)):
            is_number = r"\pi" in value or any(map(str.isdigit, value))
            whole = is_number and value.count("{") == value.count("}")
            return value.rstrip(" \t\r\n.,;:\\") if whole else text
    return text


def letters(text: str) -> frozenset[str]:
    """The letters that stand for something in a formula, or on the last side of an equation."""
    return frozenset(chain.from_iterable(_SYMBOLS.findall(_COMMAND.sub(" ", text.rpartition("=")[2]))))


def _is_unit(text: str, variables: frozenset[str]) -> bool:
    r"""Return whether what follows a value is units, words, and nothing else: ``\text{ m}^2``, and not ``\text{n}``."""
    plain = _COMMANDS.sub(" ", text)
    words = _LETTERS.findall(plain)
    runs = [word for word in words if len(word) > 1 and word in _ALPHABET]  # ``abcd`` is a product
    named = [word for word in words if _NAMED.fullmatch(word) and word not in runs]
    slanted = len(words) == 1 == len(words[0]) and re.search(r"\\(?:math|text)(?:bf|it)", text)  # units are upright
    alone = len(words) == 1 and (words[0] in _NEEDS_SPACE or slanted)
    if (alone or words[:1] == ["a"]) and not _SPACE.search(text[: text.index(words[0])]):
        return False
    if len(words) > 1 and words[0] in ("K", "T") and len(words[1]) > 3:  # thousands, trillions
        return False
    if any(len(word) < 4 and variables.issuperset(word) for word in words):
        return False
    if any(re.fullmatch(NAMES, word, re.IGNORECASE) for word in words) or not (named or not words):
        return False
    phrase = any(len(word) > 3 for word in named)  # in which words of three letters are words too: "red balls"
    if not all(word in named or _SHORT.fullmatch(word) or (phrase and len(word) == 3) for word in words):
        return False
    if plain.count("(") != plain.count(")"):  # the end of an aside
        return False
    said = _SQUARE_UNIT.sub("", plain.strip()).strip(" ,;.()")
    return not _is_refused(said)


def _is_refused(said: str) -> bool:
    return bool(_REFUSED.search(said) or _REFUSED_FIRST.match(said))


def without_plain_unit(text: str, variables: frozenset[str] = frozenset()) -> str:
    """Remove trailing words after a value: ``125 miles``; one-letter words may be variables and stay."""
    match = _PLAIN_UNIT.match(text)
    if match is None:
        return text
    value = match["value"]
    has_words = re.search(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+|\bsqrt\b|\bpi\b", "", value))
    is_unit = not has_words and _is_unit(text[match.end("value") :], variables | letters(value))
    return value.strip() if is_unit else text


def without_unit_symbols(text: str) -> str:
    """The text without symbols of units behind its number, where it stands beside a number: none is a variable then."""
    match = _UNIT_SYMBOLS.search(text)
    return text[: match.start()] if match and not _is_refused(match["words"].strip()) else text


def stated_number(sentence: str) -> str | None:
    """The number that a sentence in words states ("Josh made $70,000 in profit"), if no other word changes it.

    Other numbers may stand behind it in a remark: "10 bags of 12 apples", "10, not 12".
    """
    sentence = _OTHER_DENIED.sub("", sentence)
    aside = _END_ASIDE.search(sentence)
    sentence = sentence[: aside.start()] if aside and not _REFUSED.search(aside[0]) else sentence
    numbers = list(_STATED.finditer(sentence))
    if numbers and _SENTENCE_END.search(sentence, 0, numbers[0].start()):
        return None
    outside = _STATED.sub(" 0 ", sentence)
    if not numbers or _NO_SENTENCE.search(outside) or _CHANGES.search(outside):
        return None
    gaps = [sentence[first.end() : second.start()] for first, second in pairwise(numbers)]
    return numbers[0][0].strip() if all(map(_REMARK_ON_ANOTHER.fullmatch, gaps)) else None


def without_asides(text: str) -> str:
    r"""Remove ``(about 18.9 cards)``, ``(see above)`` after a value; ``n where n = 7`` is 7."""
    for pattern, refused in ((_ASIDE, _DENIED), (_WORDS_ASIDE, _REFUSED)):
        match = pattern.search(text)
        if match and match.start() and not refused.search(match["aside"]):
            text = text[: match.start()].strip()
    where = _WHERE.match(text)
    return where["value"].strip() if where else text


def without_lead(text: str) -> str:
    r"""Remove words before a value: ``\text{The area is }7``, ``There are 7 ways``; ``\text{negative }7`` is -7."""
    match = _LEAD_IN_TEXT.match(text) or _LEAD.match(text)
    if match is None or not match["rest"].strip():
        return text
    words, rest = " ".join(match["words"].split()), match["rest"].strip()
    for sign, relation in languages.RELATIONS.items():
        if re.fullmatch(relation, words, re.IGNORECASE):
            return sign + rest
    return rest if _LEADS_UP.match(words) and not _LEADS_ELSEWHERE.search(words) else text
