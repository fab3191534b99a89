"""Tokenizers of models from scratch: of characters for problems in formulas, of words for worded problems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PHRASES = (
    "Compute ",
    " from left to right, modulo 10.",
    " from right to left, modulo 10.",
    " modulo 10.",
    "Let ",
    ". ",
    "\\boxed{",
)
"""Pieces of text that are one token each: they carry no arithmetic and would only make sequences longer."""

CHARACTERS = "0123456789+-*=;}\nabcdefghijklmnop"
PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"

WORD = r" ?\\boxed\{| ?[A-Za-z]+| ?[0-9]|[^\sA-Za-z0-9]|\s"
"""A word, digit or opening box with the space before it, or any other character."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer of characters: text is cut into phrases first and characters second."""
    # Some characters of a phrase mean something in a regular expression.
    escaped = [re.sub(r"([\\.{}()+*])", r"\\\1", phrase) for phrase in PHRASES]
    return _build([*PHRASES, *CHARACTERS], "|".join([*escaped, r"[\s\S]"]))


def build_word_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Build the tokenizer whose tokens are the words, digits and other characters that occur in ``texts``."""
    pieces = {piece for text in texts for piece in re.findall(WORD, text)}
    return _build(sorted(pieces), WORD)


def _build(pieces: Sequence[str], pattern: str) -> PreTrainedTokenizerFast:
    """Build a fast tokenizer that ``AutoTokenizer`` and vLLM load; decoding gives the text back exactly.

    Text is cut by ``pattern``. What is not in ``pieces`` becomes the unknown token. There is no beginning-of-sequence
    token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [PAD, END, UNKNOWN, *pieces]
    tokenizer = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(tokens)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
