"""Thinking that a prompt opens, and tags of thinking that are special tokens."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers

from evals.generation.thinking import begins_in_thinking, response_text


def make_tokenizer() -> Tokenizer:
    vocabulary = {"?": 0, "a": 1, "b": 2, "</s>": 3, "<think>": 4, "</think>": 5}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["</s>", "<think>", "</think>"])
    return tokenizer


def test_tags_of_thinking_stay_and_other_special_tokens_go() -> None:
    assert response_text(make_tokenizer(), [4, 1, 5, 2, 3]) == "<think>a</think>b"
    assert response_text(make_tokenizer(), [1, 2, 3]) == "a b"


def test_a_prompt_that_ends_in_the_opening_of_thinking_begins_it() -> None:
    assert begins_in_thinking(make_tokenizer(), [1] * 30 + [4])
    assert not begins_in_thinking(make_tokenizer(), [4, 1, 5])
    assert not begins_in_thinking(make_tokenizer(), [])
