"""The table of a training's memory: what it adds up, and that a training that cannot fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evals.core.errors import UserError
from evals.core.run_spec import Execution, LocalRun
from evals.generation.architecture import DecoderConfig
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local import preflight
from rlvr.engines.local.preflight import Part, check_memory, kept_by_passes, peak

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
    activations, copies = kept_by_passes(config, shapes, run, False, [20] * 3)
    assert activations + copies == pytest.approx(really, rel=0.02)
    assert copies == pytest.approx(kept_by_passes(config, shapes, run, False, [5])[1], rel=0.01)
    for layer in range(2, 8):
        shapes |= {
            name.replace("layers.1.", f"layers.{layer}."): shapes[name] for name in [*shapes] if "layers.1." in name
        }
    deep = replace(config, layers=8)
    again, kept_whole = (kept_by_passes(deep, shapes, run, each, [20] * 3)[0] for each in (True, False))
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
