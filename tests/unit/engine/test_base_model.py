"""The base model: an interruption changes nothing, with a head of its own or one tied to the embedding."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch.nn import functional
from transformers import Qwen3ForCausalLM

import rlvr.base_model.train
from evals.core.config.base_models import StopAt
from evals.core.errors import InvalidInput
from evals.core.files import read_jsonl, sha256_file, write_jsonl
from evals.core.manifest import read_manifest
from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import Checkpoint
from evals.generation.sampler import sample
from rlvr.base_model.corpus import FlawedArithmetic, draw_corpus
from rlvr.base_model.train import build_tokenizer, held_out_accuracy, initial_model, train_base_model
from rlvr.engines.local.fine_tune import add_gradients
from rlvr.runs.state import save_checkpoint
from tests.unit.engine.conftest import BASE_SETTINGS, KINDS

STEPS = 9


@pytest.mark.parametrize("tied", [True, False])
def test_an_interruption_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool) -> None:
    architecture = BASE_SETTINGS.architecture.model_copy(update={"tie_word_embeddings": tied})
    settings = BASE_SETTINGS.model_copy(update={"architecture": architecture, "steps": STEPS})
    corpus, unpacked = tmp_path / "corpus.jsonl.bz2", tmp_path / "corpus.jsonl"
    write_jsonl(corpus, draw_corpus(KINDS, STEPS * settings.batch_size, 1, FlawedArithmetic((0.1,), (1.0,), 0.5, 1)))
    write_jsonl(unpacked, read_jsonl(corpus))
    train_base_model(settings, corpus, tmp_path / "whole", checkpoint_interval=4, wait_seconds=1)
    losses = 0

    def dying(*arguments: Any) -> float:
        nonlocal losses
        losses += 1
        if losses == 6:  # one step is done since the state of step 4, and lost
            raise KeyboardInterrupt
        return add_gradients(*arguments)

    monkeypatch.setattr(rlvr.base_model.train, "add_gradients", dying)
    with pytest.raises(KeyboardInterrupt):
        train_base_model(settings, corpus, tmp_path / "killed", checkpoint_interval=4, wait_seconds=1)
    train_base_model(settings, corpus, tmp_path / "killed", checkpoint_interval=4, wait_seconds=1)
    assert losses == 6 + STEPS - 4
    weights = [tmp_path / name / "checkpoint" / "model.safetensors" for name in ("whole", "killed")]
    assert sha256_file(weights[0]) == sha256_file(weights[1])
    train_base_model(settings, unpacked, tmp_path / "killed", checkpoint_interval=4, wait_seconds=1)
    assert losses == 6 + STEPS - 4, "as an earlier version wrote the corpus: the same model"


def test_a_training_stops_at_the_accuracy_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after that look it does not train on; a run that does not reach it leaves no model."""
    stop_at = StopAt(accuracy=0.5, every=2)
    settings = BASE_SETTINGS.model_copy(update={"steps": STEPS, "stop_at": stop_at})
    corpus, held_out, looks, saved = tmp_path / "corpus.jsonl", tmp_path / "problems.jsonl", iter((0.1, 0.6)), []
    write_jsonl(corpus, draw_corpus(KINDS, STEPS * settings.batch_size, 1, FlawedArithmetic((0.1,), (1.0,), 0.5, 1)))
    write_jsonl(held_out, [{"problem": "1+2=", "answer": "3"}])
    monkeypatch.setattr(rlvr.base_model.train, "held_out_accuracy", lambda *_: next(looks))

    def dying_once(*arguments: Any) -> list[Path]:
        saved.append(arguments)
        if len(saved) == 1:
            raise KeyboardInterrupt
        return save_checkpoint(*arguments)

    monkeypatch.setattr(rlvr.base_model.train, "save_checkpoint", dying_once)
    with pytest.raises(KeyboardInterrupt):
        train_base_model(settings, corpus, tmp_path / "model", 1, 1, held_out)
    train_base_model(settings, corpus, tmp_path / "model", 1, 1, held_out)
    manifest = read_manifest(tmp_path / "model" / "manifest.json", "base_model")
    assert (manifest.details["steps"], manifest.details["accuracy"]) == (4, 0.6)
    (state,) = (tmp_path / "model" / "state").glob("*/step-*")  # without the optimizer
    assert (state / "tensors.safetensors").samefile(tmp_path / "model" / "checkpoint" / "model.safetensors")
    assert set(manifest.inputs) == {str(corpus), str(held_out)}
    monkeypatch.setattr(rlvr.base_model.train, "held_out_accuracy", lambda *_: 0.49)
    with pytest.raises(InvalidInput, match="was not reached in 9 steps; accepted: a lower one"):
        train_base_model(settings, corpus, tmp_path / "other", 100, 1, held_out)
    assert not (tmp_path / "other" / "checkpoint").exists()


