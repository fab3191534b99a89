r"""Finding the answer that a text commits to.

Nothing is guessed: a sample without a marked answer has none, however right its last number may be. A mark is the last
``\boxed{...}`` (or ``\fbox``), else the last final-answer line. The rules, with examples, are in docs/grading.md.
"""

import re
from dataclasses import dataclass

from evals.grading.boxes import REVISION, ends_in_bare_box, last_boxes
from evals.grading.verdict import Kind, Reason
from evals.grading.visible import visible_part, without_next_task

_ANSWER_MARKS = {
    word: tuple(word + end for end in (":", " :", "**:", "__:", "\uff1a", "**\uff1a"))
    for word in ("answer", "Answer", "ANSWER", "答案")
}
_FINAL_MARKS = {
    "answer": ("final answer is", "Final answer is"),
    "Answer": ("final Answer is", "Final Answer is"),
    "ANSWER": ("FINAL ANSWER IS",),
    "答案": ("答案是",),
}
_HEADING = re.compile(  # ``### Final Answer`` alone on its line
    r"^[ \t]*(?:#{1,6}[ \t]*|\*\*|__)[*_]{0,2}(?:the )?(?:final )?answer[ \t]*[*_]{0,4}[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_FENCE = re.compile(r"```\w*[ \t]*\n\s*")
_HASHES = re.compile(r"(?:^|\n)####[ \t]*([-+$]?[\d.,]+%?)\s*$")
_TAG = "<answer>"
_CLOSED_TAG = "</answer>"
_MORE = re.compile(r"\b(?:or|also|another|other|both|either|alternatively|second)\b", re.IGNORECASE)
_SENTENCES = re.compile(r"(\$[^$]+\$|[-+]?[\d.,/]*\d%?|\S+)\.\s+[A-Z]", re.DOTALL)
_I_HOPE = re.compile(r"I hope it is correct", re.IGNORECASE)

_LEAD_IN = re.compile(
    r"(?:^|[\s,]|(?<=[a-z])(?=['\u2019]s))(?:is|are|equals?|['\u2019]s|est|es|ist|sont|son|be|get|have|find that)"
    r"[ \t]*[:=]?(?=\s|\(|$)|[:\uff1a=是为]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Extraction:
    """An answer, or the reason why there is none (never both)."""

    answer: str | None
    reason: Reason | None = None


def extract_answer(prediction: str, kind: Kind, truncated: bool, in_thinking: bool = False) -> Extraction:
    """Find the answer in a prediction; in a truncated one only a complete box counts: a line may have lost its end.

    ``in_thinking``: the prompt ended in the opening of thinking, where nothing counts.
    """
    whole = visible_part(prediction, in_thinking)
    text = without_next_task(whole, lambda part: _is_answered(part, kind))
    truncated = truncated and text == whole  # cut off after the answer, in a task of the model's own
    missing = Reason.TRUNCATED if truncated else Reason.NO_ANSWER
    if kind is Kind.CHOICE:
        letter = _letter(text, truncated)
        return Extraction(letter) if letter else Extraction(None, missing)
    text = _within_tags(text, truncated)
    boxed = last_boxes(text)
    if boxed is not None:
        answer = "" if truncated and boxed and ends_in_bare_box(text) else ", ".join(boxed)
    else:
        line = text if kind is Kind.ANSWER else None if truncated else final_answer_line(text)
        answer = sentence_answer(line) if line else ""
    return Extraction(answer) if answer.strip() else Extraction(None, missing)


def _letter(text: str, truncated: bool = False) -> str | None:
    from evals.grading.multiple_choice import choice_letter  # many patterns, which most processes never need

    return choice_letter(text, truncated)


def _is_answered(text: str, kind: Kind) -> bool:
    if kind is Kind.CHOICE:
        return _letter(text) is not None
    return bool(last_boxes(text)) or bool(final_answer_line(text)) or _CLOSED_TAG in text


def _within_tags(text: str, truncated: bool) -> str:
    """What the last ``<answer>`` holds, as a text that ends in a box, unless a box follows it."""
    opening = text.rfind(_TAG) if "<" in text else -1
    if opening < 0:
        return text
    inside, closing, rest = text[opening + len(_TAG) :].partition(_CLOSED_TAG)
    if (truncated and not closing) or last_boxes(rest):
        return text
    return inside if last_boxes(inside) is not None else rf"\boxed{{{sentence_answer(inside)}}}"


def extract_gold(gold: str) -> str:
    """The reference answer within a gold text: its boxes, else the text itself (empty if there is none)."""
    boxed = last_boxes(gold, lenient=True)
    if boxed is not None:
        return ", ".join(boxed)
    numeric = re.search(r"answer is\s+([-+]?[\d.][\d.,\s+\-*/^()]*)$", gold.strip())
    return numeric.group(1) if numeric else gold.strip()


def final_answer_line(text: str) -> str | None:
    """The line after the last ``Answer:`` or ``final answer is``, or the next one that is not empty; None without both.

    Searched from the end, for a long text speaks of answers all along.
    """
    if "#" in text and (hashes := _HASHES.search(text)):
        return hashes[1]
    headings = list(_HEADING.finditer(text)) if "#" in text or "**" in text or "__" in text else []
    if headings and text[headings[-1].end() :].strip():
        return _first_line(text[headings[-1].end() :])
    end = len(text)
    marks = [mark for word in _ANSWER_MARKS if word in text for mark in (*_ANSWER_MARKS[word], *_FINAL_MARKS[word])]
    while marks:
        position, mark = max((text.rfind(mark, 0, end), mark) for mark in marks)
        if position < 0:
            return None
        if position == 0 or not text[position - 1].isalpha():
            return _first_line(text[position + len(mark) :])
        end = position
    return None


def _first_line(text: str) -> str:
    """The first line that is not empty, or the formula that is displayed there; of sentences after a value nothing."""
    rest = _FENCE.sub("", text.lstrip(" \t\r\n:*_"), count=1) if "```" in text else text.lstrip(" \t\r\n:*_")
    display = _DISPLAY.match(rest)
    line = _I_HOPE.split(display[0] if display else rest.split("\n", 1)[0])[0].rstrip(" \t\r*_`")
    sentences = _SENTENCES.match(line)
    after = sentences.end(1) + 1 if sentences else 0
    return sentences[1] if sentences and not (REVISION.search(line, after) or _MORE.search(line, after)) else line


_DISPLAY = re.compile(r"\$\$[^$]{1,1000}\$\$|\\\[.{1,1000}?\\\]", re.DOTALL)
_MATH = re.compile(
    r"(?<!\\)\$\$(?P<display>.+?)(?<!\\)\$\$|(?<!\\)\$(?P<inline>(?:\\.|[^$\n\\])+?)\$|"
    r"(?<!\\)\\\[(?P<bracket>.+?)\\\]|(?<!\\)\\\((?P<paren>[^\n]+?)\\\)",
    re.DOTALL,
)
_JOINED = re.compile(r"\s*(?:,|;|,?\s*\b(?:and|or)\b)\s*")
_WORD = re.compile(r"(?<![\\A-Za-z\d_])[^\W\d_]{2,}", re.UNICODE)
_COMMAND_ARGUMENT = re.compile(r"\\(?:text\w*|math\w*|mbox|operatorname|begin|end)\s*\{[^{}]*\}")
_NOT_PROSE = re.compile(
    r"and|or|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|sqrt|pi|inf|infinity|percent|pct|[ap]m", re.IGNORECASE
)
_DENIAL = re.compile(  # what is denied is the last value
    r"\b(?:not|cannot|can't|isn't|never|nor|neither|unsure|doubt)\b\D{0,60}[\d.,/]{0,60}\D{0,12}$", re.IGNORECASE
)
_MAX_SENTENCE = 4_000  # an answer or one sentence; longer text is searched for nothing but boxes
_LEADING_NUMBER = re.compile(r"[\s(*$€£¥₹]*(?P<value>[-+\u2212]?\d*(?:[.,/ ]?\d+)*\s*(?:\\?%)?)(?P<rest>[^\d+*/^=\\]*)")


def sentence_answer(text: str) -> str:
    r"""The answer in an answer, or in one sentence that ends in it.

    Formulas between ``$`` (inline ones do not span lines) are taken as they are; several of them joined by "and" are
    parts of one answer. A sentence without formulas must lead up to its value: "is 4", "= 4", ": 4". One that denies
    its last value has none: it is taken as it stands.
    """
    text = text.strip()
    if len(text) > _MAX_SENTENCE:
        return text
    line = final_answer_line(text)
    if line and line != text:
        return sentence_answer(line)
    formulas = list(_MATH.finditer(text))
    outside = _MATH.sub(" ", text)
    if _DENIAL.search(_MATH.sub(" 0 ", text)):
        return text
    if formulas and not _is_prose(outside):
        return text
    if formulas:
        tail = _value_after_lead_in(text[formulas[-1].end() :])
        return tail if tail and tail[0].isdigit() else _last_formulas(text, formulas)
    if not _is_prose(_COMMAND_ARGUMENT.sub(" ", text)):
        return text
    return _value_after_lead_in(text) or text


def _value_after_lead_in(text: str) -> str | None:
    """Return the value after the last "is", ":" or similar: a leading number, else all of it."""
    leads = list(_LEAD_IN.finditer(text))
    rest = text[leads[-1].end() :].strip().rstrip(".").strip() if leads else ""
    number = _LEADING_NUMBER.fullmatch(rest)
    return (number and number["value"].strip()) or rest or None


def _is_prose(text: str) -> bool:
    return any(_NOT_PROSE.fullmatch(word) is None for word in _WORD.findall(text))


def _last_formulas(text: str, formulas: list[re.Match[str]]) -> str:
    """The last formula, and those before it that are joined to it."""
    first = len(formulas) - 1
    while first > 0 and _JOINED.fullmatch(text, formulas[first - 1].end(), formulas[first].start()):
        first -= 1
    return ", ".join(str(match[match.lastgroup or 0]).strip() for match in formulas[first:])
