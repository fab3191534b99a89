"""The part of a response that a reader sees: without thinking, and without the turns that a model made up after it."""

import re
from bisect import bisect_left
from collections.abc import Callable

_THINKING = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "[THINK]": "[/THINK]",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
}
THINKING_TAGS = frozenset(_THINKING) | frozenset(_THINKING.values())
"""The tags around thinking; where a tokenizer has them as special tokens, a sample's text has to keep them."""

_ENDS_OF_TURNS = re.compile(
    r"<\|(?:im_end|endoftext|eot_id|end_of_text|end|END_OF_TURN_TOKEN)\|>|</s>|<eos>|<EOS_TOKEN>|<end_of_turn>|"
    r"<\uff5cend\u2581of\u2581sentence\uff5c>"
)
_FIRST_HEADER = re.compile(r"\s*<\|(?:im_start|start_header_id)\|>\s*assistant\s*(?:<\|end_header_id\|>)?")
_BOX_TOKENS = re.compile(r"<\|begin_of_box\|>(.{0,4000}?)<\|end_of_box\|>", re.DOTALL)
_NEXT_TASK = re.compile(
    r"\n(?=[ \t#*PQEHUI])[ \t]*(?:#{1,4}[ \t]*|\*\*)?(?:Problem|Question|Exercise|Human|User|Q|"
    r"Instruction)[ \t]*\d{0,4}[ \t]*(?:\*\*)?[:\uff1a]"
)


def visible_part(text: str, in_thinking: bool = False) -> str:
    """The part of a response after finished thinking, or before unfinished thinking, up to the end of its turn.

    Args:
        text: the response.
        in_thinking: the prompt ended in an opening tag, so that the response begins inside thinking.
    """
    if "<" not in text and ("]" not in text or "THINK]" not in text) and "\u25c1" not in text:
        return "" if in_thinking else text  # as most texts, which are long
    closed = False
    for closing in _THINKING.values():
        if closing in text:
            text, closed = text[text.rfind(closing) + len(closing) :], True
    if in_thinking and not closed:
        return ""
    for opening in _THINKING:
        text = text.partition(opening)[0]
    if header := _FIRST_HEADER.match(text):
        text = text[header.end() :]
    if end := _ENDS_OF_TURNS.search(text):
        text = text[: end.start()]
    return _BOX_TOKENS.sub(r"\\boxed{\1}", text) if "_of_box|>" in text else text


def without_next_task(text: str, is_answered: Callable[[str], bool]) -> str:
    """The response before the first problem that the model made up itself (``Problem: ...``), as base models do.

    Only where it is answered before, for a response may begin by stating its problem.
    """
    starts = [match.start() for match in _NEXT_TASK.finditer(text)]
    if not starts or not is_answered(text[: starts[-1]]):
        return text
    first = bisect_left(starts, True, key=lambda start: is_answered(text[:start]))  # what is answered stays so
    return text[: starts[first]]


def opens_thinking(prompt: str) -> bool:
    """Return whether a prompt ends in the opening of thinking, as templates of reasoning models do."""
    return prompt.rstrip().endswith(tuple(_THINKING))
