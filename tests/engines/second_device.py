"""The engine of one rank on "meta": tensors of shapes without numbers, to which one of the CPU cannot be added."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.gathering import Ranks
from rlvr.engines.verl.registered import CurrentRun, Field, nested
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file

ROOT = Path(__file__).parents[2]


def use_method(name: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> CurrentRun:
    """The run of a method, as the engine's process finds it."""
    from rlvr.engines.verl import engine

    config = read_study_file(ROOT / "config" / "verl_smoke.yaml")
    methods = {name: dict(changes)}
    study = Study.resolve({**config, "methods": methods, "reference_method": name}, "study")
    run = f"tiny-{name}-s1"
    cluster = Cluster.parse(study.cluster(run), "cluster")
    current = CurrentRun.of(VerlRun.parse(study.resolved_run(run), "run.json"), cluster)
    monkeypatch.setattr(engine, "current_run", lambda: current)
    return current


class Model(torch.nn.Module):
    """A vocabulary of 11 tokens and states of 4 numbers, on "meta"."""

    config = SimpleNamespace(vocab_size=11)

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 4, device="meta")
        self.head = torch.nn.Linear(4, 11, bias=False, device="meta")

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.head

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        assert input_ids.device.type == "meta", "which an embedding on meta does not ask for"
        return SimpleNamespace(logits=self.head(self.embedding(input_ids)))


def engine_on_meta(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The engine of the only rank, whose model and communication are on "meta".

    On the CPU its numbers are zeros, and as numbers of Python ones.
    """
    import torch.distributed as distributed

    from rlvr.engines.verl import engine

    def made_up(name: str, found: Callable[[torch.Tensor], Any]) -> None:
        stock = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda values: found(values) if values.device.type == "meta" else stock(values)
        )

    def responses(values: torch.Tensor, mask: Any) -> torch.Tensor:
        """verl's own reads the bounds of sequences, numbers that "meta" has not."""
        return nested([torch.zeros(length) for length in mask.offsets().diff().tolist()]).to(values.device)

    def exchange(values: torch.Tensor, **_named: Any) -> None:
        assert values.device.type == "meta", "which NCCL exchanges alone"

    made_up("cpu", lambda values: torch.zeros(values.shape, dtype=values.dtype))
    made_up("tolist", lambda values: torch.ones(values.shape, dtype=values.dtype).tolist())
    made_up("__int__", lambda values: 1)
    made_up("__float__", lambda values: 1.0)
    monkeypatch.setattr(engine, "response_from_nested", responses)
    monkeypatch.setattr(engine, "get_device_id", lambda: "meta")
    monkeypatch.setattr(engine, "get_torch_device", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(engine.MethodEngine, "_ranks", Ranks(None, 0, 1, torch.device("meta")))
    monkeypatch.setattr(distributed, "all_reduce", exchange)
    for name, found in {"get_rank": 0, "get_world_size": 1, "all_gather_object": None}.items():
        monkeypatch.setattr(distributed, name, lambda *_, found=found: found)
    built = object.__new__(engine.MethodEngine)
    built.module = Model()
    built.optimizer = SimpleNamespace(param_groups=[{"lr": 1e-3}])
    built.eval_mode = nullcontext
    built.get_data_parallel_group = lambda: None
    built.get_data_parallel_size = lambda: 1
    return built


def batch_of_two(**more: torch.Tensor) -> Any:
    """Two rollouts of 3 and 5 tokens after a prompt of 2, as verl hands a worker its batch: on the CPU."""
    from verl.utils import tensordict_utils

    def rows(*lengths: int) -> torch.Tensor:
        return nested([torch.ones(length) for length in lengths])

    tensors = {
        "input_ids": nested([torch.ones(5).long(), torch.ones(7).long()]),
        "responses": nested([torch.ones(3).long(), torch.ones(5).long()]),
        "response_mask": rows(3, 5),
        "loss_mask": rows(3, 5),
        "old_log_probs": rows(3, 5),
        "rollout_log_probs": rows(3, 5),
        "ref_log_prob": rows(3, 5),
        "advantages": rows(3, 5),
        Field.ADVANTAGE: torch.tensor([0.5, -0.5]),
        Field.GROUP: torch.tensor([1, 1]),
        Field.MINI_BATCH: torch.tensor([0, 1]),
        Field.ROW: torch.tensor([0, 1]),
    }
    settings = {Field.STEP: 1, Field.FIRST_METRICS: {}, Field.ENTROPY_COEFFICIENT: 0.1, "calculate_entropy": True}
    return tensordict_utils.get_tensordict({**tensors, **more}, settings)


def outputs_of(*names: str) -> dict[str, torch.Tensor]:
    """What a pass over :func:`batch_of_two` finds, on the device."""
    return {name: nested([torch.zeros(5), torch.zeros(7)]).to("meta") for name in names}
