"""What a model of transformers holds: counted on tensors without numbers, and what real tensors take."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import GPTNeoXConfig, MixtralConfig

from evals.core.errors import UserError
from evals.core.files import write_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.generation.backend import SamplingParameters
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local import preflight
from rlvr.engines.local.padded_memory import Held, PaddedModel, Update
from rlvr.engines.local.policy import (
    Policy,
    TokenBatch,
    load_policy,
    log_probs_after,
    response_states,
    token_log_probs,
)
from rlvr.engines.local.rollout import RolloutSampler
from tests.unit.engine.conftest import DAPO, import_pretrained
from tests.unit.engine.test_fine_tune import tune

MakeRun = Callable[..., LocalRun]
ROWS, LONGEST, TARGETS = 6, 24, 8


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pass_holds_what_real_tensors_take(neox: Path, dtype: str, again: bool) -> None:
    checkpoint = Checkpoint(neox / "checkpoint")
    counted = PaddedModel(checkpoint, dtype, again).update(ROWS, LONGEST, ROWS * TARGETS)
    assert_as_counted(load_policy(checkpoint, "cpu", dtype, again), counted)


def assert_as_counted(policy: Policy, counted: Update) -> None:
    """A pass of a real policy holds what was counted."""
    # The last token of a sequence is not computed: it predicts nothing.
    batch = TokenBatch([[3] * (LONGEST - TARGETS + 1)] * ROWS, [[4] * TARGETS] * ROWS)
    token_log_probs(policy, batch, 1.0).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad for weight in policy.parameters() if weight.grad is not None]
    model = policy.model  # type: ignore[attr-defined]
    with Held([*model.parameters(), *model.buffers(), *gradients]) as held:
        states, targets = response_states(policy, batch)
        kept = held.now
        log_probs_after(policy, states, targets, 1.0).sum().backward()  # type: ignore[no-untyped-call]
    assert counted.copies + counted.activations == pytest.approx(kept, rel=0.1)
    assert counted.copies + counted.activations + counted.rest == pytest.approx(held.most, rel=0.1)


def test_keys_and_values_are_those_of_full_responses(neox: Path) -> None:
    checkpoint = Checkpoint(neox / "checkpoint")
    config, counted = checkpoint.config, PaddedModel(checkpoint, "float32").sampling(5, 7, 20)
    assert counted.key_values == 2 * config["num_hidden_layers"] * config["hidden_size"] * 5 * 20 * 4
    assert counted.copies == 0 < counted.rest
    in_bfloat16 = PaddedModel(checkpoint, "bfloat16").sampling(5, 7, 20)
    matrices = [weight for weight in load_policy(checkpoint, "cpu").parameters() if weight.dim() > 1]
    assert in_bfloat16.copies == pytest.approx(2 * sum(each.numel() for each in matrices[1:]), rel=0.05)  # not tokens'


def test_logits_of_sampling_are_counted_once(tmp_path: Path) -> None:
    checkpoint = Checkpoint(import_pretrained(tmp_path, GPTNeoXConfig, vocab_size=4096) / "checkpoint")
    counted = PaddedModel(checkpoint, "float32").of_sampling(6, 2, 8)
    policy = load_policy(checkpoint, "cpu")
    sampler = RolloutSampler(checkpoint.tokenizer, {"1": [3, 4]}, 6, SamplingParameters(6), checkpoint.end_tokens)
    with Held(policy.weights().values()) as held:
        sampler.roll_out(policy.sampler(), [{"problem": "1", "answer": "1"}], "rollout/1/0", 0)
    assert held.most < sum(part.size for part in counted) < 1.3 * held.most


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    base = import_pretrained(tmp_path, GPTNeoXConfig, tie_word_embeddings=True)
    policy = PaddedModel(Checkpoint(base / "checkpoint"), "float32")._policy
    assert policy.head_weight is policy.model.get_input_embeddings().weight


def test_the_table_of_a_training_is_whole(make_run: MakeRun, neox: Path) -> None:
    checkpoint = Checkpoint(neox / "checkpoint")

    def counted(again: bool = False, **training: int) -> dict[str, int]:
        method = {**DAPO, "token_weights": {"name": "delta"}}
        run = make_run(training, base=str(neox), method=method)
        execution = Execution.model_construct(gradient_checkpointing=again, device="cpu", hidden_state_budget=4096)
        found = preflight.parts(run, execution, checkpoint, checkpoint.shapes, 30)
        return {" ".join(part.name.split()[:3]): part.size for part in found}

    whole = counted()
    assert {"keys and values", "hidden states of", "activations of 8", "logits, and gradients"} < whole.keys()
    assert "logits of a" not in whole  # they are among those of sampling's passes
    assert counted(sampling_batch_size=8)["keys and values"] == whole["keys and values"] / 2
    assert counted(micro_batch_tokens=70)["activations of 2"] == pytest.approx(whole["activations of 8"] / 4, rel=0.05)
    assert counted(again=True)["activations of 8"] < whole["activations of 8"] / 3


def test_a_loss_that_couples_rollouts_is_counted_with_its_whole_mini_batch(make_run: MakeRun, llama: Path) -> None:
    checkpoint = Checkpoint(llama / "checkpoint")
    shapes, training = checkpoint.shapes, {"micro_batch_size": 2, "micro_batch_tokens": 40}
    for loss, rollouts in (("clipped", 1), ("clip_cov", 8)):
        run = make_run(training, base=str(llama), method={**DAPO, "loss": {"name": loss}})
        found = preflight.parts(run, Execution(), checkpoint, shapes, 30)
        assert any(part.name == f"activations of {rollouts} rollouts of 30 tokens" for part in found), loss


def test_the_table_of_a_warm_start_counts_padding(
    neox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "solutions.jsonl", [{"problem": "1", "solution": "2" * length} for length in (9, 1, 1, 1)])
    monkeypatch.setattr(preflight, "SMALL", 0)
    tune(neox, tmp_path / "solutions.jsonl", tmp_path / "warm", steps=1, batch_size=4, micro_batch_tokens=40)
    found = re.search(r"activations of (\d) solutions of (\d+) tokens, padded", capsys.readouterr().out)
    assert found and int(found[1]) > 1 and 20 < int(found[1]) * int(found[2]) <= 40


@pytest.mark.parametrize("place", ["__init__", "update", "sampling"])
def test_what_cannot_be_counted_is_said_once(
    place: str, make_run: MakeRun, neox: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors: list[Exception] = [
        AssertionError("no shape of aten.new_operation\nand a long text"),
        UserError("a setting"),
    ]

    def fail(*_: object) -> None:
        raise errors[0]

    monkeypatch.setattr(PaddedModel, place, fail)
    monkeypatch.setattr(preflight, "SMALL", 0)
    run = make_run(base=str(neox))
    preflight.check_memory(run, Execution())
    printed = capsys.readouterr().out
    assert printed.count("not counted") == printed.count("the rest: not counted (no shape of aten.new_operation) ") == 1
    assert "optimizer" in printed and ("activations" in printed) == (place == "sampling")
    del errors[0]
    with pytest.raises(UserError, match=r"^a setting$"):
        preflight.check_memory(run, Execution())


def test_a_warm_start_that_cannot_be_counted_goes_on(
    neox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "solutions.jsonl", [{"problem": "1", "solution": "2"}])
    monkeypatch.setattr(preflight, "SMALL", 0)
    monkeypatch.delattr(PaddedModel, "update")
    tune(neox, tmp_path / "solutions.jsonl", tmp_path / "warm", steps=1, batch_size=1)
    assert "the rest: not counted ('PaddedModel' object has no attribute 'update')" in capsys.readouterr().out


def test_products_of_experts_are_counted(tmp_path: Path) -> None:
    base = import_pretrained(tmp_path, MixtralConfig, num_local_experts=4, num_key_value_heads=2)
    model = PaddedModel(Checkpoint(base / "checkpoint"), "float32")
    assert model.update(4, 20, 8).activations > 0 and model.sampling(4, 5, 20).key_values > 0
