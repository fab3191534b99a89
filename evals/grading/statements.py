"""Statements in words that name an option, A to J: "Answer: C", "so we choose option C", "la respuesta es la C"."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from evals.grading import languages
from evals.grading.assertion import ADVERB, is_denied, is_of_another, is_plain
from evals.grading.languages import COPULAS, NEGATIONS, OPTION_WORDS, RIGHT_WORDS, WRONG_WORDS, any_of, one_of

OPEN = (
    r"(?:[\\$({*\[\"'`\u201c\u300c\u3010]|__){0,6}(?:(?<=[(\[{]) )?"
    r"(?:(?:text\w{0,6}|mathrm|mathbf|boxed)\{ {0,2}(?:[Oo]ption |[Cc]hoice )?\(?)?"
)
CLOSE = r"(?: (?=[)\]}]))?(?:\\[)\]]|[)\]}$*\"'`\u201d\u300d\u3011]|__){0,6}"
_CLOSING = re.compile(CLOSE)
_LETTER = rf"{OPEN}(?P<letter>[A-J])(?![A-Za-z\u00c0-\u024f]){CLOSE}"
_NOUN = r"(?:(?:option|choice|answer|letter|alternative|statement)\b[ \t]{0,3})?"
_ANY_NOUN = rf"(?:{one_of(OPTION_WORDS)}(?![^\W\d_])[ \t]{{0,3}}[:\uff1a]?[ \t]{{0,2}})?"
_ARTICLE = (
    rf"(?:(?:the|la|le|die)[ \t]{{1,3}}|(?:{'|'.join(languages.ARTICLES)})[ \t]{{0,3}}(?={one_of(OPTION_WORDS)}))?"
)
_IS = (
    rf"(?:(?:{'|'.join(word for word in COPULAS if not word.isascii())})|(?:{'|'.join(filter(str.isascii, COPULAS))}|"
    r"(?:must|(?P<modal>would|should|appears to|seems to)|will|has to|have to|can only|"
    r"turn(?:s|ed) out to|happens to)\b"
    rf"{ADVERB}[ \t]{{1,3}}be)(?![a-z])){ADVERB}"
)
_VERBS = "|".join(word for word in COPULAS if word.isalpha() and word < "\u0250")
_MARK = r"[*_\"']{0,3}[ \t]{0,3}(?:[:\uff1a\u2192]|[=-]>|=|(?<=[ \t])[-\u2013](?=[ \t]))[*_]{0,3}"
_LINK = rf"[*_]{{0,3}}\s{{0,3}}(?:{_IS}[ \t]{{0,3}}[:\uff1a]?|{_MARK})\s{{0,4}}{_ARTICLE}{_ANY_NOUN}"
_RIGHT = rf"(?:[ \t]?{one_of(RIGHT_WORDS)}(?![a-z\u00c0-\u0dff])){{0,2}}"
_ASIDE = (  # between "answer" and "is"
    r"(?:,[^,.!?:\n]{1,40},|[ \t]{1,3}(?:to|for|of|among|from|in|that|which|I|we|you|corresponding|here|choice|option|"
    r"letter|(?:\([^()\n]{1,30}\)))\b[^.!?:;\n]{0,60}?[ \t])?"
)
_FITS = r"\s{1,4}(?:fits|works|remains|matches|survives|satisfies|holds|agrees|qualifies|stands|is left|can be)\b"
_CONCLUDING = "think|believe|actually|rather|instead|thus|so|therefore|hence|only|that|then|conclude"
_IS_RIGHT = (
    rf"(?i:(?:only\s{{1,3}})?(?:the\s{{1,3}})?{_NOUN})\s{{0,4}}{_LETTER}(?:[ \t]?[:\u2013-][ \t]?(?i:correct|true)\b|"
    rf"(?<!\bthe )\s{{1,4}}(?:it is|fits|works|remains|matches)(?=[.!]|\s*$)|"
    rf"\s{{1,4}}(?:is|must be|has to be|would be|seems|appears to be)\s{{1,3}}(?:(?:{languages.ADVERBS})\s{{1,3}})?"
    r"(?:the\s{1,3})?(?:only\s{1,3})?(?:most\s{1,3})?(?:(?:one|option|choice) (?:that|which)\s{1,3})?"
    r"(?:correct|right|best|true|accurate|answer|works|fits|appropriate|suitable|valid)\b)"
)
_END = r"(?=[.!]?\s{0,3}(?:$|\n)|[.!](?:\s|$))"
_THE_LETTER = rf"(?i:(?:the\s{{1,3}})?{_NOUN})\s{{0,4}}{_LETTER}"
_IN_BETWEEN = r"[^.!?;:\n]{0,40}?"
SAID, STRONG, _OWN, _REMARK = 3, 2, 1, 0
"""Strengths: "the answer is C", which is strong or a remark; a box, a tag, a line; "we choose C"; a remark."""


class Statement(NamedTuple):
    """A letter that a text names as its choice."""

    begin: int  # of the statement
    end: int  # of its letter
    letter: str
    strength: int


class _Rule(NamedTuple):
    """One form of statement."""

    beginnings: tuple[str, ...]  # small letters that its matches begin with; none: it is looked for as it is
    pattern: re.Pattern[str]
    strong: bool

    def finditer(self, text: str, small: str, start: int) -> Iterator[re.Match[str]]:
        """Find what ``pattern.finditer(text, start)`` does, in less time; ``small`` is the text in small letters."""
        if not self.beginnings:
            yield from self.pattern.finditer(text, start)
            return
        places, end = {start}, start
        for beginning in self.beginnings:
            begin = small.find(beginning, start)
            while begin >= 0:
                places.add(begin)
                begin = small.find(beginning, begin + 1)
        for begin in sorted(places):
            if begin >= end and (match := self.pattern.match(text, begin)):
                end = match.end()
                yield match


def _rule(beginnings: str, pattern: str, strong: bool = False) -> _Rule:
    """Make a rule of a pattern, in which WORDS stands for the beginnings, in either case."""
    every = tuple(filter(None, beginnings.split("|")))
    words = tuple(word for word in every if not word.startswith(tuple(other for other in every if other != word)))
    return _Rule(words, re.compile(pattern.replace("WORDS", f"(?i:{beginnings})")), strong)


_RULES = (  # white space is bounded: three optional gaps in a row would take cubic time
    _rule(
        "|".join(languages.ANSWER_WORDS),
        rf"WORDS(?i:s?{_RIGHT}{_ASIDE}(?:{_LINK}(?:not\s{{1,3}}{_NOUN}{OPEN}[A-J]{CLOSE},?\s{{1,3}}but\s{{1,3}}"
        rf"(?:rather\s{{1,3}})?{_NOUN})?|\s{{0,3}}{_ANY_NOUN}))\s{{0,4}}{_LETTER}",
        strong=True,
    ),
    _rule(
        "|".join(
            word for word in (*OPTION_WORDS, "selection", "pick", "statement") if word not in languages.ANSWER_WORDS
        ),
        rf"\bWORDS(?i:{_RIGHT}{_ASIDE}{_LINK})\s{{0,4}}{_LETTER}",
        strong=True,
    ),
    _rule(
        "ans|verdict|conclusion|result|solution|final|correct|key",
        rf"\bWORDS\.?(?:(?<=\.)|(?<!\.)(?:{_MARK}|\s{{1,3}}is\b))\s{{0,4}}{_ANY_NOUN}{_LETTER}{_END}",
        strong=True,
    ),
    _rule(
        "choose|chose|chosen|select|selected|pick|picked|go with|going with|opt for|opted for|settle on|mark|"
        "leaves|leaving|left with",
        rf"\bWORDS(?i:(?:\s{{1,3}}(?:us|with|only)){{0,3}})\s{{1,4}}{_THE_LETTER}",
    ),
    _rule(
        "it|this|that|which",
        rf"\bWORDS(?i:(?:['\u2019]s|[ \t](?:is|must be|has to be|should be|can only be|turns out to be))"
        rf"(?:[ \t]for sure)?{ADVERB})\s{{1,4}}{_THE_LETTER}",
    ),
    _rule("", rf"(?:(?<=[.!?\n;:,])|\band\b)\s{{0,4}}(?=[^\w\s]|[A-J]|(?i:[acolst])){_IS_RIGHT}"),
    _rule(_CONCLUDING, rf"(?:^|\bWORDS[,:]?\s{{1,4}}){_IS_RIGHT}"),
    _rule("only", rf"\bWORDS\s{{1,3}}{_THE_LETTER}{_FITS}"),
    _rule("option|choice|alternative", rf"(?:^|(?<=[.!?,] )|(?<=\n))WORDS\s{{1,3}}{_LETTER}{_FITS}"),
    _rule(
        "closest|nearest|remaining one|one that", rf"\bWORDS\b{_IN_BETWEEN}\s(?:is|must be)\s{{1,3}}{_THE_LETTER}{_END}"
    ),
    _rule("corresponds to|matches|agrees with|i believe|i think|i say", rf"\bWORDS\s{{1,4}}{_THE_LETTER}{_END}"),
    _rule(
        "thus|so|therefore|hence|by elimination|by process of elimination|no|rather|instead|actually",
        rf"\b(?:(?i:thus|so|therefore|hence|by (?:process of )?elimination:?)|No|Rather|Instead|Actually),?\s{{1,4}}"
        rf"{_THE_LETTER}{_END}",
    ),
    _rule(
        "corresponds to|corresponding to|matches|agrees with|gives|is|be|by|i.e.|namely",
        rf"\bWORDS\s{{1,4}}(?i:(?:the\s{{1,3}})?(?:option|choice|answer|letter))\s{{1,4}}{_LETTER}",
    ),
    _rule(
        "(|or|,",
        r"(?:[(]\s{0,2}|\bor\s{1,4}|,\s{1,3})(?i:option|choice|answer)\s{1,4}[(]?(?P<letter>[A-J])[).*]{1,4}\s{0,9}"
        r"(?:$|\n\n)",
    ),
    _rule(
        "\u6545|\u5e94|\u9009|\uc815\ub2f5\uc740",
        r"(?:\u6545?\u5e94?\u9009\u62e9?(?:\u9879)?(?:\u662f|\u4e3a)?|\uc815\ub2f5\uc740)\s{0,4}[:\uff1a]?\s{0,4}"
        rf"{_LETTER}",
    ),
)
_LAST_LINE = re.compile(
    rf"(?:^|\n)[ \t]{{0,9}}[#>\u2610-\u27bf-]{{0,4}}[ \t]{{0,3}}{_LETTER}[.,:]?{CLOSE}[\s\u2610-\u27bf]*$"
)
_BEHIND_NUMBER = re.compile(r"(?:^|\n|[.!?]\s)[^\n(]{0,200}?\d[^\n(]{0,20}\s\((?P<letter>[A-J])\)[.!]?\s*$")
_FIRST_LINE = re.compile(rf"\s*{OPEN}(?P<letter>[A-J])[.,:]?{CLOSE}[ \t]*\n\s*(?=[A-Z\u00c0-\uffff][^\W\d_]|I\b)")
_LETTER_LINE = re.compile(r"^\W{0,6}[A-J]\W{0,6}$|^\W{0,6}[A-J][).:]\s", re.MULTILINE)
_WHOLE_LINE = re.compile(
    rf"\s*(?i:(?:the\s{{1,3}})?{_NOUN}){OPEN}(?P<letter>[A-J])(?:[)\]}}$*\"'`\u201d\u300d\u3011]{{1,6}}|"
    rf"[.:,\u3002\uff0c\u4e0d]|\s(?:because|since)\b|[\s\u2610-\u27bf]*$)[^\n]*(?:\n\s*)?$"
)

_LISTED = re.compile(r"[(\s][A-J][).:]\s")

_MAY_FOLLOW = re.compile(
    r"\s{0,4}(?:$|\n)|\s{0,3}[.!,;:?](?![\w])|[\u3002\uff0c\uff1b\uff1a\u3001]|[<`\"'\u201d]|"
    r"[)\]}.:,;!?]\s{0,3}[^\s=+^_*/\\]|\s{1,3}[-\u2013\u2014]+\s{1,3}(?:\w{2}|a\s)|"
    rf"\s{{1,3}}[(\[<\"'\u201c\uff08]|\s{{1,3}}[A-Z][a-z]|\s{{1,4}}(?:{languages.BEHIND_OPTIONS})\b|"
    r"\s{0,2}[\u0400-\u1fff\u3040-\ud7ff]",  # letters that no formula has
)
_DENIED_BEFORE = re.compile(  # in small letters, for without regard to case it takes far longer
    r"(?:(?:\b(?:(?:wrong|mistake|incorrect) to|nor|if|whether|unless|(?<!\bis )(?<!['\u2019]s )"
    r"why|how|suppose|assum(?:e|ing)|eliminates?|reject|exclude|discard|rule[sd]? out|instead of|rather than|either|"
    r"or)\b)(?:\s{1,3}(?:that|to|would|could|should|the|can|be|we|you|i|one|correct|right|best|final|my|our))*"
    r"|\b(?:mistake|error|trap|temptation)\s{1,3}(?:is|was|would\s{1,3}be)\s{1,3}to|\btempt(?:ing|ed)\s{1,3}to"
    r"|[\u4e0d\u975e]|\u6392\u9664)\s{0,3}$"
)
_ON_A_CONDITION = re.compile(
    rf"(?i){CLOSE}[ \t]{{0,3}}[,(]?[ \t]{{0,2}}(?:only|just|except)?[ \t]{{0,2}}\b(?:if|unless|when|provided|assuming|"
    r"supposing|as long as|in|for|at|under|until|without)\b"
)
_NO = any_of(NEGATIONS, WRONG_WORDS)
REJECTED = re.compile(  # "is wrong", "cannot be", "no es", "गलत है"; in the next sentence too: ". Wait, that is wrong"
    rf"{CLOSE}(?:(?:[.!,\s]{{0,5}}(?:(?:wait|no|hmm+|but|oh|sorry|actually|on second thought)[,.!\s]{{1,4}}){{0,3}}"
    r"(?:that|this|it|which)(?!(?:['\u2019]s|\s(?:is|was))\snot\s(?!(?:the\s|an?\s)?(?:right|correct|true|possible|valid|"
    r"it|so|answer|option)\b)\w))?"
    rf"\s{{0,3}}(?:['\u2019]s|was|are|were|(?:would|must) be|seems|appears|looks|{_VERBS})"
    rf"\s{{1,3}}(?:(?:{languages.ADVERBS}|plainly|too|to be)\s{{1,3}}){{0,2}}(?:{_NO}|right\?|(?:n't|invalid|"
    r"impossible|ruled|eliminated|excluded|rejected|discarded|out|irrelevant|inaccurate|unlikely|untrue|"
    r"an? (?:\w+ ){0,2}(?:distractor|trap|mistake|error|misconception))\b)"
    r"|\s{0,3}(?:isn['\u2019]t|cannot|can't|can not|couldn't|doesn't|does not|won't|fails|violates|contradicts|(?:can|"
    r"must|should|has to|could|has been|have been) (?:be )?(?:eliminated|ruled|excluded|rejected|discarded|wrong))\b"
    rf"|\s{{0,6}}[:\u2013-]\s{{0,3}}(?:wrong|incorrect|false|no)\b|\s{{0,3}}\?|"
    rf"\s{{1,3}}{any_of(NEGATIONS)}\s{{1,3}}(?:{_VERBS})\b"
    r"|(?:(?![\x00-\u024f])[^\W\d_]){0,4}\s{0,3}"
    rf"{any_of(word for word in (*NEGATIONS, *WRONG_WORDS) if word[0] >= 'Ͱ' and word not in '不非')})",
    re.IGNORECASE,
)
_OF_A_PART = re.compile(r"\b(?:next|last|part|first|initially|once)\b", re.IGNORECASE)
_LINKED = re.compile(r"[^\w\s]|\s(?:\w+\s){1,9}")
_SUBJECT = re.compile(  # "answer A is for those who", of which nothing says that it is right
    rf"(?i)answer(?: choice| option)?:? {OPEN}[A-J]{CLOSE}\s{{1,3}}(?:is|was|has|does|gives|seems|describes|ignores)\b"
    r"(?!\s{1,3}(?:(?:the|also|thus|therefore|indeed|clearly|most|only)\s{1,3}){0,3}(?:correct|right|best|answer|true|one|only|"
    r"closest|nearest|most|option|choice|what|because|since|as|supported|consistent|likely|valid|accurate|appropriate)\b)"
)
_REMARK_WITHIN = 140  # characters before a statement that may make it a remark


def stated(text: str, start: int = 0) -> Iterator[Statement]:
    """Statements in words from ``start`` on, those that are denied left out."""
    small = languages.small_letters(text)
    for rule in _RULES:
        for match in rule.finditer(text, small, start):
            end = match.end("letter")
            begin, before = match.start(), (match.start(), match.start("letter"))
            if is_denied(small, *before) or _DENIED_BEFORE.search(small, max(0, begin - 60), begin):
                continue
            if not _is_statement(text, end):
                continue
            if rule.strong and (
                (":" in match[0] and _SUBJECT.match(text, begin))
                or not (_LINKED.search(text, *before) or is_plain(text, begin))
            ):
                continue
            is_said = rule.strong and match.groupdict().get("modal") is None
            yield Statement(begin, end, match["letter"], SAID if is_said else _OWN)
    line = max(text.rstrip().rfind("\n"), 0)
    first, last, whole = _FIRST_LINE.match(text), _LAST_LINE.match(text, line), _WHOLE_LINE.match(text)
    for found, strength, listed in (  # a letter alone, but not behind or before other options
        (first, _OWN, first and _LETTER_LINE.search(text, first.end())),
        (_BEHIND_NUMBER.search(text, max(0, len(text) - 300)), _OWN, None),
        (last, STRONG, last and _LETTER_LINE.search(text, text.rfind("\n", 0, line) + 1, line)),
        (whole, STRONG, whole and _LISTED.search(text, whole.end("letter"))),
    ):
        if found and not listed and (strength == _OWN or _is_statement(text, found.end("letter"))):
            yield Statement(found.start("letter"), found.end("letter"), found["letter"], strength)


def weighed(text: str, statement: Statement) -> Statement:
    """A statement in words as strong, or as a remark: on a condition, or of another answer (``a common answer``)."""
    if statement.strength != SAID:
        return statement
    start = max(0, statement.begin - _REMARK_WITHIN)
    small = languages.small_letters(text[start : statement.end])
    of_another = is_of_another(small, statement.begin - start, len(small)) or _OF_A_PART.search(text, *statement[:2])
    remark = of_another or _SUBJECT.match(text, statement.begin) or _ON_A_CONDITION.match(text, statement.end)
    return statement._replace(strength=_REMARK if remark or not is_plain(text, statement.begin) else STRONG)


def _is_statement(text: str, end: int) -> bool:
    """Return whether the letter that ends here is an option that is not denied: no formula, no word."""
    return not (_is_formula(text, end) or REJECTED.match(text, end))


def _is_formula(text: str, end: int) -> bool:
    """Return whether the letter that ends here begins a formula or a word: ``C2H6``, ``A = 5``, ``A triangle``."""
    close = _CLOSING.match(text, end)
    after = close.end() if close else end
    if after > end and text[after - 1] in ")]}*" and (after == len(text) or text[after] not in "=+^_"):
        return False
    return _MAY_FOLLOW.match(text, after) is None
