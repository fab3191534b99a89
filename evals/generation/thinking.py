"""The text of a response as graders see it, in evaluation and in training (docs/grading.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from evals.grading.verdict import Case
from evals.grading.visible import is_thinking_tag, opens_thinking

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TAIL = 16  # tokens at the end of a prompt that hold an opening tag


class GradedText(NamedTuple):
    """A response as a grader sees it."""

    text: str  # without special tokens, but for those around thinking, which the grader drops
    in_thinking: bool  # whether the prompt ended in the opening of thinking, so that the response begins inside


def graded_text(tokenizer: Tokenizer, prompt: Sequence[int], response: Sequence[int]) -> GradedText:
    """Turn the tokens of a response, and of its prompt, into what graders see of them."""
    opening = tokenizer.decode(list(prompt[-_TAIL:]), skip_special_tokens=False)
    tags, parts, start = _special_tags(tokenizer), list[str](), 0
    for index, token in enumerate(response):
        if token in tags:
            parts += [tokenizer.decode(list(response[start:index]), skip_special_tokens=True), tags[token]]
            start = index + 1
    text = "".join([*parts, tokenizer.decode(list(response[start:]), skip_special_tokens=True)])
    return GradedText(text, opens_thinking(opening))


def case_of(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    response: Sequence[int],
    finished: bool,
    gold: str,
    problem: Mapping[str, Any] | None = None,
) -> Case:
    """Make the case that is graded of a response's tokens; a user's verifier needs the row of the ``problem`` too."""
    text, in_thinking = graded_text(tokenizer, prompt, response)
    return Case(text, gold, truncated=not finished, in_thinking=in_thinking, problem=problem)


@lru_cache(maxsize=8)
def _special_tags(tokenizer: Tokenizer) -> dict[int, str]:
    """The tags of thinking that are special tokens, by their ids."""
    added = tokenizer.get_added_tokens_decoder()
    return {
        number: token.content for number, token in added.items() if token.special and is_thinking_tag(token.content)
    }
