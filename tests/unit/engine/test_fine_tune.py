"""The warm start: what it learns, that a kill changes nothing, and that it serves as a base model."""

import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from evals.core.errors import InvalidInput, UserError
from evals.core.files import sha256_file, write_jsonl
from evals.core.manifest import verify_outputs
from evals.core.run_spec import Execution, LocalRun
from evals.core.sampling import SamplingParameters
from evals.core.training_settings import LocalTraining
from evals.generation.backend import BackendSettings, load_backend
from evals.generation.checkpoint import Checkpoint
from evals.generation.decoder_model import DecoderModel
from evals.grading import GradingPool
from rlvr.engines.local import policy
from rlvr.engines.local.adamw import AdamW
from rlvr.engines.local.fine_tune import FineTuningSettings, fine_tune
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.policy import TokenBatch, load_policy, response_states, score_in_chunks, token_log_probs
from rlvr.engines.local.train import train
from rlvr.engines.local.transformers_policy import load
from rlvr.runs.job import Interrupted
from rlvr.runs.state import State, StateStore, training_tensors
from tests.unit.engine.conftest import DAPO, EXECUTION, MakeRun

SETTINGS = {
    **{"prompt": "{problem}\n", "seed": 1, "steps": 30, "batch_size": 8, "micro_batch_tokens": 100, "gradient_clip": 1},
    **{"learning_rate": 0.01, "warmup_steps": 2, "weight_decay": 0.0, "dtype": "float32", "prompt_form": "base"},
}


@pytest.fixture
def solutions(tmp_path: Path) -> Path:
    path = tmp_path / "solutions.jsonl"
    texts = [(f"Compute {a}+{b} modulo 10.", f"\\boxed{{{(a + b) % 10}}}") for a in range(4) for b in range(4)]
    write_jsonl(path, [{"problem": problem, "solution": solution} for problem, solution in texts])
    return path


def tune(base: Path, solutions: Path, out: Path, **changes: Any) -> None:
    settings = FineTuningSettings.parse({**SETTINGS, **changes}, "settings")
    fine_tune(settings, base, [solutions], out, "cpu", checkpoint_interval=5, wait_seconds=1)


def test_files_of_solutions_are_read_one_after_the_other(llama: Path, solutions: Path, tmp_path: Path) -> None:
    lines = solutions.read_text().splitlines(keepends=True)
    parts = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for part, some in zip(parts, (lines[:5], lines[5:]), strict=True):
        part.write_text("".join(some))
    settings = FineTuningSettings.parse({**SETTINGS, "steps": 3}, "settings")
    for name, files in (("one", [solutions]), ("two", parts)):
        fine_tune(settings, llama, files, tmp_path / name, "cpu", checkpoint_interval=5, wait_seconds=1)
    made = [verify_outputs(tmp_path / name / "manifest.json", "base_model") for name in ("one", "two")]
    assert len({each.outputs["checkpoint/model.safetensors"] for each in made}) == 1
    assert [str(part) in made[1].inputs for part in parts] == [True, True]


def test_solutions_are_likely(llama: Path, solutions: Path, make_run: Callable[..., LocalRun], tmp_path: Path) -> None:
    out = tmp_path / "base" / "warm"
    tune(llama, solutions, out)
    losses = pd.read_parquet(out / "metrics.parquet")["loss"]
    assert len(losses) == 30 and losses.iloc[-1] < 0.5 * losses.iloc[0]
    manifest = verify_outputs(out / "manifest.json", "base_model")
    assert manifest.parameters["source"] == "fine_tuned" and manifest.details["solutions"] == 16
    before, after = Checkpoint(llama / "checkpoint"), Checkpoint(out / "checkpoint")
    solved = after.tokenizer.encode("\\boxed{3}").ids
    batch = TokenBatch([after.tokenizer.encode("Compute 1+2 modulo 10.\n").ids], [[*solved, after.end_token]])
    found = [score_in_chunks(load_policy(each, "cpu"), batch, 1.0, 1)[0].sum() for each in (before, after)]
    assert found[1] > found[0] + 1
    train(make_run({"steps": 1}, base=str(out)), tmp_path / "run", Execution(lock_wait_seconds=1))


def test_a_kill_changes_no_byte(llama: Path, solutions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(llama, solutions, tmp_path / "whole", steps=12)
    step, done = AdamW.step, []

    def until_the_seventh(self: AdamW, learning_rate: float) -> None:
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(learning_rate)
        step(self, learning_rate)

    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "step", until_the_seventh)
        with pytest.raises(KeyboardInterrupt):
            tune(llama, solutions, tmp_path / "parts", steps=12)
    tune(llama, solutions, tmp_path / "parts", steps=12)
    assert len(pd.read_parquet(tmp_path / "parts" / "metrics.parquet")) == 12
    whole, parts = (tmp_path / name / "checkpoint" / "model.safetensors" for name in ("whole", "parts"))
    assert whole.stat().st_nlink == 2  # the state's and the checkpoint's
    assert sha256_file(whole) == sha256_file(parts) != sha256_file(llama / "checkpoint" / "model.safetensors")


