"""What the trainer computes of given responses, against a plain forward pass of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlvr.engines.local.policy import TokenBatch, score, score_in_chunks, unpack

BATCH = TokenBatch([[5, 6, 7], [8, 9], [5, 6, 7, 8, 9], [4, 4]], [[10, 11, 1], [12, 1], [13], [14, 15, 16, 17]])


@pytest.fixture
def model(study_files: Path) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(study_files / "base" / "tiny" / "checkpoint")
    return loaded


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_one_sequence_at_a_time(model: PreTrainedModel, temperature: float) -> None:
    kept: list[torch.Tensor] = []
    log_probs, entropies = score_in_chunks(model, BATCH, temperature, 3, kept.append)
    hidden_states = torch.cat(kept)
    expected_log_probs, expected_entropies, expected_hidden = [], [], []
    for prompt, response in zip(BATCH.prompts, BATCH.responses, strict=True):
        with torch.no_grad():
            output = model(torch.tensor([[*prompt, *response]]), output_hidden_states=True)
        for position, token in enumerate(response, start=len(prompt)):
            distribution = torch.log_softmax(output.logits[0, position - 1].double() / temperature, dim=-1)
            expected_log_probs.append(distribution[token])
            expected_entropies.append(-(distribution.exp() * distribution).sum())
            expected_hidden.append(output.hidden_states[-1][0, position - 1])
    torch.testing.assert_close(log_probs.double(), torch.stack(expected_log_probs), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies.double(), torch.stack(expected_entropies), atol=1e-5, rtol=1e-5)
    assert hidden_states is not None
    torch.testing.assert_close(hidden_states, torch.stack(expected_hidden), atol=1e-5, rtol=1e-5)


def test_hidden_states_are_what_the_head_is_given(model: PreTrainedModel) -> None:
    scored = score(model, BATCH, 1.0)
    with torch.no_grad():
        logits = scored.hidden_states @ model.get_output_embeddings().weight.T
    targets = torch.tensor([token for response in BATCH.responses for token in response])
    expected = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(scored.log_probs.detach(), expected)
    assert not scored.hidden_states.requires_grad
    assert not scored.entropies.requires_grad


def test_unpacked_values_stand_in_their_own_row_and_pass_gradients() -> None:
    mask = BATCH.response_mask
    assert mask.sum(dim=1).tolist() == [3, 2, 1, 4]
    packed = torch.arange(1.0, 11.0, requires_grad=True)
    rows = unpack(packed, mask)
    assert rows.tolist() == [[1, 2, 3, 0], [4, 5, 0, 0], [6, 0, 0, 0], [7, 8, 9, 10]]
    (rows * rows).sum().backward()
    assert packed.grad is not None
    assert packed.grad.tolist() == [2 * value for value in range(1, 11)]
