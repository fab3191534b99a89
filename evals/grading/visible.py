"""The part of a response that a reader sees: without thinking, and without the turns that a model made up after it."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable

from evals.grading.languages import EXAMPLE_WORDS, NUMBER_WORDS, ORDERS, SPEAKERS, TASK_WORDS, one_of

_THINKING = (
    r"(?:think(?:ing)?|thoughts?|reasoning|seed:think|analysis|scratch_?pad|reflection|(?:inner_)?monologue|"
    r"thought_process|chain_of_thought)"
)
_ATTRIBUTES = r"(?:\s[^<>\]\u25b7]{0,200}(?<!/))?\|?[>\]\u25b7]"
_OPENING = re.compile(  # ``<think>``, ``<think type="x">``, ``<|begin_of_thought|>``, ``[THINK]``
    rf"(?:<\|?|\u25c1|\[(?=think\]))\s{{0,9}}(?:(?:begin|start)_(?:of_)?)?{_THINKING}{_ATTRIBUTES}", re.IGNORECASE
)
_CLOSING = re.compile(
    rf"(?:<\|?|\u25c1|\[(?=/think\]))\s{{0,9}}(?:/|end_(?:of_)?)\s{{0,9}}{_THINKING}{_ATTRIBUTES}", re.IGNORECASE
)
_CHANNEL = "<|channel|>"
"""In gpt-oss's format (harmony) each message names its channel; a reader sees the channel ``final`` alone."""

_FINAL_CHANNEL = re.compile(r"<\|channel\|>\s{0,9}final\b[^<]{0,200}(?:<\|constrain\|>[^<]{0,200})?<\|message\|>")
_OTHER_CHANNEL = re.compile(r"<\|channel\|>\s{0,9}(?!final\b)[^<]{1,200}<\|message\|>$")
_BARE_CHANNEL = re.compile(r"(?:assistant)?analysis(?![a-z\s:.,;!?_-])")
_BARE_FINAL = "assistantfinal"
"""The same format without its special tokens: ``analysisWe add ... assistantfinalThe sum is 4.``"""

_ENDS_OF_TURNS = re.compile(  # and the beginnings of the user's next one
    r"(?<=\S)\s*<\|(?:im_start|start_header_id)\|>\s*user|(?<=\S)\s*(?:<\|user\|>|<start_of_turn>\s*user)|<\|(?:im_end|endoftext|eot_id|end_of_text|end|return|call|END_OF_TURN_TOKEN)\|>|</s>|<eos>|<EOS_TOKEN>|"
    r"<end_of_turn>|<\uff5cend\u2581of\u2581sentence\uff5c>"
)
_FIRST_HEADER = re.compile(
    r"^\s*(?:<\|(?:im_start|start_header_id|start)\|>\s*assistant\s*(?:<\|end_header_id\|>)?|<\|assistant\|>)"
)


def _words(*lists: Iterable[str]) -> str:
    """A pattern for these words, in capitals or not."""
    return f"(?i:{one_of(*lists)})"