def test_sigterm_saves_its_state(llama: Path, solutions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = AdamW.step

    def ask(self: AdamW, learning_rate: float) -> None:
        step(self, learning_rate)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "step", ask)
        with pytest.raises(Interrupted, match="warm: stopped after step 1; its state is saved"):
            tune(llama, solutions, tmp_path / "warm")
    assert [path.name for path in (tmp_path / "warm").glob("state/*/step-*")] == ["step-00000001"]


def test_continuing_frees_state(llama: Path, solutions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    latest, step, read = StateStore.latest, AdamW.step, list[weakref.ref[torch.Tensor]]()

    def until_the_seventh(self: AdamW, learning_rate: float) -> None:
        if not read and len(begun) == 6:
            raise KeyboardInterrupt
        begun.append(sum(each() is not None for each in read))
        step(self, learning_rate)

    def remembered(self: StateStore) -> State | None:
        found = latest(self)
        read.extend(map(weakref.ref, found.tensors.values() if found else ()))
        return found

    begun: list[int] = []
    monkeypatch.setattr(AdamW, "step", until_the_seventh)
    monkeypatch.setattr(StateStore, "latest", remembered)
    with pytest.raises(KeyboardInterrupt):
        tune(llama, solutions, tmp_path / "warm", steps=7)
    tune(llama, solutions, tmp_path / "warm", steps=7)
    assert read and begun == [0] * 8  # the sixth twice


def test_the_gradient_is_that_of_the_mean_over_solution_tokens(llama: Path, solutions: Path, tmp_path: Path) -> None:
    for tokens in (30, 10_000):  # passes change rounding alone
        tune(llama, solutions, tmp_path / str(tokens), steps=1, micro_batch_tokens=tokens, learning_rate=0.1)
    rows = [pd.read_parquet(tmp_path / name / "metrics.parquet").iloc[0] for name in ("30", "10000")]
    torch.testing.assert_close(rows[0]["loss"], rows[1]["loss"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(rows[0]["grad_norm"], rows[1]["grad_norm"], rtol=1e-4, atol=1e-6)


def test_solutions_that_cannot_be_used_are_named(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "solutions.jsonl"
    for rows, error, message in [
        ([], UserError, "holds no solutions"),
        ([{"problem": "1"}], UserError, "solution"),
        ([{"problem": "1", "solution": "2" * 70}], InvalidInput, r"line 1: has \d+ tokens .* at most 64"),
    ]:
        write_jsonl(path, rows)
        with pytest.raises(error, match=message):
            tune(llama, path, tmp_path / "out")


# What saves memory and time on larger models: types, micro-batches, parts of the head, layers computed again.

BATCH = TokenBatch([[3, 4, 5], [6], [7, 8]], [[7, 8, 9], [9, 10, 11, 12], [4]])


@pytest.fixture(scope="module")
def base(study_files: Path) -> Checkpoint:
    return Checkpoint(study_files / "base" / "tiny" / "checkpoint")


def gradients(model: policy.Policy) -> dict[str, torch.Tensor]:
    (token_log_probs(model, BATCH, 0.7) * torch.linspace(-1, 1, 8)).sum().backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_keeps_float32_weights(make_run: MakeRun, base: Checkpoint, tmp_path: Path, dtype: str) -> None:
    exact = score_in_chunks(load_policy(base, "cpu"), BATCH, 1.0, 3)[0]
    other = load(base, "float32", "cpu")
    other.compute_in(getattr(torch, dtype), gradient_checkpointing=False)
    for model in (load_policy(base, "cpu", dtype), other):
        log_probs = score_in_chunks(model, BATCH, 1.0, 3)[0]
        assert log_probs.dtype == torch.float32 and not torch.equal(log_probs, exact)
        torch.testing.assert_close(log_probs, exact, atol=0.15, rtol=0.02)
    run = make_run({"steps": 2}, dtype=dtype)
    learner = Learner(run, "cpu")
    tensors = training_tensors(learner.model, learner.updater.optimizer).values()
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    for name in ("first", "second"):
        train(run, tmp_path / name, EXECUTION)
    first, second = (sha256_file(tmp_path / name / "checkpoint/model.safetensors") for name in ("first", "second"))
    assert first == second
    metrics = pd.read_parquet(tmp_path / "first" / "metrics.parquet")
    assert ("loss_scale" in metrics) == (dtype == "float16") and (metrics["grad_norm"] > 0).all()
    assert metrics.get("loss_scale", pd.Series([2.0**16])).max() == 2.0**16


@pytest.mark.parametrize("factor", [1e-9, 1e-3, 1e3])
def test_gradients_of_float16_neither_vanish_nor_overflow(base: Checkpoint, factor: float) -> None:
    """A loss so small that its gradients are below float16's least number, and one whose scale has to be lowered."""
    exact = gradients(load_policy(base, "cpu"))
    model = load_policy(base, "cpu", "float16")
    optimizer = AdamW(model.parameters(), 0.0)

    def backward(scale: float) -> float:
        (token_log_probs(model, BATCH, 0.7) * torch.linspace(-1, 1, 8) * factor * scale).sum().backward()
        return scale

    last, metrics = optimizer.add_gradients(backward, model.dtype)
    assert metrics == {"loss_scale": last} and (last == 2.0**16) == (factor < 1)
    for name, weight in model.named_parameters():
        assert weight.grad is not None and (weight.grad / factor - exact[name]).norm() < 0.3 * exact[name].norm(), name


def test_a_gradient_that_no_scale_makes_finite_ends_the_training(base: Checkpoint) -> None:
    model = load_policy(base, "cpu", "float16")
    optimizer, scales = AdamW(model.parameters(), 0.0), list[float]()

    def backward(scale: float) -> None:
        scales.append(scale)
        (token_log_probs(model, BATCH, 0.7) * torch.inf).sum().backward()

    optimizer.add_gradients(backward, model.dtype)
    assert scales == [2.0**power for power in range(16, -1, -1)]
    with pytest.raises(UserError, match="update 3: the gradient is not finite"):
        optimizer.clip(1.0, "update 3")


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_in_float32_is_that_of_both(make_run: MakeRun, llama: Path, study_files: Path, tied: bool) -> None:
    """Against the product in float64 of the trainer's hidden states with the weights that were never rounded."""
    run = make_run(base=str(study_files / "base/tiny" if tied else llama), dtype="bfloat16", head_dtype="float32")
    learner, rounded = Learner(run, "cpu"), Learner(run.model_copy(update={"head_dtype": None}), "cpu")
    rollouts = learner._sampler.roll_out(learner.model.sampler(), learner.order.take(0, 4), "rollout/1/0", 0)
    states, targets = response_states(learner.model, rollouts.tokens)
    assert states.dtype == learner.model.head_dtype == torch.float32 != rounded.model.head_dtype
    logits = states.detach().double() @ learner.model.head_weight.detach().double().T
    exact = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0].float()
    log_probs, others = (score_in_chunks(each.model, rollouts.tokens, 1.0, 8)[0] for each in (learner, rounded))
    torch.testing.assert_close(log_probs, exact, atol=1e-5, rtol=1e-5)
    assert (log_probs - exact).abs().mean() < 0.1 * (others - exact).abs().mean()
    of_samplers = []
    for model in (learner.model, rounded.model):
        assert isinstance(model, DecoderModel)
        decoder = model.decoder()
        given = torch.tensor([[3, 4, 5]]), torch.arange(3)[None], None
        of_samplers.append(decoder.forward(*given, decoder.new_cache(1, 3)).detach())
    torch.testing.assert_close(*of_samplers, atol=0.05, rtol=0.02)
    assert [torch.equal(values, values.bfloat16().float()) for values in of_samplers] == [False, True]
    with GradingPool(1) as pool:
        prepared = learner.prepare(pool)
    assert prepared.metrics["sampler_difference_mean"] < 0.02


def test_a_head_of_its_own_is_refused_where_nobody_computes_it(make_run: MakeRun, neox: Path, llama: Path) -> None:
    with pytest.raises(InvalidInput, match=r"is float32, and .*model_type is 'gpt_neox'") as error:
        Learner(make_run(base=str(neox), head_dtype="float32"), "cpu")
    assert error.value.key == "head_dtype"
    with pytest.raises(InvalidInput, match="head_dtype: is float32 with sampling_backend vllm"):
        make_run({"sampling_backend": "vllm"}, head_dtype="float32")
    model = Checkpoint(llama / "checkpoint")
    parameters = SamplingParameters(max_new_tokens=4)
    settings = BackendSettings("bfloat16", "cpu", 64, model.end_tokens, parameters, head_dtype="float32")
    with pytest.raises(InvalidInput, match="head_dtype: is float32 with backend transformers"):
        load_backend("transformers", [model], settings)
    load_backend("local", [model], settings)
    with pytest.raises(InvalidInput, match="model_type is 'gpt_neox'"):
        load_backend("local", [Checkpoint(neox / "checkpoint")], settings)
    assert "head_dtype" not in make_run().parameters()


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
    parts = [part.tolist() for part in rollouts.passes(training.micro_batch_size, training.micro_batch_tokens, padded)]
    assert [len(part) for part in parts] == expected
    assert [place for part in parts for place in part] == list(range(5))


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
