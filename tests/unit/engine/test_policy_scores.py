"""What the trainer computes of given responses, against a plain forward pass of transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from evals.generation.checkpoint import Checkpoint
from evals.generation.decoder_model import DecoderModel
from rlvr.base_model.tokenizer import build_tokenizer
from rlvr.base_model.train import initial_model
from rlvr.engines.local.policy import TokenBatch, score_in_chunks, token_log_probs, unpack
from rlvr.runs.state import save_checkpoint

BATCH = TokenBatch([[5, 6, 7], [8, 9], [5, 6, 7, 8, 9], [4, 4]], [[10, 11, 1], [12, 1], [13], [14, 15, 16, 17]])
ARCHITECTURE = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
}


@pytest.fixture
def checkpoint(study_files: Path) -> Path:
    return study_files / "base" / "tiny" / "checkpoint"


@pytest.fixture
def model(checkpoint: Path) -> DecoderModel:
    return Checkpoint(checkpoint).model("cpu")


def of_transformers(checkpoint: Path) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return loaded


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_one_sequence_at_a_time(model: DecoderModel, checkpoint: Path, temperature: float) -> None:
    kept: list[torch.Tensor] = []
    log_probs, entropies = score_in_chunks(model, BATCH, temperature, 3, kept.append)
    hidden_states = torch.cat(kept)
    expected_log_probs, expected_entropies, expected_hidden = [], [], []
    reference = of_transformers(checkpoint)
    for prompt, response in zip(BATCH.prompts, BATCH.responses, strict=True):
        with torch.no_grad():
            output = reference(torch.tensor([[*prompt, *response]]), output_hidden_states=True)
        for position, token in enumerate(response, start=len(prompt)):
            distribution = torch.log_softmax(output.logits[0, position - 1].double() / temperature, dim=-1)
            expected_log_probs.append(distribution[token])
            expected_entropies.append(-(distribution.exp() * distribution).sum())
            expected_hidden.append(output.hidden_states[-1][0, position - 1])
    torch.testing.assert_close(log_probs.double(), torch.stack(expected_log_probs), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies.double(), torch.stack(expected_entropies), atol=1e-5, rtol=1e-5)
    assert hidden_states is not None
    torch.testing.assert_close(hidden_states, torch.stack(expected_hidden), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("longest", [30, 50])  # 8 times the head dimension lies between them
def test_gradients_are_those_of_transformers(tmp_path: Path, tied: bool, longest: int) -> None:
    tokenizer = build_tokenizer()
    reference = initial_model({**ARCHITECTURE, "tie_word_embeddings": tied}, tokenizer, 1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name:  # otherwise ones, which would hide a norm that is left out
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.mul_(5)
    save_checkpoint(reference, tokenizer, tmp_path)
    ours = Checkpoint(tmp_path).model("cpu")
    lengths = [(4, longest - 4), (1, 1), (longest - 9, 2), (7, 13)]
    prompts, responses = ([torch.randint(3, 40, (length,), generator=generator).tolist() for length in column]
                          for column in zip(*lengths, strict=True))  # fmt: skip
    factors = torch.randn(sum(map(len, responses)), generator=generator)
    (token_log_probs(ours, TokenBatch(prompts, responses), 0.7) * factors).sum().backward()
    for prompt, response, part in zip(prompts, responses, factors.split(list(map(len, responses))), strict=True):
        logits = reference(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1] / 0.7
        (logits.log_softmax(-1)[torch.arange(len(response)), torch.tensor(response)] * part).sum().backward()
    found = dict(ours.named_parameters())
    assert found.keys() == dict(reference.named_parameters()).keys()
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(found[name].grad, parameter.grad, atol=2e-5 * scale, rtol=1e-4, msg=name)


def test_unpacked_values_stand_in_their_own_row_and_pass_gradients() -> None:
    mask = BATCH.response_mask
    assert mask.sum(dim=1).tolist() == [3, 2, 1, 4]
    packed = torch.arange(1.0, 11.0, requires_grad=True)
    rows = unpack(packed, mask)
    assert rows.tolist() == [[1, 2, 3, 0], [4, 5, 0, 0], [6, 0, 0, 0], [7, 8, 9, 10]]
    (rows * rows).sum().backward()
    assert packed.grad is not None
    assert packed.grad.tolist() == [2 * value for value in range(1, 11)]
