"""The option that a text chooses, A to J: for questions of multiple choice.

A text makes statements: a box, a tag, "Answer: C". The last one that holds counts (docs/grading.md has the rules).
"""

import re
from collections.abc import Iterator

from evals.grading.boxes import boxes
from evals.grading.remarks import FONT
from evals.grading.statements import CLOSE, OPEN, REJECTED, STRONG, Statement, stated, weighed

LETTERS = "ABCDEFGHIJ"  # options are named A to J; no benchmark here has more

_FULL_WIDTH = {0xFF21 + index: letter for index, letter in enumerate(LETTERS)} | {0xFF08: "(", 0xFF09: ")"}
_TAG = re.compile(r"(?is)<(?P<tag>(?:final_)?answer)>(?P<inside>(?:(?!</?(?:final_)?answer>).){0,4000})</(?P=tag)>")
_HTML = re.compile(r"</?(?:b|i|u|em|strong|span|mark)>", re.IGNORECASE)
_SMALL = re.compile(  # marked as an option's letter, and nothing beside it
    r"(?P<mark>boxed\{(?:\\text\w{0,6}\{)?\(?|<(?:final_)?answer>\s{0,3}\(?|"
    r"(?i:answer|option|choice|letter)(?:\s(?i:is|must be|"
    r"should be))?[ \t]{0,3}[*]{0,2}[:=]?[*]{0,2}[ \t]{0,3}[($*\"\\]{0,4})"
    r"(?P<letter>[a-j])(?=\)?\}|\)?\s{0,3}</|[.)$*\"\\]{0,5}\s{0,9}(?:$|\n))"
)
_OTHER = (
    r"[({$*\\\s]{0,4}(?:boxed\{\s{0,2}\(?)?(?:\\?text\w{0,6}\{\(?)?(?:(?:[Oo]ption|[Cc]hoice)\s{1,3})?"
    r"\(?[A-HJ](?![A-Za-z'])"
)
_AND = r",?\s{0,4}(?:\\text\s{0,2}\{\s{0,2})?WORD(?:\s{0,2}\})?"
_OR = _AND.replace("WORD", "(?:or|/|and/or)")
_HEDGE = re.compile(  # "B or C", "B, C": no choice; a pronoun and a sentence that goes on are none of the options
    rf"(?:[)\]}}$*\s]|\.(?!\s)){{0,6}}\(?(?:{_OR}\s{{0,4}}"
    r"(?:maybe |perhaps |possibly |even |(?:the )?(?:correct |final )?answer (?:is|could be|may be|might be) )?"
    rf"{_OTHER}|(?:(?:[,;+&|]|\\&|{_AND.replace('WORD', 'and')}|\s|(?<=[)])(?=[(]))\s{{0,4}}{_OTHER}[)\]}}.$*]{{0,6}})"
    rf"{{1,9}}(?:\s{{0,4}}(?:$|\n|are\b|(?<=[.] ))|{_OR}\s{{0,4}}{_OTHER}))"
)
_DENIED = re.compile(  # in one sentence: what "this" is in the next one is not known, where no statement is before it
    rf"(?<![A-Za-z]){OPEN}(?P<letter>[A-J])(?=(?i:{REJECTED.pattern}))(?!\s{{0,3}}\?|\W{{1,6}}(?i:wait|no|hmm+|but|oh|sorry|"
    r"actually|on|that|this|it|which)\b)|(?i:\b(?:eliminates?|reject|exclude|discard|rule[sd]? out|not|isn't|can't be|"
    rf"cannot be)\s{{1,3}}(?:(?:option|choice|answer)\s{{1,3}})?){OPEN}(?P<option>[A-J])(?![A-Za-z'])"
)
_JOINED = re.compile(  # "A is correct and B is correct", one box beside another
    rf"{CLOSE}(?:\s{{1,3}}is\s{{1,3}}(?:also\s{{1,3}})?(?:correct|right|true|the answer)[.\s]{{0,4}})?[ \t]{{0,3}}"
    r"(?:[,;&|/]|\b(?:and|or)\b){0,2}[ \t]{0,3}(?:the\s)?"
)
_REVISES = re.compile(
    r"\b(?:wait|hmm+|actually|rather|instead|oops|sorry|correct(?:ion|ing)|reconsider\w*|re-?(?:check|examin|evaluat|"
    r"think)\w*|on (?:second thought|reflection|checking)|(?:made|my|is) a mistake|(?:that|this|which) (?:is|was) "
    r"(?:wrong|incorrect)|double[- ]?check\w*|no[,.!:])",
    re.IGNORECASE,
)
_DRESS = re.compile(  # fonts, sizes, spaces and braces of a box, which say nothing
    rf"{FONT}|\\(?:boxed|fbox|displaystyle|textstyle|tiny|small|normalsize|large|Large|LARGE|huge|Huge|bigg?|Bigg?|left|"
    r"right|q?quad)(?![A-Za-z])|\\[,;:! ]|[~{}\s]"
)
_LEADING_DRESS = re.compile(rf"^(?:{_DRESS.pattern})+")
_BOXED = re.compile(
    rf" {{0,9}}(?i:(?:the +)?(?:correct +|final +)?(?:option|choice|answer) *(?:is\b)? *[:\uff1a]? *)?{OPEN} {{0,3}}"
    r"(?P<letter>[A-J])(?![A-Za-z'])(?: {1,3}(?=[)\]]))?[)\]$*\"]{0,6}(?P<rest>.*)"
)
_AFTER_BOXED = re.compile(  # nothing, or the option's text: after a mark, or in a font of its own
    r" *(?:$|(?<=\))(?! *[=+^_*/<>|]| *-\D| *\([A-J]\))|[)\].:,](?! *[=+^_*/])|"
    r"[\u2013\u2014-] (?=[^\d=+*/^_\\]*[A-Za-z]{3})|(?<=  ) *(?![=+^_*/\\<>|(-]))"
)
_LONGEST_BOX = 300
_LETTER_BEFORE_TEXT = re.compile(r"(?:^|\n)[ \t]{0,9}\(?([A-J])(?:[).:]|\s)")

