"""The option that a text chooses, A to J: for questions of multiple choice.

A text makes statements: a box, "Answer: C", "so we choose option C". The last one that holds counts. A statement that
is denied ("Answer A is wrong", "is the answer A?") or names two options commits to none; a box without a letter, or a
formula that begins with one, is no statement. The rules, with examples, are in docs/grading.md.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from evals.grading.boxes import boxes
from evals.grading.languages import ANSWER_WORDS, COPULAS, small_letters

LETTERS = "ABCDEFGHIJ"
"""Options are named A to J; no benchmark here has more."""

_FULL_WIDTH = {0xFF21 + index: letter for index, letter in enumerate(LETTERS)} | {0xFF08: "(", 0xFF09: ")"}
_OPEN = (
    r"[\\$({*\[\"'`\u201c\u300c\u3010]{0,6}"
    r"(?:(?:text\w{0,6}|mathrm|mathbf|boxed)\{ {0,2}(?:[Oo]ption |[Cc]hoice )?\(?)?"
)
_CLOSE = r"[)\]}$*\"'`\u201d\u300d\u3011]{0,6}"
_CLOSING = re.compile(_CLOSE)
_LETTER = rf"{_OPEN}(?P<letter>[A-J])(?![A-Za-z\u00c0-\u024f]){_CLOSE}"
_NOUN = r"(?:(?:option|choice|answer|letter|alternative)\b[ \t]{0,3})?"
_ADVERB = (
    r"(?:[ \t]{1,3}(?:therefore|thus|hence|then|clearly|simply|indeed|definitely|probably|likely|most likely|"
    r"actually|also|still|obviously|for sure|certainly|only|both|just|,))?"
)
_MODAL = "would|could|might|may|should"
_IS = (
    rf"(?:(?:{'|'.join(word for word in COPULAS if not word.isascii())})|(?:{'|'.join(filter(str.isascii, COPULAS))}|"
    rf"(?:must|(?P<modal>{_MODAL})|will|has to|have to|can only)\b{_ADVERB}[ \t]{{1,3}}be)(?![a-z])){_ADVERB}"
)
_MARK = r"[*_\"']{0,3}[ \t]{0,3}[:\uff1a][*_]{0,3}"
_LINK = (
    rf"[*_]{{0,3}}\s{{0,3}}(?:{_IS}[ \t]{{0,3}}[:\uff1a]?|{_MARK})\s{{0,4}}(?:(?:the|la|le|die)[ \t]{{1,3}})?{_NOUN}"
)
_ASIDE = (  # between "answer" and "is"
    r"(?:[ \t]{1,3}(?:to|for|of|among|from|in|that|which|I|we|you|corresponding|here|choice|option|"
    r"letter|(?:\([^()\n]{1,30}\)))\b[^.!?:;\n]{0,60}?[ \t])?"
)
_DETERMINERS = "correct|right|best|final|chosen|selected|my|our|the"
_CHOICES = "option|choice|selection|alternative|letter|pick"
_CONCLUDING = "actually|rather|instead|thus|so|therefore|hence|only|that|then|conclude"
_BE_RIGHT = (
    r"(?:is|must be|has to be|would be|seems|appears to be)\s{1,3}(?:(?:thus|therefore|clearly|indeed|"
    r"also|definitely)\s{1,3})?(?:the\s{1,3})?(?:only\s{1,3})?(?:most\s{1,3})?(?:one that\s{1,3})?"
    r"(?:correct|right|best|true|accurate|answer|works|fits|appropriate|suitable|valid)\b"
)
_END = r"(?=[.!]?\s{0,3}(?:$|\n)|[.!](?:\s|$))"


class _Rule(NamedTuple):
    """One form of statement, and the strings of small letters that its matches begin with."""

    beginnings: tuple[str, ...]
    pattern: re.Pattern[str]
    strong: bool

    def finditer(self, text: str, small: str, start: int) -> Iterator[re.Match[str]]:
        """Find what ``pattern.finditer(text, start)`` does, in less time; ``small`` is the text in small letters."""
        places, end = {start}, start
        for beginning in filter(str.isascii, self.beginnings) if small.isascii() else self.beginnings:
            place = start - 1
            while (place := small.find(beginning, place + 1)) >= 0:
                places.add(place)
        for place in sorted(places):
            if place >= end and (match := self.pattern.match(text, place)):
                end = match.end()
                yield match


def _rule(beginnings: str, pattern: str, strong: bool = False) -> _Rule:
    """Make a rule of a pattern, in which WORDS stands for the beginnings, in either case."""
    each = beginnings.split("|")
    shortest = [one for one in each if not any(one != other and one.startswith(other) for other in each)]
    return _Rule(tuple(shortest), re.compile(pattern.replace("WORDS", f"(?i:{beginnings})")), strong)


_RULES = (  # white space is bounded: three optional gaps in a row would take cubic time
    _rule(
        "|".join(ANSWER_WORDS),
        rf"WORDS(?i:s?(?: key| correcta| corretta| correta| yang benar| yang tepat| đúng| prawidłowa| poprawna|"
        rf" sahihi)?{_ASIDE}(?:{_LINK}|\s{{0,3}}))\s{{0,4}}{_LETTER}",
        strong=True,
    ),
    _rule(
        f"{_DETERMINERS}|{_CHOICES}",
        rf"(?i:\b(?:(?:{_DETERMINERS})[ \t]{{1,3}})?(?:{_CHOICES}){_ASIDE}{_LINK})\s{{0,4}}{_LETTER}",
        strong=True,
    ),
    _rule(
        "choose|chose|chosen|select|selected|pick|picked|go with|going with|opt for|opted for|settle on|mark",
        rf"\bWORDS\s{{1,4}}(?i:(?:the\s{{1,3}})?{_NOUN})\s{{0,4}}{_LETTER}",
    ),
    _rule(
        "it|this|that",
        r"\bWORDS(?i:(?:'s|\u2019s|[ \t](?:is|must be|has to be|should be|can only be))(?:[ \t]for sure)?"
        rf"{_ADVERB}\s{{1,4}}(?:the\s{{1,3}})?{_NOUN})\s{{0,4}}{_LETTER}",
    ),
    _rule(
        f".|!|?|\n|;|:|{_CONCLUDING}",
        rf"(?:^|[.!?\n;:]\s{{0,4}}|\b(?i:{_CONCLUDING})[,:]?\s{{1,4}})(?i:(?:the\s{{1,3}})?{_NOUN})\s{{0,4}}{_LETTER}"
        rf"(?:\s{{1,4}}{_BE_RIGHT}|[ \t]?[:\u2013-][ \t]?(?i:correct|true)\b)",
    ),
    _rule(
        "thus|so|therefore|hence",
        rf"\bWORDS,?\s{{1,4}}(?i:(?:the\s{{1,3}})?{_NOUN}){_LETTER}{_END}",
    ),
    _rule(
        "corresponds to|matches|agrees with|corresponding to|which is|that is|gives|is given by",
        rf"\bWORDS\s{{1,4}}(?i:(?:the\s{{1,3}})?(?:option|choice|answer|letter))\s{{1,4}}{_LETTER}",
    ),
    _rule(
        "is|be|represented by|described by|or",
        rf"\bWORDS\s{{1,4}}(?i:(?:the\s{{1,3}})?(?:option|choice|answer|letter))\s{{1,4}}{_LETTER}{_END}",
    ),
    _rule(
        "correct|right|best",
        rf"\bWORDS\s{{1,3}}(?i:option|choice|answer)\s{{1,3}}(?=[(]){_LETTER}{_END}",
    ),
    _rule("(", r"[(]\s{0,2}(?i:option|choice|answer)\s{1,4}(?P<letter>[A-J])[).*]{1,4}\s{0,9}$"),
    _rule("no|rather|instead|actually", rf"\b(?:No|Rather|Instead|Actually),?\s{{1,4}}(?i:{_NOUN}){_LETTER}{_END}"),
    _rule(
        "\u6545|\u5e94|\u9009|\uc815\ub2f5\uc740",
        r"(?:\u6545?\u5e94?\u9009\u62e9?(?:\u9879)?(?:\u662f|\u4e3a)?|\uc815\ub2f5\uc740)\s{0,4}[:\uff1a]?\s{0,4}"
        rf"{_LETTER}",
    ),
)
_TAG = re.compile(r"<answer>((?:(?!</?answer>).){0,4000})</answer>", re.DOTALL | re.IGNORECASE)
_LAST_LINE = re.compile(rf"(?:^|\n)[ \t]{{0,9}}[#>-]{{0,4}}[ \t]{{0,3}}{_LETTER}[.,:]?{_CLOSE}\s*$")
_WHOLE_LINE = re.compile(
    rf"\s*(?i:(?:the\s{{1,3}})?{_NOUN}){_OPEN}(?P<letter>[A-J])(?:[)\]}}$*\"'`\u201d\u300d\u3011]{{1,6}}|"
    rf"[.:,\u3002\uff0c\u4e0d]|\s*$)[^\n]*(?:\n\s*)?$"
)

_LISTED = re.compile(r"[(\s][A-J][).:]\s")

_MAY_FOLLOW = re.compile(
    r"\s{0,4}(?:$|\n)|\s{0,3}[.!,;:?](?![\w])|[\u3002\uff0c\uff1b\uff1a\u3001]|[<`\"'\u201d]|"
    r"[)\]}.:,;!?]\s{0,3}[^\s=+^_*/\\]|\s{1,3}[-\u2013\u2014]+\s{1,3}(?:\w{2}|a\s)"
    r"|\s{1,3}[(\[<\"'\u201c\uff08]|\s{1,3}[A-Z][a-z]"
    r"|\s{1,4}(?:because|since|as|is|was|are|due|for|which|with|and|or|but|not|given|by|over|from|"
    r"that|this|it|so|where|when|"
    r"if|has|have|follows|would|will|must|here|there|therefore|thus|in|on|to|at|after|instead|rather|"
    r"cannot|can|could|does|"
    r"fails|isn't|seems|only|based|according|among|were|non|pas|et|car|parce|no|porque|nicht|weil|und|da)\b"
    r"|\s{0,2}(?:[\u662f\u56e0\uff0c\u4e0d\u800c\uc785]|\u3067\u3059)",
)
_OTHER = (
    r"[({$*\\\s]{0,4}(?:boxed\{\s{0,2}\(?)?(?:\\?text\w{0,6}\{\(?)?(?:(?:[Oo]ption|"
    r"[Cc]hoice)\s{1,3})?\(?[A-HJ](?![A-Za-z'])"
)
_HEDGE = re.compile(  # "B or C", "B, C": no choice; a pronoun and a sentence that goes on are none of the options
    rf"(?:[)\]}}$*\s]|\.(?!\s)){{0,6}}(?:,?\s{{0,4}}(?:\\text\s{{0,2}}\{{\s{{0,2}})?(?:or|/|"
    rf"and/or)(?:\s{{0,2}}\}})?\s{{0,4}}"
    r"(?:maybe |perhaps |possibly |even |(?:the )?(?:correct |final )?answer (?:is|could be|may be|might be) )?"
    rf"{_OTHER}|(?:(?:[,;+&]|\\&|,?\s{{0,4}}(?:\\text\s{{0,2}}\{{\s{{0,2}})?and(?:\s{{0,2}}\}})?|"
    rf"\s)\s{{0,4}}{_OTHER}[)\]}}.$*]{{0,6}})"
    r"{1,9}\s{0,4}(?:$|\n|are\b))"
)
_DENIED_BEFORE = re.compile(
    r"(?:(?:n't|n\u2019t|\b(?:not|never|wrong to|mistake to|incorrect to|cannot|neither|nor|if|"
    r"whether|unless|(?<!\bis )(?<!['\u2019]s )why|how|suppose|assume|assuming|eliminates?|reject|exclude|discard|"
    r"rule[sd]? out|instead of|rather than|either|or)\b)(?:\s{1,3}(?:that|to|would|could|"
    r"should|the|can|be|we|you|I|one))*"
    r"|\b(?:mistake|error|trap|temptation)\s{1,3}(?:is|was|would\s{1,3}be)\s{1,3}to|\btempt(?:ing|ed)\s{1,3}to"
    r"|\b(?:one|some|many|someone|somebody|students?|people|they)\s{1,3}(?:(?:might|may|could|would|will|"
    r"often)\s{1,3})?"
    r"(?:think|say|believe|assume|argue|claim|guess|conclude|choose|pick|select)s?(?:\s{1,3}(?:that|the|correct))*"
    r"|[\u4e0d\u975e]|\u6392\u9664)\s{0,3}$",
    re.IGNORECASE,
)
_REJECTED = re.compile(
    rf"{_CLOSE}\s{{0,3}}(?:(?:is|was|are|were|would be|must be|seems|appears|looks)\s{{1,3}}"
    r"(?:(?:also|clearly|therefore|thus|definitely|simply|just|obviously|plainly|too|actually|to be|"
    r"then)\s{1,3}){0,2}(?:not|n't|wrong|incorrect|false|invalid|impossible|ruled|eliminated|excluded|rejected|"
    r"discarded|out|irrelevant|inaccurate|unlikely|untrue|mistaken|a distractor|a trap)\b"
    r"|(?:isn't|isn\u2019t|cannot|can't|can not|couldn't|doesn't|does not|won't|fails|violates|contradicts|"
    r"(?:can|must|should|has to|could|has been|have been) (?:be )?(?:eliminated|ruled|excluded|"
    r"rejected|discarded|wrong))\b|\s{0,3}[:\u2013-]\s{0,3}(?i:wrong|incorrect|false|no)\b|\?)"
)
_REVOKED = re.compile(
    rf"{_CLOSE}[.!,\s]{{0,3}}(?:(?:wait|no|hmm+|but|oh|sorry|actually|on second thought)[,.!\s]{{1,4}}){{0,3}}"
    r"(?:that|this|it|which)(?:'s|\u2019s| is| was| seems| must be| cannot be| can't be)\s{1,3}"
    r"(?:wrong|incorrect|not|false|a mistake|right\?|impossible)",
    re.IGNORECASE,
)
_REJECTIONS = (
    re.compile(
        rf"(?i:\b(?:option|choice|answer|"
        rf"letter))?\s{{0,3}}(?<![A-Za-z]){_OPEN}(?P<letter>[A-J])(?={_REJECTED.pattern})(?!\s{{0,3}}\?)"
    ),
    re.compile(
        r"(?i:\b(?:eliminates?|reject|exclude|discard|rule[sd]? out|not|isn't|can't be|cannot be)\s{1,3}"
        rf"(?:(?:option|choice|answer)\s{{1,3}})?){_OPEN}(?P<letter>[A-J])(?![A-Za-z'])"
    ),
)
_CONDITIONAL = re.compile(
    r"[^.!?\n]{0,80}\b(?:if|unless|had|were|provided|when)\b|\W{0,4}\s(?:is|was)\s[^.!?\n]{0,30}\bonly\s(?:if|at|"
    r"when|for|in)\b"
)
_REVISES = re.compile(
    r"\b(?:wait|hmm+|actually|rather|instead|oops|sorry|correct(?:ion|ing)|reconsider\w*|re-?(?:check|examin|"
    r"evaluat|think)\w*|"
    r"on (?:second thought|reflection|checking)|(?:made|my|is) a mistake|(?:that|this|which) (?:is|was) (?:wrong|"
    r"incorrect)|double[- ]?check\w*|no[,.!:])",
    re.IGNORECASE,
)
_DRESS = re.compile(  # fonts, sizes, spaces and braces of a box, which say nothing
    r"\\(?:text(?:bf|it|rm|sf|tt|sc|up|normal)?|math(?:rm|bf|it|sf|tt|normal)|[mhf]box|boldsymbol|bm|rm|bf|it|sf|"
    r"boxed|underline|"
    r"displaystyle|textstyle|tiny|small|normalsize|large|Large|LARGE|huge|Huge|bigg?|Bigg?|left|right|"
    r"q?quad)(?![A-Za-z])|\\[,;:! ]|[~{}\s]"
)
_LEADING_DRESS = re.compile(rf"^(?:{_DRESS.pattern})+")
_BOXED = re.compile(
    rf" {{0,9}}(?i:(?:the +)?(?:correct +|final +)?(?:option|choice|"
    rf"answer) *(?:is\b)? *[:\uff1a]? *)?{_OPEN}(?P<letter>[A-J])(?![A-Za-z'])[)\]$*\"]{{0,6}}(?P<rest>.*)"
)
_AFTER_BOXED = re.compile(  # nothing, or the option's text: after a mark, or in a font of its own
    r" *(?:$|[)\].:,](?! *[=+^_*/])|[\u2013\u2014-] (?=[^\d=+*/^_\\]*[A-Za-z]{3})|(?<=  ) *(?![=+^_*/\\<>|(-]))"
)
_LONGEST_BOX = 300
_LETTER_BEFORE_TEXT = re.compile(r"(?:^|\n)[ \t]{0,9}\(?([A-J])(?:[).:]|\s)")

_REVISION_WITHIN = 400  # characters before a statement
_TAIL = 2000
"""Characters at the end of a text that are read first: nearly all texts end in their answer."""


class Statement(NamedTuple):
    """A letter that a text names as its choice."""

    begin: int  # of the statement
    end: int  # of its letter
    letter: str
    strong: bool  # a box, a tag, a line or "the answer is"; not "C is correct" or "we choose C"


def choice_letter(text: str, truncated: bool = False) -> str | None:
    """The option that a text chooses, A to J; None if there is none. Of a truncated text only boxes and tags count.

    The last statement counts. A weaker one after a strong one is a remark, unless words of revision stand before it.
    """
    if not text.isascii():
        text = text.translate(_FULL_WIDTH)
    statements = marked = [*_boxed(text), *_tagged(text)]
    if not truncated:
        tail = max(0, len(text) - _TAIL)
        statements = [*marked, *_stated(text, tail)]
        # Where the last strong statement is not near the beginning of the tail, none before the tail has a part in it.
        if tail and max((each.begin for each in statements if each.strong), default=0) < tail + _TAIL // 2:
            statements = [*marked, *_stated(text)]
    chosen: Statement | None = None
    hedged_until = 0
    for statement in sorted(statements):
        if statement.begin < hedged_until:
            continue
        since = max(chosen.end, statement.begin - _REVISION_WITHIN) if chosen else 0
        if chosen and chosen.strong > statement.strong and not _REVISES.search(text, since, statement.end):
            continue
        hedge = _HEDGE.match(text, statement.end)
        chosen, hedged_until = (None, hedge.end()) if hedge else (statement, 0)
    if chosen is None or chosen.letter not in text[chosen.end + 1 :]:
        return chosen and chosen.letter
    if any(letter == chosen.letter and begin > chosen.end for begin, letter in _rejections(text, chosen.end)):
        return None
    return chosen.letter


def _boxed(text: str) -> Iterator[Statement]:
    for box in boxes(text):
        if box.closing is None:
            continue
        content = text[box.opening : min(box.closing, box.opening + _LONGEST_BOX)].strip()
        match = _BOXED.match(_DRESS.sub(" ", _LEADING_DRESS.sub("", content)))
        if match is None or _REVOKED.match(text, box.end):
            continue
        rest = match["rest"]
        if _HEDGE.match(rest) or (_AFTER_BOXED.match(match.string, match.start("rest")) and not _REJECTED.match(rest)):
            end = (
                box.opening + text[box.opening : box.closing].index(match["letter"]) + 1
                if _HEDGE.match(rest)
                else box.end
            )
            yield Statement(box.begin, end, match["letter"], strong=True)


def _tagged(text: str) -> Iterator[Statement]:
    if "<" not in text:
        return
    for tag in _TAG.finditer(text):
        letter = choice_letter(tag[1].strip())
        if letter:
            yield Statement(tag.start(), tag.end(), letter, strong=True)


def _stated(text: str, start: int = 0) -> Iterator[Statement]:
    """Statements in words from ``start`` on, those that are denied left out."""
    small = small_letters(text)
    for rule in _RULES:
        for match in rule.finditer(text, small, start):
            end = match.end("letter")
            if not _is_statement(text, end) or _DENIED_BEFORE.search(text, max(0, match.start() - 60), match.start()):
                continue
            strong = rule.strong and match["modal"] is None
            if strong or not _CONDITIONAL.match(text, end):
                yield Statement(match.start(), end, match["letter"], strong)
    last = _LAST_LINE.match(text, max(text.rstrip().rfind("\n"), 0))
    whole = _WHOLE_LINE.match(text)
    if last and _is_statement(text, last.end("letter")):
        yield Statement(last.start(), last.end("letter"), last["letter"], strong=True)
    if whole and not _LISTED.search(text, whole.end("letter")) and _is_statement(text, whole.end("letter")):
        yield Statement(whole.start("letter"), whole.end("letter"), whole["letter"], strong=True)


def _is_statement(text: str, end: int) -> bool:
    """Return whether the letter that ends here is an option that is not denied: no formula, no word."""
    return not (_is_formula(text, end) or _REJECTED.match(text, end) or _REVOKED.match(text, end))


def _is_formula(text: str, end: int) -> bool:
    """Return whether the letter that ends here begins a formula or a word: ``C2H6``, ``A = 5``, ``A triangle``."""
    close = _CLOSING.match(text, end)
    after = close.end() if close else end
    if after > end and text[after - 1] in ")]}*" and (after == len(text) or text[after] not in "=+^_"):
        return False
    return _MAY_FOLLOW.match(text, after) is None


def _rejections(text: str, start: int) -> Iterator[tuple[int, str]]:
    for pattern in _REJECTIONS:
        for match in pattern.finditer(text, start):
            yield match.start("letter"), match["letter"]


def gold_letter(gold: str) -> str | None:
    """The letter of a reference option, with or without its text: ``C``, ``(C) 42``, ``C Cecile``."""
    if len(gold) == 1 and gold in LETTERS:
        return gold
    match = _LETTER_BEFORE_TEXT.search(gold)
    return choice_letter(gold) or (match.group(1) if match else None)
