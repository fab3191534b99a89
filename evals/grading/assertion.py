"""Tells whether a sentence asserts an answer: not where it denies, doubts or supposes it, or speaks of another one."""

import re

from evals.grading import languages
from evals.grading.languages import COPULAS, RIGHT_WORDS, WRONG_WORDS, any_of, one_of

ADVERB = rf"(?:,?[ \t]{{1,3}}(?:{languages.ADVERBS}|,)\b,?)?"
_WITHIN = 140  # characters before a statement, of its sentence
_NEAR = 60  # the same, where "if" is of the statement
_CLAUSE = re.compile(
    r"[,;:()\u2014\uff0c]|\b(?:so|thus|hence|therefore|but|then|making|giving|means?|implies)\b|\band\b(?! that)"
)
_REASON = re.compile(r"[\s*_]*(?:because|since|as|given|although|though|while|when|after|from)\b")
_DOUBT = re.compile(  # "I doubt", "it is false that", "a mistake to say"
    rf"\b(?:{languages.DOUBTS})\b|\b(?:{languages.DENIALS})\s+(?:that|to\s+\w+)\b"
)
_WRONG = re.compile(any_of(WRONG_WORDS))
_OF_THE_ANSWER = re.compile(  # "twice the answer", "the square of the answer"
    r"\b(?:(?<!value )(?<!form )(?<!calculation )of|(?<=bound )(?:for|on)|to|than|from|by|plus|minus|between|"
    r"into|twice|thrice|half|double|triple|times)\s+(?:(?:the|an?|our|my|this|its?|your|final|correct|right|true|actual|exact)\s+){0,3}$"
)
_SUPPOSED = re.compile(
    r"\b(?:if(?!.*\bwe (?:see|find|get|conclude)\b)|maybe|perhaps(?! surprising)|possibly|whether|"
    r"suppos\w+|assum\w+|thought|unless|until|guess\w*)\b[^.!?\n]*$"
)
_WOULD = r"(?:\s+(?:would|might|may|could|will|often))?"
_SAID_BY_OTHERS = re.compile(  # "some say that the", "many would"
    rf"\b(?:(?:{languages.OTHERS}|one|he|she){_WOULD}\s+(?:{languages.SAY})s?(?:\s+(?:that|the|correct|final))*|"
    rf"(?:{languages.OTHERS}){_WOULD}|(?!(?:{languages.IMPERSONAL})\b)\w+\s+(?:says|claims|thinks|believes|"
    r"guesses|insists|argues|suspects)(?:\s+(?:that|the|correct|final))*)\s*$"
)
OTHER = "next|similar|other|another|different|previous|prior|earlier|former|related|modified|harder"
_ANOTHER = re.compile(
    rf"\b(?:{OTHER}|first|initial|original|old|common|tempting|typical|naive|rejected|his|her|their|"
    r"(?!(?:let|here|that|it|what|there|today|question|problem)\b)\w+['\u2019]s)\s+(?:\w+\s+){0,2}$"
)
_OF_ANOTHER = re.compile(rf"\b(?:{OTHER})\b")
_PLAINLY = re.compile(  # the sentence begins with "the answer", or concludes; others say whose it is, or of what
    r"(?i)(?:(?:^|[.!?:;\n\u3002\uff0c\uff1a])[\s*_#>(\[-]*|[^\x00-\u036f]\s*|"
    r"\b(?:so|thus|hence|therefore|then|conclude|means|implies|shows|is|and),?(?:\s+that)?,?\s+)[*_\"]{0,3}"
    rf"(?:(?:{'|'.join(languages.ARTICLES)}|our|my|this|{'|'.join(filter(str.isalpha, COPULAS))})\s+){{0,2}}"
    rf"(?:(?:{one_of(RIGHT_WORDS)}|{languages.PLAIN})\s+){{0,3}}$"
)


def _before(text: str, begin: int) -> str:
    """The beginning of the sentence, up to ``begin``."""
    start = max(0, begin - _WITHIN)
    return text[max(start, *(text.rfind(end, start, begin) + 1 for end in ".!?;\n")) : begin]


def is_denied(small: str, begin: int, end: int) -> bool:
    """Return whether a sentence denies what it says from ``begin`` to ``end``, or says that others say it.

    ``small``: the text in small letters. Two doubts are none: "there is no doubt that".
    """
    before = _before(small, begin)
    clause = before[max((boundary.end() for boundary in _CLAUSE.finditer(before)), default=0) :]
    if not _REASON.match(clause) and len(_DOUBT.findall(clause)) % 2:
        return True
    if before.rstrip().endswith(WRONG_WORDS) or _WRONG.search(small, begin, end):
        return True
    return any(pattern.search(before) for pattern in (_SAID_BY_OTHERS, _OF_THE_ANSWER))


def is_of_another(small: str, begin: int, end: int) -> bool:
    """Return whether a sentence supposes what it says, or speaks of another answer or of somebody else's."""
    before = _before(small, begin)
    supposed = _SUPPOSED.search(before, max(0, len(before) - _NEAR))
    return any((_ANOTHER.search(before), supposed, _OF_ANOTHER.search(small, begin, end)))


def is_plain(text: str, begin: int) -> bool:
    """Return whether a sentence says of nothing else whose answer it is, or what it is an answer to."""
    return _PLAINLY.search(_before(text, begin)) is not None