_REVISION_WITHIN = 400  # characters before a statement
_TAIL = 2000  # characters at the end of a text that are read first: nearly all texts end in their answer


def choice_letter(text: str, truncated: bool = False) -> str | None:
    """The option that a text chooses, A to J; None if there is none. Of a truncated text only boxes and tags count.

    A weaker statement after a strong one is a remark, unless words of revision stand before it.
    """
    if not text.isascii():
        text = text.translate(_FULL_WIDTH)
    text = _SMALL.sub(
        lambda small: small["mark"] + small["letter"].upper(), _HTML.sub("", text) if "<" in text else text
    )
    tags = ((tag, choice_letter(tag["inside"].strip())) for tag in (_TAG.finditer(text) if "<" in text else ()))
    tagged = [Statement(*tag.span(), letter, STRONG) for tag, letter in tags if letter]
    statements = marked = [*_boxed(text), *tagged]
    if not truncated:
        tail = max(0, len(text) - _TAIL)
        statements = [*marked, *stated(text, tail)]
        # Where the last strong statement is not near the beginning of the tail, none before the tail has a part in it.
        from_end = sorted(statements, reverse=True)
        strong = (letter.begin for letter in from_end if weighed(text, letter).strength == STRONG)
        if tail and next(strong, 0) < tail + _TAIL // 2:
            statements = [*marked, *stated(text)]
    if len({statement.letter for statement in statements}) > 1:
        statements = [weighed(text, statement) for statement in statements]
    chosen: Statement | None = None
    last: Statement | None = None
    hedged_until = 0
    for statement in sorted(statements):
        if statement.begin < hedged_until:
            continue
        joined = last and last.letter != statement.letter and _JOINED.fullmatch(text, last.end, statement.begin)
        last = statement
        if joined:
            chosen = None
            continue
        since = max(chosen.end, statement.begin - _REVISION_WITHIN) if chosen else 0
        if chosen and chosen.strength > statement.strength and not _REVISES.search(text, since, statement.end):
            chosen = chosen._replace(end=statement.end) if chosen.letter == statement.letter else chosen
            continue
        hedge = _HEDGE.match(text, statement.end)
        chosen, hedged_until = (statement, 0) if statement.letter and not hedge else (None, hedge.end() if hedge else 0)
    if chosen is None or chosen.letter not in text[chosen.end + 1 :]:
        return chosen and chosen.letter
    denied = (match["letter"] or match["option"] for match in _DENIED.finditer(text, chosen.end + 1))
    return None if chosen.letter in denied else chosen.letter


def _boxed(text: str) -> Iterator[Statement]:
    for box in boxes(text):
        if box.closing is None:
            continue
        content = text[box.opening : min(box.closing, box.opening + _LONGEST_BOX)].strip()
        match = _BOXED.match(_DRESS.sub(" ", _LEADING_DRESS.sub("", content)))
        if match is None or REJECTED.match(text, box.end):
            continue
        rest = match["rest"]
        hedged = _HEDGE.match(rest)
        if hedged or (_AFTER_BOXED.match(match.string, match.start("rest")) and not REJECTED.match(rest)):
            yield Statement(box.begin, box.end, "" if hedged else match["letter"], STRONG)


def gold_letter(gold: str) -> str | None:
    """The letter of a reference option, with or without its text: ``C``, ``(C) 42``, ``C Cecile``."""
    if len(gold) == 1 and gold in LETTERS:
        return gold
    match = _LETTER_BEFORE_TEXT.search(gold)
    return choice_letter(gold) or (match.group(1) if match else None)
