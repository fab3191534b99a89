r"""Finding the answer that a text commits to.

Nothing is guessed: a sample without a marked answer has none, however right its last number may be. A mark is the last
``\boxed{...}`` (or ``\fbox``), else the last final-answer line. The rules, with examples, are in docs/grading.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from evals.grading.verdict import Kind, Reason

_BOX = re.compile(r"\\(?:[a-zA-Z]*boxed|fbox|framebox)(?![a-zA-Z])")
_BRACELESS = re.compile(r"((?:\\(?![a-zA-Z]*box)[a-zA-Z]+(?:\{[^{}]{0,99}\}){0,2}|[^\s$\\{},;]){1,60})")
_MAX_GAP = 70  # characters between two boxes that can still be parts of one answer
_CONNECTOR = re.compile(r",|;|&|\b(?:and|or)\b")
_BARE_GAP = re.compile(r"(?:\\q?quad|[^A-Za-z0-9=])*")
_MAX_BARE_GAP = 24  # the same, where there are no words between them
_TEXT_COMMAND = re.compile(r"\\(?:text|mbox|textrm|mathrm)(?![a-zA-Z])|\\q?quad")
_REVISION = re.compile(
    r"[.!?]\s|\n\s*\n|\b(?:but|wait|actually|instead|rather|correct\w*|wrong|no|not|then|so|thus|hence|therefore|"
    r"final|finally|answer|check\w*|recheck\w*|recall|gives?|because|since|however|hmm+|oops|sorry|mistake)\b",
    re.IGNORECASE,
)

_ANSWER_MARKS = {
    word: tuple(word + end for end in (":", " :", "**:", "__:", "\uff1a", "**\uff1a"))
    for word in ("answer", "Answer", "ANSWER")
}
_FINAL_MARKS = {
    "answer": ("final answer is", "Final answer is"),
    "Answer": ("final Answer is", "Final Answer is"),
    "ANSWER": ("FINAL ANSWER IS",),
}
_I_HOPE = re.compile(r"I hope it is correct", re.IGNORECASE)

_LEAD_IN = re.compile(
    r"(?:^|[\s,]|(?<=[a-z])(?=['\u2019]s))(?:is|are|equals?|['\u2019]s|est|es|ist|sont|son|be|get|have|find that)"
    r"[ \t]*[:=]?(?=\s|\(|$)|[:\uff1a=是为]",
    re.IGNORECASE,
)
_LETTER_OPENING = r"[\\$({*\[]{0,4}(?:(?:text\w{0,6}|mathrm|mathbf|boxed)\{ {0,2}\(?)?"
_LETTER_PATTERNS = tuple(  # white space is bounded: three optional gaps in a row would take cubic time
    re.compile(rf"{lead}\s{{0,4}}{_LETTER_OPENING}([A-J])(?![A-Za-z'])")
    for lead in (
        r"(?i:answer|réponse|答案)\*{0,2}\s{0,4}(?i:is|est|是)?\s{0,4}[:\uff1a]?\*{0,2}\s{0,4}(?i:(?:option|choice)\b)?",
        r"(?i:it(?:'s|\u2019s| is)|choose|option|choice|select|pick|is for sure)",
    )
)
_OTHER_LETTER = r"[({$*\\\s]{0,4}(?:text\w{0,6}\{\(?)?[A-HJ](?![A-Za-z'])"
_HEDGE = re.compile(  # "B or C", "B, C": no choice; a pronoun and a sentence that goes on are none of the options
    rf"[)\]}}.$*\s]{{0,6}}(?:,?\s{{0,4}}(?:or|/)\s{{0,4}}{_OTHER_LETTER}"
    rf"|(?:,|&|\\&|,?\s{{0,4}}and)\s{{0,4}}{_OTHER_LETTER}[)\]}}.$*\s]{{0,6}}(?:$|\n))"
)
_LETTER_FIRST = re.compile(rf"\s{{0,9}}{_LETTER_OPENING}([A-J])(?![A-Za-z'])")
_LETTER_LINE = re.compile(r"(?:^|\n)[ \t]{0,9}[({*\[]{0,3}([A-J])(?:[)\].:,*]|[ \t]{0,9}(?:\n|$))")
_LETTER_BEFORE_TEXT = re.compile(r"(?:^|\n)[ \t]{0,9}\(?([A-J])(?:[).:]|\s)")


@dataclass(frozen=True, slots=True)
class Extraction:
    """An answer, or the reason why there is none (never both)."""

    answer: str | None
    reason: Reason | None = None


def extract_answer(prediction: str, kind: Kind, truncated: bool) -> Extraction:
    """Find the answer in a prediction.

    Args:
        prediction: the model's text.
        kind: how it is to be read.
        truncated: the text was cut off; then only a complete box counts, for a line may have lost its end.
    """
    text = visible_part(prediction)
    missing = Reason.TRUNCATED if truncated else Reason.NO_ANSWER
    if kind is Kind.CHOICE:
        letter = None if truncated and not _BOX.search(text) else choice_letter(text)
        return Extraction(letter) if letter else Extraction(None, missing)
    boxed = last_boxes(text)
    if boxed is not None:
        answer = ", ".join(boxed) if boxed else ""
    elif kind is Kind.ANSWER:
        answer = sentence_answer(text)
    elif truncated:
        answer = ""
    else:
        line = final_answer_line(text)
        answer = sentence_answer(line) if line else ""
    return Extraction(answer) if answer.strip() else Extraction(None, missing)


def extract_gold(gold: str) -> str:
    """The reference answer within a gold text: its boxes, else the text itself (empty if there is none)."""
    boxed = last_boxes(gold, lenient=True)
    if boxed is not None:
        return ", ".join(boxed)
    numeric = re.search(r"answer is\s+([-+]?[\d.][\d.,\s+\-*/^()]*)$", gold.strip())
    return numeric.group(1) if numeric else gold.strip()


def visible_part(text: str) -> str:
    """What a reader is shown: the text after finished thinking, or before unfinished thinking.

    A box inside <think> is a draft. Once thinking has been closed, only what follows it counts.
    """
    closed = text.rfind("</think>")
    if closed >= 0:
        text = text[closed + len("</think>") :]
    opened = text.find("<think>")
    return text if opened < 0 else text[:opened]


def last_boxes(text: str, lenient: bool = False) -> list[str] | None:
    r"""Contents of the last box, and of the boxes before it that are parts of the same answer.

    ``\boxed{-2} \text{ and } \boxed{1}`` is one answer of two parts; ``\boxed{180}. Checking again gives \boxed{204}``
    is a revision, of which the last counts.

    Args:
        text: the text to look through.
        lenient: an unclosed last box reaches to the end of the text (for golds, which people cut short).

    Returns:
        None if there is no box at all; an empty list if the last one is empty or was never closed.
    """
    if "box" not in text:
        return None
    starts = [match.span() for match in _BOX.finditer(text)]
    if not starts:
        return None
    parts: list[str] = []
    following = len(text)
    for begin, end in reversed(starts):
        if begin >= following:
            continue
        content, stop = _box_content(text, end)
        if content is None:
            if parts:
                break
            return [text[end:].strip().removeprefix("{").strip()] if lenient else []
        if stop > following:  # a box around boxes: what it holds has been read already
            inner = _BOX.sub("", content).strip()
            parts = [inner[1:-1] if inner.startswith("{") and inner.endswith("}") and len(parts) == 1 else inner]
            following = begin
            continue
        if parts and not _same_answer(text[stop:following]):
            break
        if not content and not parts:
            return []
        if not parts or parts[0] != content:
            parts.insert(0, content)
        following = begin
    return parts


def _box_content(text: str, position: int) -> tuple[str | None, int]:
    """Content of the box whose command ends at ``position``, and where it stops; None if it is never closed."""
    while position < len(text) and text[position].isspace():
        position += 1
    if position >= len(text):
        return None, position
    if text[position] != "{":
        match = _BRACELESS.match(text, position)
        if match is None:
            return None, position
        return match.group(1).rstrip("."), match.end()
    closing = matching_brace(text, position)
    return (None, position) if closing is None else (text[position + 1 : closing].strip(), closing + 1)


def matching_brace(text: str, opening: int) -> int | None:
    r"""Index of the brace that closes the one at ``opening``; ``\{`` and ``\}`` are characters, not braces."""
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, opening):
        token = match.group()
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


def _same_answer(gap: str) -> bool:
    """Whether the text between two boxes joins them into one answer."""
    if len(gap) <= _MAX_BARE_GAP and _BARE_GAP.fullmatch(gap) and "\n\n" not in gap:
        return True
    words = _TEXT_COMMAND.sub(" ", gap)
    return len(gap) <= _MAX_GAP and _CONNECTOR.search(words) is not None and _REVISION.search(words) is None


def final_answer_line(text: str) -> str | None:
    """What follows the last ``Answer:`` or ``final answer is``, to the end of its line; None if there is neither.

    Searched from the end, for a long text speaks of answers all along.
    """
    end = len(text)
    marks = [mark for word in _ANSWER_MARKS if word in text for mark in (*_ANSWER_MARKS[word], *_FINAL_MARKS[word])]
    while marks:
        position, mark = max((text.rfind(mark, 0, end), mark) for mark in marks)
        if position < 0:
            return None
        if position == 0 or not text[position - 1].isalpha():
            line = text[position + len(mark) :].split("\n", 1)[0]
            return _I_HOPE.split(line)[0].lstrip(" \t:*_").rstrip(" \t*_")
        end = position
    return None


_MATH = re.compile(
    r"(?<!\\)\$\$(?P<display>.+?)(?<!\\)\$\$|(?<!\\)\$(?P<inline>(?:\\.|[^$\n\\])+?)\$|"
    r"(?<!\\)\\\[(?P<bracket>.+?)\\\]|(?<!\\)\\\((?P<paren>[^\n]+?)\\\)",
    re.DOTALL,
)
_WORD = re.compile(r"(?<![\\A-Za-z\d_])[^\W\d_]{2,}", re.UNICODE)
_COMMAND_ARGUMENT = re.compile(r"\\(?:text\w*|math\w*|mbox|operatorname|begin|end)\s*\{[^{}]*\}")
_NOT_PROSE = re.compile(
    r"and|or|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|sqrt|pi|inf|infinity|percent|pct", re.IGNORECASE
)
_MAX_SENTENCE = 4_000  # an answer or one sentence; longer text is searched for nothing but boxes
_LEADING_NUMBER = re.compile(r"[\s(*$€£¥₹]*(?P<value>[-+\u2212]?\d*(?:[.,/ ]?\d+)*\s*(?:\\?%)?)(?P<rest>[^\d+*/^=\\]*)")


def sentence_answer(text: str) -> str:
    r"""The answer in an answer, or in one sentence that ends in it.

    Formulas between ``$`` (inline ones do not span lines) are taken as they are; several of them joined by "and" are
    parts of one answer. A sentence without formulas must lead up to its value: "is 4", "= 4", ": 4".
    """
    text = text.strip()
    if len(text) > _MAX_SENTENCE:
        return text
    line = final_answer_line(text)
    if line and line != text:
        return sentence_answer(line)
    formulas = list(_MATH.finditer(text))
    outside = _MATH.sub(" ", text)
    if formulas and not _is_prose(outside):
        return text
    if formulas:
        tail = _value_after_lead_in(text[formulas[-1].end() :])
        return tail if tail and tail[0].isdigit() else _last_formulas(text, formulas)
    if not _is_prose(_COMMAND_ARGUMENT.sub(" ", text)):
        return text
    return _value_after_lead_in(text) or text


def _value_after_lead_in(text: str) -> str | None:
    """What follows the last "is", ":" or the like: its number if it starts with one, else all of it."""
    leads = list(_LEAD_IN.finditer(text))
    rest = text[leads[-1].end() :].strip().rstrip(".").strip() if leads else ""
    number = _LEADING_NUMBER.fullmatch(rest)
    return number["value"].strip() if number and number["value"].strip() else rest or None


def _is_prose(text: str) -> bool:
    return any(_NOT_PROSE.fullmatch(word) is None for word in _WORD.findall(text))


def _last_formulas(text: str, formulas: list[re.Match[str]]) -> str:
    parts = [_formula(formulas[-1])]
    following = formulas[-1].start()
    for match in reversed(formulas[:-1]):
        if not re.fullmatch(r"\s*(?:,|;|,?\s*\b(?:and|or)\b)\s*", text[match.end() : following]):
            break
        parts.insert(0, _formula(match))
        following = match.start()
    return ", ".join(parts)


def _formula(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


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
