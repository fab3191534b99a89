"""The chat template of a checkpoint: prompts by it, and the tokens that end a response to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from evals.core.errors import InvalidInput, UserError, first_line, limited_time
from evals.core.files import read_json
from evals.generation.checkpoint import Checkpoint
from evals.generation.settings import Turn

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ANSWER = "ANSWER"
_TEMPLATE_SECONDS = 10


def apply_chat_template(
    checkpoint: Checkpoint, chats: Sequence[Sequence[Turn]], template: Mapping[str, Any], is_open: bool = True
) -> list[str]:
    """Render chats, of roles and texts, in a sandbox: prompts that the model is to answer, or whole if not ``is_open``.

    ``template`` is what the template is told.
    """
    from transformers import AutoTokenizer

    directory = checkpoint.directory
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever the library makes of files that anybody may have written
        raise UserError(f"{directory}: its tokenizer cannot be loaded ({first_line(error)})") from error
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidInput(
            str(directory), "", "has no chat template", "prompt_form: base (eval --prompt base), or a chat model's"
        )
    rendered = []
    try:
        for chat in chats:
            turns = [{"role": role, "content": text} for role, text in chat]
            with limited_time(_TEMPLATE_SECONDS, f"it takes more than {_TEMPLATE_SECONDS} s of processor time"):
                prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=is_open, tokenize=False, **template)
            rendered.append(str(prompt))
        return rendered
    except Exception as error:  # a template is a program of anybody's
        raise UserError(f"{directory}: its chat template fails ({first_line(error)})") from error


def has_chat_template(directory: Path) -> bool:
    """Return whether a checkpoint has a chat template."""
    config = directory / "tokenizer_config.json"
    in_config = config.is_file() and "chat_template" in read_json(config)
    return in_config or (directory / "chat_template.jinja").is_file()


def turn_end(checkpoint: Checkpoint, template: Mapping[str, Any] = MappingProxyType({})) -> int | None:
    """Return the special token by which the template ends an answer; None where it ends one with text, or has none."""
    try:
        (chat,) = apply_chat_template(checkpoint, [[("user", "a"), ("assistant", _ANSWER)]], template, is_open=False)
    except UserError:  # such as a template that only asks
        return None
    rest = chat.rpartition(_ANSWER)[2].lstrip() if _ANSWER in chat else ""
    first = next(iter(checkpoint.tokenizer.encode(rest, add_special_tokens=False).ids), None)
    added = checkpoint.tokenizer.get_added_tokens_decoder()
    return first if first in added and added[first].special else None


def end_tokens(checkpoint: Checkpoint, form: str, template: Mapping[str, Any] = MappingProxyType({})) -> dict[int, str]:
    """Every token that ends a response to prompts of a form, by number, with its text.

    They are those of config.json and generation_config.json and, of form ``chat``, the end of the template's turns:
    base models come with templates whose turns end with a token that ends no text, and would go on with turns that
    they make up.
    """
    end = turn_end(checkpoint, template) if form == "chat" else None
    numbers = {*checkpoint.end_tokens, *(() if end is None else (end,))}
    return {number: checkpoint.tokenizer.id_to_token(number) or "?" for number in sorted(numbers)}


def taught_end(checkpoint: Checkpoint, form: str, template: Mapping[str, Any] = MappingProxyType({})) -> int:
    """The token that a training on solutions puts after each: the tokenizer's, if it ends a response."""
    ends, named = end_tokens(checkpoint, form, template), checkpoint.end_token
    return named if named in ends else checkpoint.end_tokens[0]


def encoded_again(tokenizer: Tokenizer, text: str, finish_reason: str | None, end: int) -> list[int]:
    """Encode the text of a response, with the token ``end`` if it ended: not always the tokens that were sampled."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return [*ids, end] if finish_reason == "stop" else ids


def ends_in_words(ends: Mapping[int, str]) -> str:
    """The tokens that end a response, as they are printed."""
    return ", ".join(f"{text} ({number})" for number, text in ends.items())
