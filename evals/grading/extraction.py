r"""Finding the answer that a text commits to.

Nothing is guessed: a sample without a marked answer has none, however right its last number may be. A mark is the last
``\boxed{...}`` (or ``\fbox``), else the last final-answer line. The rules, with examples, are in docs/grading.md.
"""

import re
from collections.abc import Iterator

from evals.grading.assertion import ADVERB, is_denied, is_of_another
from evals.grading.boxes import REVISION, boxes, last_boxes
from evals.grading.languages import ANSWER_WORDS, COPULAS, LAST_COPULAS, NEGATIONS, small_letters
from evals.grading.remarks import stated_number
from evals.grading.verdict import Kind, Reason
from evals.grading.visible import visible_part, without_next_task

_MARKS = {  # by what the text then has to hold; fast where they begin with it; "reanswer:" is none
    "nswer": re.compile(r"nswer(?<![^\W\d_][Aa]nswer)(?:(?:\*\*|__| )?[:\uff1a]| \u2192|(?<=[Ff]inal [Aa]nswer) is)"),
    "NSWER": re.compile(r"NSWER(?<![^\W\d_]ANSWER)(?:(?:\*\*|__| )?[:\uff1a]|(?<=FINAL ANSWER) IS)"),
    "答案": re.compile(r"答案(?:(?:\*\*|__| )?[:\uff1a]|是)"),
}
_VALUE = (
    r"(?=[ \t*_]*(?:[-+.\d$\\(\[{€£¥₹√π\u2212\n]|[:\uff1a]|[a-z] ?[<>=\u2264\u2265]))"  # and no words as in "is near 7"
)
_CHANGED = rf"{'|'.join(NEGATIONS)}|plus|minus|times|mod\w*|(?:multipli|divid|squar|cub|doubl|tripl|halv|reduc)ed"
_AFTER_ANSWER = re.compile(  # a colon, or "(in dollars) is": what makes a mark of the word for "answer" of any language
    r"[ \t]?(?:\*\*|__)?[ \t]?(?:\*\*|__)?[:\uff1a]"
    r"|s?(?:[ \t]\([^()\n]{1,40}\)|,[^,.!?:\n]{1,40},|[ \t](?:to|for|of|in|that|which|i|we|you)\b[^.!?:\n]{0,60}?|"
    rf"[ \t](?!(?:{_CHANGED})\s)[^\W\d_][^\s\d_.,:;!?$\\(){{}}\[\]]{{1,13}}){{0,2}}"
    rf"(?:[ \t](?:(?:would|must|should|will|has to|can only) be|is equal to|equals|is given by|(?:turns|comes|works) "
    rf"out (?:to be|to|as)|{'|'.join(filter(str.isascii, COPULAS))})(?=[\s:$\\n]){ADVERB}(?:(?:n['\u2019]t|[ \t]not)"
    rf"[ \t][^\n.!?]{{1,40}}?,?[ \t](?:but(?:[ \t]rather)?|it(?:['\u2019]s|[ \t]is))(?=[ \t]))?|[ \t]?(?:"
    rf"{'|'.join(word for word in COPULAS if not word.isascii())}|[=:\uff1a])){_VALUE}"
    # or the verb is last, or there is none
    rf"|(?<=[\u0600-\u0dff])[ \t]{_VALUE}(?=(?:[^\n]*(?:{'|'.join(LAST_COPULAS)})|[-+]?\d[\d.,]*)"
    r"[.\u0964\u3002]?[ \t]*(?:\n|$))"
)
_NUMERIC_GOLD = re.compile(r"answer is\s+([-+]?[\d.][\d.,\s+\-*/^()]*)$")
_BEFORE = 200  # characters before a mark that may take it back
_TAIL = 1_000  # characters at the end of a text in which "the answer is" and marks of other languages are looked for
_HEADING = re.compile(  # ``### Final Answer`` alone on its line, ``**Answer.** 7``
    r"(?im)^[ \t>]*(?:(?:#{1,6}[ \t]*|\*\*|__)[*_]{0,2}(?:the )?(?:final )?answer[ \t]*[*_]{0,4}[ \t]*$"
    r"|(?:\*\*|__)(?:the )?(?:final )?answer\.(?:\*\*|__))"
)
_FENCE = re.compile(r"```\w*[ \t]*\n\s*")
_HASHES = re.compile(r"(?<!#)####[ \t]*(?!#)(?=[^\n]*\d)([^\n]+)\s*$")
_OPENING_TAG, _CLOSING_TAG = (re.compile(rf"<{slash}(?:final_)?answer>", re.IGNORECASE) for slash in ("", "/"))
_EMPHASIS = re.compile(  # ``**56** apples``, and not ``2**3``
    r"(?<![\w)\]}*^\\])(?:\*{2,3}|_{2,3})(?=\S)|"
    r"(?<=[^\s^\\{])(?:(?:\*{2,3}|_{2,3})(?:!\s*$|(?![\w(\[{\\]))|[*_`](?=[.,;:!]?\s*$))"
)
_VERB_LAST = re.compile(rf"(?:\s?(?:{'|'.join(LAST_COPULAS)}))?[.\u0964\u3002]?$")
_HTML = re.compile(r"</?(?:b|i|u|em|strong|br|p|span|div|code|mark|answer|final_answer)\s*/?>", re.IGNORECASE)
_ORNAMENTS = " \t\r\n*_`\u2192\u25a0\u25a1\u25aa\u220e\ufe0f" + "".join(
    map(chr, (*range(0x2600, 0x27C0), *range(0x1F300, 0x1FB00)))
)
_MORE = re.compile(r"\b(?:or|also|another|other|both|either|alternatively|second)\b", re.IGNORECASE)
_SENTENCES = re.compile(r"(\$[^$]+\$|[-+]?[\d.,/]*\d%?|[^.!?\n\d]*\d(?:[^.!?\n]|\.\d)*|\S+)\.\s+[A-Z]", re.DOTALL)
_I_HOPE = re.compile(r"I hope it is correct", re.IGNORECASE)
# Of sentences, lines and displays; what GSM8K's calculator (``<<5+13=18>>``) gives begins.
_STATEMENT_ENDS = re.compile(r"(?<=[.!?])\s+(?=\S)|\n+|\\(?:begin|end)\{[^{}]*\}|\\[\[\]]|<<[^<>\n]*>>")
_SEVERAL = re.compile(r"=[^=,]{1,40}(?:,|\band\b)\s*\$?\s*[A-Za-z]\w{0,2}\s*=")  # "x = 6, y = 2"
_STEP = re.compile(  # "need to subtract 7", "method 2"
    r"(?i)\bneeds? to (?:add|subtract|multiply|divide|find|calculate|compute|check|solve)\b|\b(?:method|step|part|case|"
    r"equation|formula|problem|option|rule|theorem|lemma|example|figure) \d+\W{0,3}$|^let \w = \d+\W*$|"
    r"\b(?:add|subtract|multiply|divide)(?: (?:it|this|that|them|both|sides|each|side))* (?:by )?\$?[\d.]+\W{0,3}$"
)
_VALUED = re.compile(r"\d|\$[^\s$]|\\\(")

