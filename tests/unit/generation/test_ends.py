"""The tokens that end a response, against the tokenizer and the chat template; and what a warm start teaches."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from evals.core.files import write_json, write_jsonl
from evals.generation.chat import end_tokens, ends_in_words, taught_end, turn_end
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.fine_tune import _examples_of

CHATML = (
    "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def a_checkpoint(directory: Path, template: str | None, eos: str = NAMES[0], of_config: str = NAMES[0]) -> Checkpoint:
    """Its tokenizer names ``eos``, its config ``of_config``."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(NAMES)
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos)
    if template is not None:
        whole.chat_template = template
    whole.save_pretrained(directory)
    write_json(
        directory / "config.json", {"model_type": "qwen2", "eos_token_id": whole.convert_tokens_to_ids(of_config)}
    )
    return Checkpoint(directory)


def test_the_end_of_the_templates_turns_ends_a_response_to_a_chat(tmp_path: Path) -> None:
    """As of a base model with a template: its config names the end of a text alone."""
    model = a_checkpoint(tmp_path, CHATML)
    text, end = (model.tokenizer.token_to_id(NAMES[place]) for place in (0, 2))
    assert end_tokens(model, "base") == {text: NAMES[0]}
    assert end_tokens(model, "chat") == {text: NAMES[0], end: NAMES[2]}
    assert ends_in_words(end_tokens(model, "chat")) == f"<|endoftext|> ({text}), <|im_end|> ({end})"


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (CHATML, NAMES[2]),
        (CHATML.replace("<|im_end|>\n", " <|endoftext|>"), NAMES[0]),
        (CHATML.replace("<|im_end|>", ""), None),  # turns that end with text
        ("{% if messages|length > 1 %}{{ raise_exception('one turn') }}{% endif %}{{messages[0].content}}", None),
        (None, None),
    ],
)
def test_a_turns_end_is_a_special_token_or_none(tmp_path: Path, template: str | None, found: str | None) -> None:
    model = a_checkpoint(tmp_path, template)
    expected = None if found is None else model.tokenizer.token_to_id(found)
    assert turn_end(model) == expected


@pytest.mark.parametrize("form", ["base", "chat"])
def test_a_warm_start_teaches_a_token_that_ends_a_rollout(tmp_path: Path, form: str) -> None:
    """The tokenizer names another token than the config: it ends a chat, and no plain text."""
    model = a_checkpoint(tmp_path, CHATML, eos="<|im_end|>")
    write_jsonl(tmp_path / "solutions.jsonl", [{"problem": "1+2", "solution": "3"}])
    settings: Any = SimpleNamespace(prompt="{problem}", prompt_form=form, chat_template_kwargs={})
    (example,) = _examples_of(model, tmp_path / "solutions.jsonl", settings)
    taught = example["solution"][-1]
    assert taught == taught_end(model, form) and taught in end_tokens(model, form)
    assert taught == model.tokenizer.token_to_id("<|im_end|>" if form == "chat" else "<|endoftext|>")
