"""The token ids of prompts: plain text for base models, the chat template for chat models."""

from __future__ import annotations

from collections.abc import Sequence

from evals.core.errors import InvalidInput, UserError, first_line
from evals.generation.checkpoint import Checkpoint


def encode_prompts(checkpoint: Checkpoint, texts: Sequence[str], form: str) -> list[tuple[int, ...]]:
    """Encode every prompt.

    A model whose tokenizer begins a text with BOS, or whose template writes one, gets exactly one; others get none.

    Args:
        checkpoint: the model, for its tokenizer and its template.
        texts: what is asked; in a chat, the user's turn.
        form: ``base`` or ``chat``.
    """
    tokenizer, bos = checkpoint.tokenizer, checkpoint.special_token("bos_token")
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
        count = 0 if bos is None else ids.count(bos)
        if count > 1 or (begins and count != 1) or (count == 1 and ids[0] != bos):
            where = f"{checkpoint.directory}: prompt {number}"
            raise InvalidInput(where, "", f"has {count} BOS tokens", "exactly one, at its start")
        prompts.append(ids)
    tokenizer.encode_special_tokens = False
    return prompts


def _apply_chat_template(checkpoint: Checkpoint, texts: Sequence[str]) -> list[str]:
    """Each text as the user's turn of a chat that the model is to answer; the template runs in a sandbox."""
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    directory = checkpoint.directory
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"{directory}: its tokenizer cannot be loaded ({first_line(error)})") from error
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidInput(str(directory), "", "has no chat template", "prompt: base, or a chat model's checkpoint")
    turns = [[{"role": "user", "content": text}] for text in texts]
    try:
        return [str(tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)) for turn in turns]
    except TemplateError as error:
        raise UserError(f"{directory}: its chat template fails ({error})") from error