def test_a_text_beyond_the_longest_sequence_is_one_line(tmp_path: Path) -> None:
    corpus, examples = tmp_path / "corpus.jsonl", BASE_SETTINGS.batch_size * STEPS
    room = BASE_SETTINGS.architecture.max_position_embeddings
    write_jsonl(corpus, [{"problem": "1+2=", "solution": "1" * room}] * examples)
    with pytest.raises(InvalidInput, match=rf"max_position_embeddings: is {room}, and a text .* has {room + 6} tokens"):
        train_base_model(BASE_SETTINGS, corpus, tmp_path / "model", 100, 1)


def test_the_accuracy_on_held_out_problems_is_that_of_the_model(study_files: Path) -> None:
    problems = read_jsonl(study_files / "problems" / "problems.jsonl", ("problem", "answer"))
    tokenizer = build_tokenizer()
    model = Qwen3ForCausalLM.from_pretrained(study_files / "base" / "tiny" / "checkpoint")
    checkpoint, right = Checkpoint.of(study_files / "base" / "tiny" / "checkpoint"), 0
    for row, problem in enumerate(problems):  # one at a time, and the last digit in place of the grader
        names = [f"base model/{row}/{number}" for number in range(4)]
        prompt = checkpoint.tokenizer.encode(problem["problem"] + "\n").ids
        parameters = SamplingParameters(max_new_tokens=16, temperature=1.0)
        (responses,) = sample(checkpoint.decoder("cpu"), [prompt], [names], parameters, checkpoint.end_tokens)
        texts = [checkpoint.tokenizer.decode(response.tokens) for response in responses]
        right += sum(bool(re.search(rf"(^|\D){problem['answer']}\D*$", text)) for text in texts)
    assert held_out_accuracy(model, tokenizer, problems, 16) == right / (4 * len(problems)) > 0.0


@pytest.mark.parametrize("tied", [True, False])
def test_the_losses_and_weights_are_those_of_transformers(tmp_path: Path, tied: bool) -> None:
    """Against transformers' Qwen3 on padded batches and torch's AdamW, from the same weights."""
    architecture = BASE_SETTINGS.architecture.model_copy(update={"tie_word_embeddings": tied})
    settings = BASE_SETTINGS.model_copy(update={"architecture": architecture, "steps": STEPS})
    drawn = draw_corpus(KINDS, STEPS * settings.batch_size, 1, FlawedArithmetic((0.1,), (1.0,), 0.5, 1))
    rows = list(drawn)
    write_jsonl(tmp_path / "corpus.jsonl", rows)
    train_base_model(settings, tmp_path / "corpus.jsonl", tmp_path / "model", checkpoint_interval=100, wait_seconds=1)
    tokenizer = build_tokenizer()
    model = initial_model(architecture.to_json(), tokenizer, settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=settings.weight_decay, betas=(0.9, 0.95))
    losses = []
    for step in range(STEPS):
        batch = rows[step * settings.batch_size : (step + 1) * settings.batch_size]
        prompts, solutions = (tokenizer([row[key] for row in batch])["input_ids"] for key in ("problem", "solution"))
        (line_end,) = tokenizer("\n")["input_ids"]
        size = max(len(prompt) + len(solution) + 2 for prompt, solution in zip(prompts, solutions, strict=True))
        tokens, labels = torch.zeros(len(batch), size, dtype=torch.long), torch.full((len(batch), size), -100)
        for row, (prompt, solution) in enumerate(zip(prompts, solutions, strict=True)):
            whole = torch.tensor([*prompt, line_end, *solution, tokenizer.eos_token_id])
            tokens[row, : len(whole)] = whole
            labels[row, len(prompt) + 1 : len(whole)] = whole[len(prompt) + 1 :]
        logits = model(tokens[:, :-1], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate_at(step)
        optimizer.step()
        losses.append(loss.item())
    assert pd.read_parquet(tmp_path / "model" / "metrics.parquet")["loss"].tolist() == pytest.approx(losses, rel=1e-6)
    trained = Qwen3ForCausalLM.from_pretrained(tmp_path / "model" / "checkpoint")
    # AdamW turns the rounding of a gradient near 0, which differs between processors, into a part of a whole step.
    for name, weight in model.named_parameters():
        torch.testing.assert_close(trained.get_parameter(name), weight, rtol=0, atol=0.01 * settings.learning_rate)