_LEAD_IN = re.compile(
    r"(?i)(?:^|[\s,]|(?<=[a-z])(?=['\u2019]s))(?:is|are|equals?|['\u2019]s|est|es|ist|sont|son|be|gets?|have|find that)"
    r"[ \t]*[:=]?(?=\s|\(|$)|[:\uff1a=是为]"
)
_DISPLAY = re.compile(r"\$\$[^$]{1,1000}\$\$|\\\[.{1,1000}?\\\]", re.DOTALL)
_MATH = re.compile(
    r"(?s)(?<!\\)\$\$(?P<display>.+?)(?<!\\)\$\$|(?<!\\)\$(?P<inline>(?:\\.|[^$\n\\])+?)\$|"
    r"(?<!\\)\\\[(?P<bracket>.+?)\\\]|(?<!\\)\\\((?P<paren>[^\n]+?)\\\)"
)
_JOINED = re.compile(r"\s*(?:,|;|,?\s*\b(?:and|or)\b)\s*")
_WORD = re.compile(r"(?<![\\A-Za-z\d_])[^\W\d_]{2,}|[^\W\d_\x00-\u024f]{2,}")
_COMMAND_ARGUMENT = re.compile(r"\\(?:text\w*|math\w*|mbox|operatorname|begin|end)\s*\{[^{}]*\}")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}\s+[A-Za-z]{2,}")  # between the signs of two amounts of money
_NOT_PROSE = re.compile(
    r"and|or|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|sqrt|pi|inf|infinity|percent|pct|[ap]m", re.IGNORECASE
)
_DENIAL = re.compile(  # what is denied is the last value
    r"\b(?:not|cannot|can't|isn't|never|nor|neither|unsure|doubt)\b\D{0,60}[\d.,/]{0,60}\D{0,12}$", re.IGNORECASE
)
_CONTRAST = re.compile(  # "not 12 but 15", "15, rather than 12", "15, because no other fits"
    r"not [^.!?,]{1,40},? but (?:rather )?(?P<answer>.+)|"
    r"(?P<first>[^.!?,]{1,40}),? (?:rather than|instead of) [^.!?,]{1,40}\.?$|"
    r"(?P<value>[^A-Za-z.!?,]{1,40}),? (?:because|since|as) (?!an? )[^.!?\d$\\]+\.?$"
)
_MAX_SENTENCE = 4_000  # an answer or one sentence; longer text is searched for nothing but boxes


