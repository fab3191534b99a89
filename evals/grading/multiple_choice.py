"""The option that a text chooses, A to J: for questions of multiple choice."""

import re

from evals.grading.boxes import last_boxes

LETTERS = "ABCDEFGHIJ"
"""Options are named A to J; no benchmark here has more."""

_LETTER_OPENING = r"[\\$({*\[\"'`\u201c]{0,4}(?:(?:text\w{0,6}|mathrm|mathbf|boxed)\{ {0,2}\(?)?"
_LETTER = (  # "the answer I get" and "A triangle" are no options
    r"([A-J])(?![A-Za-z']|(?<=I)\s{1,4}[a-z]"
    r"|(?<=A)\s{1,4}(?!(?:because|since|as|is|due|for|which|with|and|or|but|not|given|by|over|from)\b)[a-z])"
)
_BE = (
    r"(?i:(?:is|est|是|(?:must|should|would|will|can\s{1,4}only|has\s{1,4}to)\s{1,4}be)\b"
    r"(?:\s{1,4}(?:therefore|thus|hence|then|clearly|simply|indeed))?)?"
)
_LETTER_PATTERNS = (
    *(  # white space is bounded: three optional gaps in a row would take cubic time
        re.compile(rf"{lead}\s{{0,4}}{_LETTER_OPENING}{_LETTER}")
        for lead in (
            rf"(?i:answer|réponse|答案)\*{{0,2}}\s{{0,4}}{_BE}\s{{0,4}}[:\uff1a]?\*{{0,2}}\s{{0,4}}(?i:(?:option|choice)\b)?",
            rf"(?:(?i:it(?:'s|\u2019s| is)|is for sure)|(?i:choose|option|choice|select|pick)\s{{0,4}}{_BE})",
        )
    ),
    re.compile(
        r"(?:^|[.!?\n]\s{0,4}|\b(?i:thus|so|therefore|hence|only|that),?\s{1,4})(?i:option|choice)?\s{0,4}"
        r"[({*]{0,3}([A-J])[)}*]{0,3}\s{1,4}is\s{1,4}(?:the\s{1,4})?(?:correct|right|best)\b"
    ),
)
_OTHER_LETTER = r"[({$*\\\s]{0,4}(?:text\w{0,6}\{\(?)?[A-HJ](?![A-Za-z'])"
_HEDGE = re.compile(  # "B or C", "B, C": no choice; a pronoun and a sentence that goes on are none of the options
    rf"[)\]}}.$*\s]{{0,6}}(?:,?\s{{0,4}}(?:or|/)\s{{0,4}}{_OTHER_LETTER}"
    rf"|(?:(?:[,;+&]|\\&|,?\s{{0,4}}and|\s)\s{{0,4}}{_OTHER_LETTER}[)\]}}.$*]{{0,6}}){{1,9}}\s{{0,4}}(?:$|\n))"
)
_LETTER_FIRST = re.compile(rf"\s{{0,9}}{_LETTER_OPENING}([A-J])(?![A-Za-z'])")
_LETTER_LINE = re.compile(r"(?:^|\n)[ \t]{0,9}[({*\[]{0,3}([A-J])(?:[)\].:,*]|[ \t]{0,9}(?:\n|$))")
_LETTER_BEFORE_TEXT = re.compile(r"(?:^|\n)[ \t]{0,9}\(?([A-J])(?:[).:]|\s)")


def choice_letter(text: str) -> str | None:
    """The option that a text chooses, A to J: boxed, after a marker, or the text itself; None if there is none."""
    boxed = last_boxes(text)
    if boxed is not None:
        match = _LETTER_FIRST.match(boxed[-1]) if len(set(boxed)) == 1 else None
        return match.group(1) if match and not _HEDGE.match(boxed[-1], match.end()) else None
    for pattern in _LETTER_PATTERNS:
        matches = list(pattern.finditer(text))
        if matches:
            return None if _HEDGE.match(text, matches[-1].end()) else str(matches[-1].group(1))
    match = _LETTER_FIRST.match(text)
    if match and _HEDGE.match(text, match.end()):
        return None
    if match and (match.end() == len(text.rstrip()) or not text[match.end()].isspace()):
        return match.group(1)
    lines = _LETTER_LINE.findall(text)
    return str(lines[-1]) if lines else None


def gold_letter(gold: str) -> str | None:
    """The letter of a reference option, with or without its text: ``C``, ``(C) 42``, ``C Cecile``."""
    match = _LETTER_BEFORE_TEXT.search(gold)
    return choice_letter(gold) or (match.group(1) if match else None)
