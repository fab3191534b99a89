"""Thinking in prompts and responses: what the grader has to know of it (docs/grading.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from evals.grading.visible import THINKING_TAGS, opens_thinking

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TAIL = 16  # tokens at the end of a prompt that hold an opening tag


def begins_in_thinking(tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    """Return whether a prompt ends in the opening of thinking, so that its responses begin inside."""
    return opens_thinking(tokenizer.decode(list(prompt[-_TAIL:]), skip_special_tokens=False))


def response_text(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of a response without its special tokens, but for those around thinking, which the grader drops."""
    tags = _special_tags(tokenizer)
    if not any(token in tags for token in tokens):
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))
    parts: list[str] = []
    start = 0
    for place, token in enumerate(tokens):
        if token in tags:
            parts += [tokenizer.decode(list(tokens[start:place]), skip_special_tokens=True), tags[token]]
            start = place + 1
    return "".join([*parts, tokenizer.decode(list(tokens[start:]), skip_special_tokens=True)])


@lru_cache(maxsize=8)
def _special_tags(tokenizer: Tokenizer) -> dict[int, str]:
    """The tags of thinking that are special tokens, by their ids."""
    added = tokenizer.get_added_tokens_decoder()
    return {
        number: token.content for number, token in added.items() if token.special and token.content in THINKING_TAGS
    }
