"""Words that mark answers, deny them and begin tasks, in the languages in which models answer (``languages.json``)."""

import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

_LANGUAGES = json.loads(Path(__file__).with_name("languages.json").read_text(encoding="utf-8"))


def _words(kind: str) -> tuple[str, ...]:
    """The words of all languages, in small letters, each once."""
    return tuple(dict.fromkeys(word for words in _LANGUAGES.values() for word in words.get(kind, ())))


ANSWER_WORDS, OPTION_WORDS, ARTICLES = _words("answer"), _words("option"), _words("article")
RIGHT_WORDS, WRONG_WORDS, NEGATIONS = _words("right"), _words("wrong"), _words("not")
COPULAS = _words("is")
"""The words between "answer" and the answer; some as patterns, for they are other words elsewhere."""
LAST_COPULAS = _words("is, last")  # what stands behind an answer, where the verb comes last
TASK_WORDS, NUMBER_WORDS, SPEAKERS = _words("task"), _words("number"), _words("speaker")
EXAMPLE_WORDS = _words("example")  # an example with a number is a task; another may be one of the answer
ORDERS = _words("order")  # what may stand before the word for a task
_PATTERNS = "unit noun particle doubt quantity about adverb impersonal others say plain behind"
UNITS, NOUNS, PARTICLES, DOUBTS, QUANTITIES, ABOUT, ADVERBS, IMPERSONAL, OTHERS, SAY, PLAIN, BEHIND_OPTIONS = (
    "|".join(_words(kind)) for kind in _PATTERNS.split()
)
"""Patterns of words beside a value (units and nouns of at most three letters) and in statements (who says what)."""
DENIALS = "|".join((DOUBTS, *_words("denial")))
SCALES = {scale: "|".join(words) for scale, words in _LANGUAGES["English"]["scale"].items()}
"""The words that multiply a number, in a font or not, the short ones in a font alone."""

OPPOSITES: list[tuple[str, str]] = _LANGUAGES["English"]["opposite"]
RELATIONS: dict[str, str] = {sign: "|".join(words) for sign, words in _LANGUAGES["English"]["relation"].items()}
"""The words before a number that compare with it, by their sign, or that say nothing of it."""
RELATIONS[""] += rf"|(?:it is )?(?:{ABOUT})"
BASES: list[str] = _LANGUAGES["English"]["base"]  # from two on
MEASURES: list[dict[str, str]] = _LANGUAGES["English"]["measure"]
"""Units of one measure, and how many of its smallest unit each is."""


def small_letters(text: str) -> str:
    """The text in small letters, of the same length: the one letter that would become two is replaced before."""
    return text.replace("\u0130", "i").lower()


def any_of(*lists: Iterable[str]) -> str:
    """A pattern for one of these words: a whole one in alphabets that part words by spaces, anywhere in others."""
    words = tuple(chain(*lists))
    parted, joined = (one_of(word for word in words if (word[0] < "\u0900") is apart) for apart in (True, False))
    return rf"(?:\b{parted}\b|{joined})"


def one_of(*lists: Iterable[str]) -> str:
    """A pattern for one of these words, the longest first, by first letters, which is faster."""
    initials: dict[str, list[str]] = defaultdict(list)
    for word in sorted(dict.fromkeys(chain(*lists)), key=len, reverse=True):
        initials[word[0]].append(word[1:])
    return "(?:" + "|".join(f"{initial}(?:{'|'.join(ends)})" for initial, ends in initials.items()) + ")"
