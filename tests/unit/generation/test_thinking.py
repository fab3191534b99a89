"""Training and evaluation grade one text: of thinking that a prompt opens, and whose tags are special."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.sampling_memory import make_plan
from evals.core.files import write_json, write_jsonl
from evals.core.sampling import SamplingParameters
from evals.generation.backend import Response
from evals.generation.chat import end_tokens, ends_in_words, taught_end, turn_end
from evals.generation.checkpoint import Checkpoint
from evals.generation.evaluate import _sample
from evals.generation.plan import encode_prompts
from evals.generation.thinking import case_of, graded_text
from evals.grading import GradingPool, Kind
from evals.grading.grade_file import judge_samples
from rlvr.engines.local.fine_tune import _examples_of
from rlvr.engines.local.rollout import RolloutSampler

PROBLEM = {"id": "p", "problem": "1+2?", "answer": "3"}


def make_tokenizer() -> Tokenizer:
    vocabulary = {"?": 0, "a": 1, "b": 2, "</s>": 3, "<think>": 4, "</think>": 5}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["</s>", "<think>", "</think>"])
    return tokenizer


def test_tags_of_thinking_stay_and_other_special_tokens_go() -> None:
    assert graded_text(make_tokenizer(), [1], [4, 1, 5, 2, 3]) == ("<think>a</think>b", False)
    assert graded_text(make_tokenizer(), [1], [1, 2, 3]) == ("a b", False)


def test_a_prompt_that_ends_in_the_opening_of_thinking_begins_it() -> None:
    assert graded_text(make_tokenizer(), [1] * 30 + [4], [1]).in_thinking
    assert not graded_text(make_tokenizer(), [4, 1, 5], [1]).in_thinking
    assert not graded_text(make_tokenizer(), [], [1]).in_thinking


def a_model(directory: Path, opening: str, special: bool, opens: bool) -> tuple[Checkpoint, PreTrainedTokenizerFast]:
    """A tokenizer of bytes with the tags of thinking, and a template of turns that opens the thinking or does not."""
    closing = opening.replace("<", "</").replace("[", "[/")
    words = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([opening, closing])
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    whole.chat_template = "{% for m in messages %}User: {{m.content}}\n{% endfor %}Assistant: " + (
        opening + "\n" if opens else ""
    )
    whole.save_pretrained(directory)
    write_json(directory / "config.json", {"model_type": "qwen2", "eos_token_id": whole.eos_token_id})
    return Checkpoint(directory), whole


RESPONSES = {  # opening tag, special tokens?, opened by the template?, response, ended?, correct
    "a box in thinking that is never closed": ("<think>", False, True, r"So \boxed{3}, let me check.", True, False),
    "the same, cut off": ("<think>", False, True, r"So \boxed{3}, let me", False, False),
    "the answer after the thinking": ("<think>", False, True, r"Hm.</think>It is \boxed{3}.", True, True),
    "another answer after the thinking": ("<think>", False, True, r"\boxed{3}</think>It is \boxed{4}.", True, False),
    "no answer after special tags": ("[THINK]", True, False, r"[THINK]\boxed{3} maybe[/THINK]No idea.", True, False),
    "the answer after special tags": ("[THINK]", True, False, r"[THINK]\boxed{4}[/THINK]\boxed{3}", True, True),
    "special tags never closed": ("[THINK]", True, False, r"[THINK]\boxed{3} maybe", True, False),
    "special tags that the template opens": ("[THINK]", True, True, r"\boxed{3} maybe", True, False),
}


@dataclass(frozen=True)
class Answered:
    """A response to the prompt of ``PROBLEM``, and whether it is correct."""

    model: Checkpoint
    prompt: tuple[int, ...]
    response: Response
    correct: bool

    def responds(self, prompts: Sequence[Any], identities: Sequence[Sequence[str]], *_: Any) -> list[list[Response]]:
        """Give the response to every request, in place of a backend."""
        return [[self.response for _ in names] for names in identities]


def answered(directory: Path, name: str) -> Answered:
    """Write the model that gave one of ``RESPONSES``, and encode its prompt and the response."""
    opening, special, opens, text, finished, correct = RESPONSES[name]
    model, whole = a_model(directory, opening, special, opens)
    ids = whole.encode(text + "<|end|>" * finished, add_special_tokens=False)
    (prompt,) = encode_prompts(model, [PROBLEM["problem"]], "chat")
    return Answered(model, prompt, Response(ids, finished, log_probs=[0.0] * len(ids)), correct)


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_is_judged_alike_wherever_it_is_graded(name: str, tmp_path: Path) -> None:
    """By its tokens: in evaluation and in training."""
    case = answered(tmp_path, name)
    model, prompt, response = case.model, case.prompt, case.response
    limit = SamplingParameters(max_new_tokens=len(response.tokens))
    plan = replace(make_plan(1, 1, 1), models=[model], ids=["p"], prompts=[prompt])
    sampler = RolloutSampler(model.tokenizer, {"1+2?": prompt}, 1, limit, model.end_tokens)
    with GradingPool(workers=1) as pool:
        sample = _sample(plan, (0, 0), response)
        evaluated = judge_samples([sample], {"p": "3"}, pool, Kind.COMPLETION)[1][0].correct
        (trained,) = sampler.roll_out(case.responds, [PROBLEM], "x", 0).verdicts(pool)
    assert (evaluated, bool(trained.reward)) == (case.correct, case.correct)
    # The text that a user's verifier is given
    assert case_of(model.tokenizer, prompt, response.tokens, response.finished, "3").prediction == sample.text


# The tokens that end a response, against the tokenizer and the chat template; and what a warm start teaches.

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
