"""The part of a response that a reader sees: without thinking, and without the turns that a model made up after it."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable

from evals.grading.languages import ORDERS, SPEAKERS, TASK_WORDS

_NAMES_OF_THINKING = ("think", "thinking", "thought", "thoughts", "reasoning", "seed:think", "analysis", "scratchpad")
_THINKING = {
    **{f"<{name}>": f"</{name}>" for name in (*_NAMES_OF_THINKING, "reflection")},
    "<|thinking|>": "<|/thinking|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "[THINK]": "[/THINK]",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
}
_OPENING, _CLOSING = (
    re.compile("|".join(map(re.escape, tags)), re.IGNORECASE) for tags in (_THINKING, _THINKING.values())
)
_CHANNEL = "<|channel|>"
"""In gpt-oss's format (harmony) each message names its channel; a reader sees the channel ``final`` alone."""
THINKING_TAGS = frozenset((*_THINKING, *_THINKING.values(), _CHANNEL, "<|message|>"))
"""The tags around thinking; where a tokenizer has them as special tokens, a sample's text has to keep them."""

_FINAL_CHANNEL = re.compile(r"<\|channel\|>\s{0,9}final\b[^<]{0,200}(?:<\|constrain\|>[^<]{0,200})?<\|message\|>")
_BARE_CHANNEL = re.compile(r"(?:assistant)?analysis(?![a-z\s:.,;!?_-])")
_BARE_FINAL = "assistantfinal"
"""The same format without its special tokens: ``analysisWe add ... assistantfinalThe sum is 4.``"""

_ENDS_OF_TURNS = re.compile(  # and the beginnings of the user's next one
    r"(?<=\S)\s*<\|(?:im_start|start_header_id)\|>\s*user|(?<=\S)\s*(?:<\|user\|>|<start_of_turn>\s*user)|<\|(?:im_end|endoftext|eot_id|end_of_text|end|return|call|END_OF_TURN_TOKEN)\|>|</s>|<eos>|<EOS_TOKEN>|"
    r"<end_of_turn>|<\uff5cend\u2581of\u2581sentence\uff5c>"
)
_FIRST_HEADER = re.compile(
    r"\s*(?:<\|(?:im_start|start_header_id|start)\|>\s*assistant\s*(?:<\|end_header_id\|>)?|<\|assistant\|>)"
)
_NUMBER = r"[ \t]*(?:\#|No\.?|n°)?[ \t]*(?:\d{1,4}|[IVX]{1,5}\b)"
_BOLD = r"(?:\*\*|__)?"


def _cased(words: Iterable[str]) -> str:
    """A pattern for words in small letters, with a capital, in capitals; faster than without regard to case."""
    return "|".join(spelling for word in words for spelling in dict.fromkeys((word, word.capitalize(), word.upper())))


_FIRST = "".join(sorted({letter for word in (*TASK_WORDS, *SPEAKERS, *ORDERS) for letter in word[0] + word[0].upper()}))
_HEADING = rf"\n(?=[ \t>#*_{_FIRST}])[ \t>]{{0,9}}(?:\#{{1,6}}[ \t]{{0,3}})?{_BOLD}(?=[{_FIRST}])"
_TASK = rf"(?:(?:{_cased(ORDERS)})[ \t]+)?(?:{_cased((*TASK_WORDS, *SPEAKERS))})"
_NEXT_TASK = re.compile(  # a line that begins with the name of a task or a speaker, and its number, colon or end
    rf"{_HEADING}{_TASK}(?:(?:{_NUMBER})?[ \t]*{_BOLD}[ \t]*[:\uff1a]|"
    rf"{_NUMBER}(?:[.)\uff0e\u3001](?!\d)|[ \t]+[-\u2013\u2014][ \t]|[ \t]*{_BOLD}[ \t]*(?=\n|$)))"
    rf"|\n[ \t>]{{0,9}}(?:\#{{1,6}}[ \t]{{0,3}}{_BOLD}|\*\*|__){_TASK}{_BOLD}[ \t]*(?=\n|$)"
)
_TURN = re.compile(r"\[/?INST\]|<start_of_turn>|<\|[A-Za-z_]{1,40}\|>")
"""The tokens that begin a turn; those of no format known here are of some format too."""


def visible_part(text: str, in_thinking: bool = False) -> str:
    """The part of a response after finished thinking, or before unfinished thinking, up to the end of its turn.

    Args:
        text: the response.
        in_thinking: the prompt ended in an opening tag, so that the response begins inside thinking.
    """
    if text.startswith("a") and _BARE_CHANNEL.match(text):
        return text.partition(_BARE_FINAL)[2]
    if "<" not in text and ("]" not in text or "think]" not in text.lower()) and "\u25c1" not in text:
        return "" if in_thinking else text  # as most texts, which are long
    if _CHANNEL in text:
        final = list(_FINAL_CHANNEL.finditer(text))
        text, in_thinking = text[final[-1].end() :] if final else "", False
    closings = list(_CLOSING.finditer(text))
    if in_thinking and not closings:
        return ""
    text = text[closings[-1].end() :] if closings else text
    if opening := _OPENING.search(text):
        text = text[: opening.start()]
    if header := _FIRST_HEADER.match(text):
        text = text[header.end() :]
    if end := _ENDS_OF_TURNS.search(text):
        text = text[: end.start()]
    return text.replace("<|begin_of_box|>", r"\boxed{").replace("<|end_of_box|>", "}")


def without_next_task(text: str, is_answered: Callable[[str], bool]) -> str:
    """The response before the first task or turn that the model made up itself (``Problem: ...``), as base models do.

    Only where it is answered before, for a response may begin by stating its problem.
    """
    starts = [match.start() for match in _NEXT_TASK.finditer(text)] if "\n" in text else []
    if "<" in text or ("]" in text and "INST]" in text):
        starts = sorted([*starts, *(match.start() for match in _TURN.finditer(text))])
    if not starts or not is_answered(text[: starts[-1]]):
        return text
    first = bisect_left(starts, True, key=lambda start: is_answered(text[:start]))  # what is answered stays so
    return text[: starts[first]]


def opens_thinking(prompt: str) -> bool:
    """Return whether a prompt ends in the opening of thinking, as templates of reasoning models do."""
    *_, last = (None, *_OPENING.finditer(prompt.rstrip()[-40:]))
    return last is not None and last.end() == len(prompt.rstrip()[-40:])