_NUMERAL = r"[\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341]{1,4}"
_NUMBER = (  # "2", "#2", "Nr. 3", "(2)", "IV", "Two", "B"
    r"[ \t]*(?:[-\u2013\u2014][ \t]*)?(?:(?:\#|\u2116|[Nn]\.?(?:umber|o|r|\u00b0|\u00ba)\.?)[ \t]*)?[(\[\uff08]?"
    rf"(?:\d{{1,4}}(?:\.\d{{1,2}})?[a-z]?\ubc88?|[IVX]{{1,5}}|{_words(NUMBER_WORDS)}|{_NUMERAL}|[A-H]|(?<=[(\[])[a-h])(?![^\W_])"
    r"(?:[ \t]*(?:of|/)[ \t]*\d{1,4})?[)\]\uff09]?"
)
_BEFORE = r"[ \t>=\u2022-]{0,9}"
_DRESS = r"(?:\#{1,6}[ \t]{0,3}[*_]{0,3}|[*_\u3010\[(]{1,3}|\\[a-z]{4,13}\*?\{|<(?:b|strong|h\d)>)"
_UNDRESS = r"[ \t]*(?:[*_\u3011\]})]{1,3}|</(?:b|strong|h\d)>)?"
_REMARK = r"(?:[ \t]*[(\[\uff08][^()\[\]\n]{1,60}[)\]\uff09])?"
_COLON, _LINE_END = r"[ \t]*[:\uff1a]", r"[ \t=~-]{0,20}(?=\n|$)"
_ORDER = rf"(?:{_words(ORDERS)}[ \t]+)"
_LEAD = (  # "Here is another problem:"
    r"(?:[Hh]ere(?:'s| is)|[Tt]he|[Nn]ow|[Ll]et(?:'s| us)|[Tt]ry|[Cc]onsider|[Aa]nd|[Aa]|2nd|3rd)[ \t]+"
    rf"(?:[a-z']{{1,8}}[ \t]+){{0,3}}?(?={_words(ORDERS, TASK_WORDS)})"
)
_TASK = rf"{_words(TASK_WORDS, SPEAKERS)}(?:[ \t]statement)?"
_NUMBERED = (
    rf"(?:(?:{_words(TASK_WORDS, EXAMPLE_WORDS, SPEAKERS)}\.?{_NUMBER}|"
    rf"\u7b2c[ \t]?(?:\d{{1,3}}|{_NUMERAL})[ \t]?[\u9053\u4e2a]?[\u9898\u984c\u95ee\u554f])"
    rf"(?:[.)\uff0e\u3001](?!\d)|[ \t]+[-\u2013\u2014][ \t]|{_UNDRESS}{_REMARK}{_UNDRESS}(?:{_COLON}|{_LINE_END})))"
)
_LEADS = ("here", "the ", "now ", "let", "try", "consider", "and ", "a ")
_STARTING = (*TASK_WORDS, *EXAMPLE_WORDS, *SPEAKERS, *ORDERS, *_LEADS)
_STARTS = _words(word[:2] for word in _STARTING)  # most lines begin with none of these
_FIRST = "".join(sorted({form for word in _STARTING for form in (word[0], word[0].upper())}))
_NEXT_TASK = re.compile(  # a line that begins with the name of a task or a speaker, and its number, colon or end
    rf"\n(?=[ \t>#*_=\u2022\u3010\[\\<23\u7b2c{_FIRST}-]|\([^\W\d_]{{2}})"  # which most lines are not
    rf"(?=[ \t>#*_=\u2022\u3010\[(-]{{0,14}}(?:{_STARTS}|\u7b2c)|[ \t>]{{0,9}}(?:\\[a-z]{{4}}|<[bsh])|[23][nr]d)"
    rf"{_BEFORE}"
    rf"(?:{_DRESS}?{_ORDER}{{0,2}}(?:{_NUMBERED}|{_TASK}{_UNDRESS}{_COLON})|{_LEAD}{_ORDER}{{0,2}}"
    rf"{_words(TASK_WORDS, EXAMPLE_WORDS)}{_UNDRESS}{_COLON}|{_ORDER}{{1,2}}{_words(EXAMPLE_WORDS)}{_COLON}|Q\.[ \t]|"
    rf"(?:{_DRESS}{_ORDER}{{0,2}}|{_ORDER}{{1,2}}|(?=[A-Z])){_TASK}{_UNDRESS}{_LINE_END}|"
    r"(?:[Uu]ser|[Hh]uman|[Aa]ssistant)[ \t]*(?=\n))"
)
_TURN = re.compile(
    rf"\[/?INST\]|<start_of_turn>|<\|[A-Za-z_]{{1,40}}\|>|</?{_words(filter(str.isascii, (*TASK_WORDS, *SPEAKERS)))}>"
)
"""The tokens that begin a turn; those of no format known here are of some format too."""


def is_thinking_tag(token: str) -> bool:
    """Return whether a token stands around thinking: one that is special has to be kept in a sample's text."""
    return token in (_CHANNEL, "<|message|>") or any(tag.fullmatch(token) for tag in (_OPENING, _CLOSING))


def visible_part(text: str, in_thinking: bool = False) -> str:
    """The part of a response after finished thinking, or before unfinished thinking, up to the end of its turn.

    ``in_thinking``: the prompt ended in an opening tag, so that the response begins inside thinking.
    """
    if (text.startswith("a") and _BARE_CHANNEL.match(text)) or (in_thinking and _BARE_FINAL in text):
        return text.partition(_BARE_FINAL)[2]
    if "<" not in text and ("]" not in text or "think]" not in text.lower()) and "\u25c1" not in text:
        return "" if in_thinking else text  # as most texts, which are long
    if _CHANNEL in text:
        text, in_thinking = ["", *_FINAL_CHANNEL.split(text)[1:]][-1], False
    closings = list(_CLOSING.finditer(text))
    if in_thinking and not closings:
        return ""
    text = text[closings[-1].end() :] if closings else text
    text = _FIRST_HEADER.sub("", _OPENING.split(text, maxsplit=1)[0])
    text = _ENDS_OF_TURNS.split(text, maxsplit=1)[0]
    return text.replace("<|begin_of_box|>", r"\boxed{").replace("<|end_of_box|>", "}")


def without_next_task(text: str, is_answered: Callable[[str], bool]) -> str:
    """The response before the first task or turn that the model made up, where it is answered before that."""
    starts = [match.start() for match in _NEXT_TASK.finditer(text)] if "\n" in text else []
    if "<" in text or ("]" in text and "INST]" in text):
        starts = sorted([*starts, *(match.start() for match in _TURN.finditer(text))])
    if not starts or not is_answered(text[: starts[-1]]):
        return text
    first = bisect_left(starts, True, key=lambda start: is_answered(text[:start]))  # what is answered stays so
    return text[: starts[first]]


def opens_thinking(prompt: str) -> bool:
    """Return whether a prompt ends in the opening of thinking, as templates of reasoning models do."""
    end = prompt.rstrip()[-300:]
    opens = any(opening.end() == len(end) for opening in _OPENING.finditer(end))
    return opens or _OTHER_CHANNEL.search(end) is not None