def extract_answer(prediction: str, kind: Kind, truncated: bool, in_thinking: bool = False) -> str | Reason:
    """Find the answer in a prediction, or the reason why there is none.

    In a truncated one only a complete box counts, for a line may have lost its end; in thinking, which the prompt may
    have opened (``in_thinking``), nothing does.
    """
    whole = visible_part(prediction, in_thinking)
    of_whole_text = Kind.COMPLETION if kind is Kind.ANSWER else kind
    text = without_next_task(whole, lambda part: bool(_committed_to(part, of_whole_text)))
    truncated = truncated and text == whole  # cut off after the answer, in a task of the model's own
    return _committed_to(text, kind, truncated) or (Reason.TRUNCATED if truncated else Reason.NO_ANSWER)


def _committed_to(text: str, kind: Kind, truncated: bool = False) -> str:
    """The answer in a text; empty without one."""
    if kind is Kind.CHOICE:
        from evals.grading.multiple_choice import choice_letter  # many patterns, which most processes never need

        return choice_letter(text, truncated) or ""
    text = _within_tags(text, truncated)
    if (boxed := last_boxes(text)) is not None:
        is_cut = truncated and not text.endswith("}") and boxes(text)[-1].end == len(text)  # ``\boxed 4`` of 42
        return "" if is_cut else ", ".join(boxed).strip()
    line = text if kind is Kind.ANSWER else None if truncated else final_answer_line(text)
    if kind is Kind.LAST_STATEMENT and line is None and not truncated:
        return next(_statements(text), "").strip()
    return sentence_answer(line, marked=kind is not Kind.ANSWER).strip() if line else ""


def _within_tags(text: str, truncated: bool) -> str:
    """What the last ``<answer>`` holds, as a text that ends in a box, unless a box follows it."""
    if "<" not in text:
        return text
    *_, opening = (None, *_OPENING_TAG.finditer(text))
    if opening is None or (text[: opening.start()].endswith("{") and not _CLOSING_TAG.search(text, opening.end())):
        return text  # no tag, or ``\\boxed{<answer>}``
    closing = _CLOSING_TAG.search(text, opening.end())
    inside = text[opening.end() : closing.start() if closing else len(text)]
    if (truncated and closing is None) or (closing and last_boxes(text[closing.end() :])):
        return text
    return inside if last_boxes(inside) is not None else rf"\boxed{{{sentence_answer(inside, marked=True)}}}"


def extract_gold(gold: str) -> str:
    """The reference answer in a gold text: its boxes, what follows ``####``, else the text itself; empty if none."""
    boxed = last_boxes(gold, lenient=True) if "box" in gold else None
    if boxed is not None:
        return ", ".join(boxed)
    if "####" in gold and (hashes := _HASHES.search(gold)):
        return hashes[1].strip()
    gold = gold.strip()
    numeric = _NUMERIC_GOLD.search(gold) if "answer is" in gold else None
    return numeric[1] if numeric else gold


def final_answer_line(text: str) -> str | None:
    """The line after the last ``Answer:`` or "the answer is", or the next one that is not empty; None without both."""
    # one character is looked for in a tenth of the time that several take
    if "#" in text and "####" in text and (hashes := _HASHES.search(text, max(0, text.rstrip().rfind("\n")))):
        return _first_line(hashes[1])
    emphasis = "#" in text or ("*" in text and "**" in text) or ("_" in text and "__" in text)
    headings = list(_HEADING.finditer(text)) if emphasis else []
    if headings and text[headings[-1].end() :].strip():
        return _first_line(text[headings[-1].end() :])
    end = _last_mark(text)
    return _first_line(text[end:]) if end else None


def _last_mark(text: str) -> int:
    """The position where the last mark of a final answer ends; 0 without one."""
    ends = [0]
    for word, pattern in _MARKS.items():
        if word[0] in text and word in text:
            spans = ((match.start() - word.isascii(), match.end()) for match in reversed([*pattern.finditer(text)]))
            ends.append(next((end for begin, end in spans if _is_given(text, begin, end)), 0))
    start = max(0, len(text) - _TAIL)
    tail = small_letters(text[start:])
    for word in ANSWER_WORDS:
        begin = len(tail)
        while (begin := tail.rfind(word, 0, begin)) >= 0:
            joined = "" < tail[max(begin - 1, 0) : begin] < "\u0590" and tail[begin - 1].isalpha()  # "reanswer"
            statement = _AFTER_ANSWER.match(tail, begin + len(word))
            if statement and not joined and _is_given(tail, begin, statement.end()):
                ends.append(start + statement.end())
                break  # the last one is enough
    return max(ends)


