"""The laptop model's tokenizer: a character a token, but for the few phrases that every problem shares."""

from __future__ import annotations

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


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer that ``AutoTokenizer`` and vLLM load; decoding gives the text back exactly.

    Text is cut into phrases first and characters second. What is in neither list becomes the unknown token. There is
    no beginning-of-sequence token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [PAD, END, UNKNOWN, *PHRASES, *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=UNKNOWN))
    escaped = "|".join(_escape(phrase) for phrase in PHRASES)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{escaped}|[\\s\\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def _escape(phrase: str) -> str:
    """Escape the characters of a phrase that the tokenizer's regular expressions give a meaning to."""
    return "".join(f"\\{character}" if character in "\\.{}()+*" else character for character in phrase)
