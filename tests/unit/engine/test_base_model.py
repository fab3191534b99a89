"""The base model: an interruption changes nothing, with a head of its own or one tied to the embedding."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import rlvr.base_model.train
from evals.core.files import sha256_file, write_jsonl
from rlvr.base_model.corpus import FlawedArithmetic, draw_corpus
from rlvr.base_model.tokenizer import build_tokenizer
from rlvr.base_model.train import _loss, _Sequence, initial_model, train_base_model
from tests.unit.engine.conftest import ARCHITECTURE, BASE_SETTINGS, KINDS

STEPS = 9


@pytest.mark.parametrize("tied", [True, False])
def test_an_interrupted_base_model_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    architecture = BASE_SETTINGS.architecture.model_copy(update={"tie_word_embeddings": tied})
    settings = BASE_SETTINGS.model_copy(update={"architecture": architecture, "steps": STEPS})
    corpus = tmp_path / "corpus.jsonl"
    write_jsonl(corpus, draw_corpus(KINDS, STEPS * settings.batch_size, 1, FlawedArithmetic((0.1,), (1.0,), 0.5, 1)))
    train_base_model(settings, corpus, tmp_path / "whole", checkpoint_interval=4, wait_seconds=1)
    losses = 0
    original = rlvr.base_model.train._loss

    def dying(*arguments: object) -> Tensor:
        nonlocal losses
        losses += 1
        if losses == 6:  # one step is done since the state of step 4, and lost
            raise KeyboardInterrupt
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rlvr.base_model.train, "_loss", dying)
    with pytest.raises(KeyboardInterrupt):
        train_base_model(settings, corpus, tmp_path / "killed", checkpoint_interval=4, wait_seconds=1)
    train_base_model(settings, corpus, tmp_path / "killed", checkpoint_interval=4, wait_seconds=1)
    assert losses == 6 + STEPS - 4
    weights = [tmp_path / name / "checkpoint" / "model.safetensors" for name in ("whole", "killed")]
    assert sha256_file(weights[0]) == sha256_file(weights[1])


def test_only_solutions_and_their_end_carry_loss() -> None:
    """Against one sequence at a time, and a prediction at a time."""
    tokenizer = build_tokenizer()
    model = initial_model(ARCHITECTURE, tokenizer, BASE_SETTINGS.seed)
    batch = [_Sequence([5, 6, 7, 8, 1], 3), _Sequence([9, 10, 1], 1), _Sequence([4, 4, 4, 4, 4, 4, 12, 1], 6)]
    losses = []
    for sequence in batch:
        log_probs = model(torch.tensor([sequence.tokens])).logits[0].log_softmax(-1)
        for position in range(sequence.prompt_length, len(sequence.tokens)):
            losses.append(-log_probs[position - 1, sequence.tokens[position]])
    torch.testing.assert_close(_loss(model, batch), torch.stack(losses).mean())
