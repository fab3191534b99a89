"""The table of a training's memory: what it adds up, and that a training that cannot fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evals.core.errors import UserError
from evals.core.files import write_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.generation.architecture import DecoderConfig
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local import preflight
from rlvr.engines.local.decoder_memory import kept_by_passes
from rlvr.engines.local.memory_parts import Part, peak
from rlvr.engines.local.preflight import check_memory
from tests.commands import rlvr_bench
from tests.unit.engine.conftest import DAPO
from tests.unit.engine.test_fine_tune import tune

MakeRun = Callable[..., LocalRun]


def test_activations_are_what_a_pass_keeps(make_run: MakeRun, llama: Path) -> None:
    run, checkpoint = make_run(base=str(llama)), Checkpoint(llama / "checkpoint")
    config = DecoderConfig.from_json(checkpoint.config, "config.json")
    shapes = {name: list(weight.shape) for name, weight in checkpoint.model("cpu").named_parameters()}
    model, kept = checkpoint.model("cpu"), dict[int, torch.Tensor]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.states([[0] * 20] * 3, [0] * 3)
    leaves = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    really = sum(each.untyped_storage().nbytes() for place, each in kept.items() if place not in leaves)
    activations, copies = kept_by_passes(config, shapes, run.dtype, False, [20] * 3)
    assert activations + copies == pytest.approx(really, rel=0.02)
    assert copies == pytest.approx(kept_by_passes(config, shapes, run.dtype, False, [5])[1], rel=0.01)
    for layer in range(2, 8):
        shapes |= {
            name.replace("layers.1.", f"layers.{layer}."): shapes[name] for name in [*shapes] if "layers.1." in name
        }
    deep = replace(config, layers=8)
    again, kept_whole = (kept_by_passes(deep, shapes, run.dtype, each, [20] * 3)[0] for each in (True, False))
    assert again < 0.6 * kept_whole


def test_parts_of_different_phases_are_not_there_together() -> None:
    assert peak([Part("a", 1), Part("b", 10, "sampling"), Part("c", 7, "update"), Part("d", 4, "update")]) == 12


def test_a_training_that_cannot_fit_is_refused_with_the_table(
    make_run: MakeRun, llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run({"micro_batch_tokens": 40}, base=str(llama))
    check_memory(run, Execution())
    assert not capsys.readouterr().out  # a small model
    monkeypatch.setattr(preflight, "SMALL", 0)
    check_memory(run, Execution())
    printed = capsys.readouterr().out
    assert "update: activations of 1 rollouts of " in printed and "at most at a time" in printed
    monkeypatch.setattr(preflight, "_memory", lambda device: 1 << 20)
    with pytest.raises(UserError, match=r"tiny-dapo-s1: needs about \d+ MiB of memory on cpu, which has 1; "):
        check_memory(run, Execution())


def test_gradients_that_contrast_keeps_are_counted(make_run: MakeRun, llama: Path) -> None:
    checkpoint = Checkpoint(llama / "checkpoint")
    shapes = checkpoint.shapes
    of_all = 4 * sum(torch.Size(shape).numel() for shape in shapes.values())

    def counted(device: str = "cpu", reference: str | None = None, **changes: object) -> list[int]:
        method = {**DAPO, "loss": {"name": reference}} if reference else DAPO
        contrast = {"reference_method": "dapo", "method": method, "steps": [1]}
        run = make_run(base=str(llama), contrast=contrast, **changes)
        found = preflight.parts(run, Execution.model_construct(device=device), checkpoint, shapes, 30)
        assert not any(
            "contrast" in part.settings for part in preflight.parts(make_run(), Execution(), checkpoint, shapes, 30)
        )
        return [part.size // of_all for part in found if part.settings == "contrast_steps"]

    assert counted() == [2, 2, 2, 4]  # the reference method itself, and its floor
    assert counted(reference="gspo") == [3, 2, 3, 4]
    control = {**DAPO, "token_weights": {"name": "random_lambda"}}
    assert counted(method=control) == [2, 2, 2, 4]  # whose floor is its own
    assert counted("cuda") == [1]


def test_the_memory_of_a_container_is_what_its_groups_allow(tmp_path: Path) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "memory" / "c").mkdir(parents=True)
    (root / "memory.max").write_text("max\n")
    (root / "a" / "memory.max").write_text("4096\n")
    (root / "a" / "b" / "memory.max").write_text("max\n")
    (root / "memory" / "memory.limit_in_bytes").write_text("512\n")
    groups.write_text("3:cpu:/x\n0::/a/b\n")
    assert list(preflight._allowed(groups, root)) == [4096]
    groups.write_text("4:memory:/hidden/from/here\n0::/\n")
    assert list(preflight._allowed(groups, root)) == [512]
    assert list(preflight._allowed(tmp_path / "none", root)) == []


def test_a_warm_start_that_cannot_fit_is_refused_with_the_table(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solutions = tmp_path / "solutions.jsonl"
    write_jsonl(solutions, [{"problem": "1+1", "solution": "2" * length} for length in (9, 5, 1)])
    monkeypatch.setattr(preflight, "SMALL", 0)
    tune(llama, solutions, tmp_path / "warm", steps=1, batch_size=3, micro_batch_tokens=24)
    printed = capsys.readouterr().out
    assert "warm: memory that the training takes" in printed and "update: activations of" in printed
    monkeypatch.setattr(preflight, "_memory", lambda device: 1 << 20)
    with pytest.raises(UserError, match=r"other: needs about \d+ MiB .*: fine_tuning\.micro_batch_tokens"):
        tune(llama, solutions, tmp_path / "other", steps=1)
    assert not (tmp_path / "other" / "checkpoint").exists()


def test_transformers_is_counted_where_it_is_loaded(make_run: MakeRun, llama: Path) -> None:
    checkpoint = Checkpoint(llama / "checkpoint")
    shapes = checkpoint.shapes

    def counted(device: str = "cpu", **changes: object) -> dict[str, int]:
        execution = Execution.model_construct(device=device)
        found = preflight.parts(make_run(**changes), execution, checkpoint, shapes, 30)
        return {part.name.partition(",")[0]: part.size for part in found}

    assert counted(prompt_form="chat").keys() - counted().keys() == {"transformers"}
    assert "transformers" not in counted("cuda", prompt_form="chat")
    assert counted(dtype="bfloat16").keys() - counted().keys() == {"kernels of oneDNN"}
    assert "kernels of oneDNN" not in counted("cuda", dtype="bfloat16")


def test_the_table_is_shown_for_a_device_that_is_not_here(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run()
    train = rlvr_bench("train")
    words = [str(tmp_path / "run.json"), "--device", "cuda", "--device-memory"]
    train([*words, "24576"])
    assert "of 24576 on cuda" in capsys.readouterr().out
    assert train([*words, "1"]) == 2 and "which has 1" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
