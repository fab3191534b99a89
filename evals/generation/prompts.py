"""From a problem's text to the token ids of a prompt: plain text for base models, the chat template for chat models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from evals.core.errors import UserError
from evals.core.files import read_json

PROMPT_FORMS = ("base", "chat")


def encode_prompts(checkpoint: Path, tokenizer: Tokenizer, texts: Sequence[str], form: str) -> list[tuple[int, ...]]:
    """Token ids of every prompt.

    A model whose tokenizer begins a text with BOS, or whose template writes one, gets exactly one; others get none.

    Args:
        checkpoint: directory of the model, for its tokenizer's configuration and template.
        tokenizer: that model's.
        texts: what is asked; in a chat, the user's turn.
        form: ``base`` or ``chat``.

    Raises:
        UserError: a chat prompt for a model without template, or a prompt with another number of BOS tokens.
    """
    bos = special_token_id(checkpoint, tokenizer, "bos_token")
    begins = bos is not None and tokenizer.encode("").ids[:1] == [bos]
    if form == "chat":
        texts = _apply_chat_template(checkpoint, texts)
    else:
        tokenizer.encode_special_tokens = True  # a base prompt is plain text: "<s>" in a problem is three characters
    prompts = []
    for number, encoding in enumerate(tokenizer.encode_batch(list(texts), add_special_tokens=False), start=1):
        ids = tuple(encoding.ids)
        if begins and bos is not None and ids[:1] != (bos,):
            ids = (bos, *ids)
        _check_bos(ids, bos, begins, f"{checkpoint}: prompt {number}")
        prompts.append(ids)
    tokenizer.encode_special_tokens = False
    return prompts


def _check_bos(ids: Sequence[int], bos: int | None, begins: bool, where: str) -> None:
    count = 0 if bos is None else sum(token == bos for token in ids)
    if count > 1 or (begins and count != 1) or (count == 1 and ids[0] != bos):
        raise UserError(f"{where}: has {count} BOS tokens; accepted: exactly one, at its start")


def special_token_id(checkpoint: Path, tokenizer: Tokenizer, role: str) -> int | None:
    """The id of the token that the tokenizer's configuration gives a role, such as ``bos_token``, if it names one."""
    path = checkpoint / "tokenizer_config.json"
    token: Any = read_json(path).get(role) if path.is_file() else None
    name = token.get("content") if isinstance(token, dict) else token
    identifier: int | None = None if name is None else tokenizer.token_to_id(name)
    return identifier


def _apply_chat_template(checkpoint: Path, texts: Sequence[str]) -> list[str]:
    """Each text as the user's turn of a chat that the model is to answer; the template runs in a sandbox."""
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"{checkpoint}: its tokenizer cannot be loaded ({str(error).splitlines()[0]})") from error
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(f"{checkpoint}: has no chat template; accepted: prompt: base, or a chat model's checkpoint")
    try:
        return [
            str(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
                )
            )
            for text in texts
        ]
    except TemplateError as error:
        raise UserError(f"{checkpoint}: its chat template fails ({error})") from error
