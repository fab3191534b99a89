"""What saves memory and time on larger models: types, micro-batches, parts of the head, layers computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.core.files import sha256_file
from evals.core.run_spec import Execution, LocalRun
from evals.core.training_settings import LocalTraining
from evals.generation.checkpoint import Checkpoint
from evals.generation.decoder_model import DecoderModel
from evals.grading import GradingPool
from rlvr.engines.local import policy
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.policy import TokenBatch, load_policy, score_in_chunks, token_log_probs
from rlvr.engines.local.train import train
from rlvr.engines.local.transformers_policy import load
from rlvr.runs.state import training_tensors
from tests.unit.engine.conftest import DAPO

MakeRun = Callable[..., LocalRun]
BATCH = TokenBatch([[3, 4, 5], [6], [7, 8]], [[7, 8, 9], [9, 10, 11, 12], [4]])
EXECUTION = Execution(checkpoint_interval=1, lock_wait_seconds=1)


@pytest.fixture(scope="module")
def base(study_files: Path) -> Checkpoint:
    return Checkpoint(study_files / "base" / "tiny" / "checkpoint")


def gradients(model: policy.Policy) -> dict[str, torch.Tensor]:
    (token_log_probs(model, BATCH, 0.7) * torch.linspace(-1, 1, 8)).sum().backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def test_bfloat16_keeps_weights_and_optimizer_in_float32(make_run: MakeRun, base: Checkpoint, tmp_path: Path) -> None:
    exact = score_in_chunks(load_policy(base, "cpu"), BATCH, 1.0, 3)[0]
    half = load_policy(base, "cpu", "bfloat16")
    other = load(base, "float32", "cpu")
    other.compute_in(torch.bfloat16, gradient_checkpointing=False)
    for model in (half, other):
        found = score_in_chunks(model, BATCH, 1.0, 3)[0]
        assert found.dtype == torch.float32 and not torch.equal(found, exact)
        torch.testing.assert_close(found, exact, atol=0.15, rtol=0.02)
    run = make_run({"steps": 2}, dtype="bfloat16")
    learner = Learner(run, "cpu")
    assert {tensor.dtype for tensor in training_tensors(learner.model, learner.updater.optimizer).values()} == {
        torch.float32
    }
    for name in ("first", "second"):
        train(run, tmp_path / name, EXECUTION)
    assert sha256_file(tmp_path / "first/checkpoint/model.safetensors") == sha256_file(
        tmp_path / "second/checkpoint/model.safetensors"
    )


def test_attention_of_bfloat16_is_computed_in_float32_on_a_cpu(base: Checkpoint) -> None:
    decoder = base.decoder("cpu", "bfloat16")
    config, generator = decoder.config, torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(2, heads, 9, config.head_dimension, generator=generator).bfloat16()
        for heads in (config.heads, config.key_value_heads, config.key_value_heads)
    )
    exact = decoder._attend_within(query.float(), key.float(), value.float())
    assert torch.equal(decoder._attend_within(query, key, value), exact.bfloat16())


def test_gradients_in_bfloat16_are_those_of_float32_up_to_rounding(base: Checkpoint) -> None:
    exact, found = (gradients(load_policy(base, "cpu", dtype)) for dtype in ("float32", "bfloat16"))
    assert found.keys() == exact.keys()
    for name, gradient in exact.items():  # those of queries and keys are small differences of large numbers
        assert (found[name] - gradient).norm() < 0.3 * gradient.norm(), name


@pytest.mark.parametrize(
    ("size", "tokens", "padded", "expected"),
    [
        *((2, None, padded, [2, 2, 1]) for padded in (False, True)),
        *((5, None, padded, [5]) for padded in (False, True)),
        (5, 10, False, [2, 1, 2]),
        (5, 10, True, [1, 1, 1, 2]),
        (5, 19, False, [3, 2]),
        (5, 19, True, [2, 2, 1]),
        (1, 100, True, [1] * 5),
        (5, 1, False, [1] * 5),
    ],
)
def test_micro_batches_hold_at_most_so_many_rollouts_and_tokens(
    make_run: MakeRun, size: int, tokens: int | None, padded: bool, expected: list[int]
) -> None:
    training = LocalTraining.parse(
        {**make_run().training.to_json(), "micro_batch_size": size, "micro_batch_tokens": tokens}, "training"
    )
    rollouts = TokenBatch([[1] * (length - 1) for length in (4, 6, 9, 3, 3)], [[2]] * 5)
    parts = [part.tolist() for part in rollouts.micro_batches(training, padded)]
    assert [len(part) for part in parts] == expected
    assert [place for part in parts for place in part] == list(range(5))


def test_micro_batches_change_rounding_alone(make_run: MakeRun, tmp_path: Path) -> None:
    assert "micro_batch_tokens" not in make_run().to_json()["training"]
    rows = []
    for tokens in (None, 60):
        train(make_run({"steps": 1, "micro_batch_tokens": tokens}), tmp_path / str(tokens), EXECUTION)
        learner = Learner(make_run(), "cpu")
        rows.append(Checkpoint(tmp_path / str(tokens) / "checkpoint").model("cpu").head_weight.detach())
        del learner
    torch.testing.assert_close(rows[0], rows[1], atol=1e-4, rtol=1e-3)


def test_the_head_is_computed_in_parts(base: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_policy(base, "cpu")
    whole, scores = gradients(model), score_in_chunks(model, BATCH, 0.7, 3)
    again = load_policy(base, "cpu")
    original, made = type(again).logits, []

    def logits(self: Any, states: torch.Tensor, temperature: float) -> torch.Tensor:
        made.append(len(states))
        return original(self, states, temperature)

    monkeypatch.setattr(type(again), "logits", logits)
    monkeypatch.setattr(policy, "LOGITS_AT_ONCE", 3 * len(again.head_weight))
    for name, gradient in gradients(again).items():
        torch.testing.assert_close(gradient, whole[name], atol=1e-5, rtol=1e-4)
    assert made == [3, 3, 2, *reversed([3, 3, 2])]  # made again for the gradient
    for found, expected in zip(score_in_chunks(again, BATCH, 0.7, 3), scores, strict=True):
        torch.testing.assert_close(found, expected)


def test_layers_that_are_computed_again_have_the_same_gradient(neox: Path, llama: Path) -> None:
    for checkpoint in (Checkpoint(llama / "checkpoint"), Checkpoint(neox / "checkpoint")):
        kept: list[list[int]] = []
        found = []
        for again in (False, True):
            model = load_policy(checkpoint, "cpu", "float32", again)
            kept.append([])
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor, sizes=kept[-1]: sizes.append(tensor.numel()) or tensor,  # type: ignore[func-returns-value,misc]
                lambda tensor: tensor,
            ):
                found.append(gradients(model))
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
        assert sum(kept[1]) < 0.8 * sum(kept[0])


@pytest.mark.parametrize("changes", [{"dtype": "bfloat16"}, {"method": {**DAPO, "token_weights": {"name": "delta"}}}])
def test_passes_that_only_score_keep_to_their_tokens(
    make_run: MakeRun, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    states, seen = DecoderModel.states, list[list[int]]()

    def recorded(model: DecoderModel, sequences: Any, *rest: Any) -> torch.Tensor:
        seen.append([len(sequence) for sequence in sequences])
        return states(model, sequences, *rest)

    monkeypatch.setattr(DecoderModel, "states", recorded)
    batches = []
    for training in ({}, {"micro_batch_tokens": 20}):
        run = make_run({"micro_batch_size": 16, **training}, base=str(llama), **changes)
        with GradingPool(1) as pool:
            batches.append(Learner(run, "cpu").prepare(pool).batch)
    whole, *parts = seen
    assert len(whole) == 16 and sum(whole) > 80 and [length for part in parts for length in part] == whole
    assert all(sum(part) <= 80 or len(part) == 1 for part in parts)
    assert torch.equal(batches[0].token_ids, batches[1].token_ids)