def _is_given(text: str, begin: int, end: int) -> bool:
    """Return whether the mark of a final answer there is of the answer that the text gives."""
    start = max(0, begin - _BEFORE)
    small = small_letters(text[start:end])
    return not (is_denied(small, begin - start, end - start) or is_of_another(small, begin - start, end - start))


def _first_line(text: str) -> str:
    """The first line that is not empty, or the formula that is displayed there; of sentences after a value nothing."""
    rest = re.sub(r"^[ \t:*_]*\n[\s:*_>]*|^[\s:*_]+", "", text)  # of a quotation the sign begins a line
    rest = _FENCE.sub("", rest, count=1) if "```" in rest[:200] else rest
    display = _DISPLAY.match(rest)
    line = _I_HOPE.split(display[0] if display else rest.split("\n", 1)[0])[0]
    line = (_HTML.sub("", line) if "<" in line else line).strip(_ORNAMENTS)
    line = _EMPHASIS.sub("", line) if "*" in line or "_" in line or "`" in line else line
    line = line if line.isascii() else _VERB_LAST.sub("", line)
    sentences = _SENTENCES.match(line)
    after = sentences.end(1) + 1 if sentences else 0
    return sentences[1] if sentences and not (REVISION.search(line, after) or _MORE.search(line, after)) else line


def sentence_answer(text: str, marked: bool = False) -> str:
    r"""The answer in an answer, or in one sentence that ends in it.

    Formulas between ``$`` (inline ones do not span lines) are taken as they are; several of them joined by "and" are
    parts of one answer. A sentence without formulas must lead up to its value ("is 4", "= 4"), or, where it was
    ``marked`` as the answer, state one number ("Josh made $70,000"). One that denies its last value stays as it is.
    """
    text = text.strip()
    if len(text) > _MAX_SENTENCE:
        return text
    line = final_answer_line(text)
    if line and line != text:
        return sentence_answer(line, marked=True)
    formulas = [match for match in _MATH.finditer(text) if not (match["inline"] and _PROSE.search(match["inline"]))]
    outside = _MATH.sub(" ", text) if formulas else text
    if contrast := _CONTRAST.match(text):
        return sentence_answer(str(contrast[contrast.lastgroup or 0]), marked)
    if _DENIAL.search(_MATH.sub(" 0 ", text)):
        return (marked and stated_number(text)) or text
    if formulas and not _is_prose(outside):
        return text
    if formulas:
        tail = _value_after_lead_in(text[formulas[-1].end() :])
        if tail and tail[0].isdigit():
            return tail
        first = len(formulas) - 1  # of those that are joined to the last one
        while first > 0 and _JOINED.fullmatch(text, formulas[first - 1].end(), formulas[first].start()):
            first -= 1
        return ", ".join(str(match[match.lastgroup or 0]).strip() for match in formulas[first:])
    if not _is_prose(_COMMAND_ARGUMENT.sub(" ", text)):
        return text
    value = _value_after_lead_in(text)
    if value is None or not any(map(str.isdigit, value)):
        return (marked and stated_number(text)) or value or text
    return value


def _value_after_lead_in(text: str) -> str | None:
    """Return the value after the last "is", ":" or similar: the number that is stated there, else all of it."""
    leads = list(_LEAD_IN.finditer(text))
    rest = text[leads[-1].end() :].strip().rstrip(".").strip() if leads else ""
    return stated_number(rest) or rest or None


def _statements(text: str) -> Iterator[str]:
    """The value that each sentence with a number or formula states, the last one first; empty where it states none."""
    for sentence in filter(_VALUED.search, reversed(_STATEMENT_ENDS.split(text))):
        *_, position = (match.start() for match in _VALUED.finditer(sentence))
        *_, begin = (0, *(lead.end() for lead in _LEAD_IN.finditer(sentence) if lead.end() <= position))
        states_none = "?" in sentence or any(pattern.search(sentence) for pattern in (_SEVERAL, _STEP, _DENIAL))
        if states_none or len(sentence) > _MAX_SENTENCE or not _is_given(sentence, begin, begin):
            yield ""
            continue
        rest = sentence[begin:].strip().rstrip(" .\\")
        formula, rest = _MATH.match(rest), rest.strip("$")
        is_value = "$" not in rest and not _is_prose(_COMMAND_ARGUMENT.sub(" ", rest))
        yield formula[formula.lastgroup or 0] if formula else stated_number(rest) or (rest if is_value else "")


def _is_prose(text: str) -> bool:
    return any(_NOT_PROSE.fullmatch(word) is None for word in _WORD.findall(text))
