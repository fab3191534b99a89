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
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.adamw import AdamW
from rlvr.engines.local.fine_tune import FineTuningSettings, fine_tune
from rlvr.engines.local.policy import TokenBatch, load_policy, score_in_chunks
from rlvr.engines.local.train import train
from rlvr.runs.job import Interrupted
from rlvr.runs.state import State, StateStore

SETTINGS = {
    **{
        "prompt": "{problem}\n",
        "seed": 1,
        "steps": 30,
        "batch_size": 8,
        "micro_batch_tokens": 100,
        "gradient_clip": 1.0,
    },
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
