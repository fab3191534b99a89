"""What the engine's overrides work on is on one device; "meta" is the second, of shapes without numbers.

Numbers that go back to the CPU are made up. What reads them to decide (which rollouts are whose, how many tokens a rank
has) is not tried: cut_mini_batch, train_batch and infer_batch, whose indices are the CPU's.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.gathering import Ranks
from rlvr.engines.verl.hidden_states import HeadInputs, KeptRows
from rlvr.engines.verl.registered import CurrentRun, Field, nested
from rlvr.methods.rollout_batch import RecomputedRows
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

ROOT = Path(__file__).parents[2]
COUPLED = ("fipo", "dfpo_min_replace", "dfpo_advantage_orthogonal", "kl_cov", "clip_cov")


def use_method(name: str, monkeypatch: pytest.MonkeyPatch) -> CurrentRun:
    """The run of a method, as the engine's process finds it."""
    from rlvr.engines.verl import engine

    config = read_study_file(ROOT / "config" / "verl_smoke.yaml")
    study = Study.resolve({**config, "methods": {name: {}}, "reference_method": name}, "study")
    run = f"tiny-{name}-s1"
    cluster = Cluster.parse(study.cluster(run), "cluster")
    current = CurrentRun.of(VerlRun.parse(study.resolved_run(run), "run.json"), cluster)
    monkeypatch.setattr(engine, "current_run", lambda: current)
    return current


def engine_on_meta(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The engine of one rank, whose head [11, 4] and communication are on "meta"; on the CPU its numbers are zeros."""
    from rlvr.engines.verl import engine

    to_cpu = torch.Tensor.cpu

    def cpu(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(values.shape, dtype=values.dtype) if values.device.type == "meta" else to_cpu(values)

    def responses(values: torch.Tensor, mask: Any) -> torch.Tensor:
        """verl's own reads the bounds of sequences, numbers that "meta" has not."""
        return nested([torch.zeros(length) for length in mask.offsets().diff().tolist()]).to(values.device)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(engine, "response_from_nested", responses)
    monkeypatch.setattr(engine.MethodEngine, "_ranks", Ranks(None, 0, 1, torch.device("meta")))
    built = object.__new__(engine.MethodEngine)
    head = torch.nn.Linear(4, 11, bias=False, device="meta")
    built.module = SimpleNamespace(get_output_embeddings=lambda: head)
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
        "old_log_probs": rows(3, 5),
        "advantages": rows(3, 5),
        Field.ADVANTAGE: torch.tensor([0.5, -0.5]),
        Field.GROUP: torch.tensor([0, 0]),
        Field.MINI_BATCH: torch.tensor([0, 1]),
        Field.ROW: torch.tensor([0, 1]),
    }
    return tensordict_utils.get_tensordict({**tensors, **more}, {Field.STEP: 1, Field.FIRST_METRICS: {}})


def outputs_of(*names: str) -> dict[str, torch.Tensor]:
    """What a pass over :func:`batch_of_two` finds, on the device."""
    return {name: nested([torch.zeros(5), torch.zeros(7)]).to("meta") for name in names}


@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_that_couples_rollouts_takes_log_probs_from_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from rlvr.engines.verl import engine

    use_method(name, monkeypatch)
    built, data = engine_on_meta(monkeypatch), batch_of_two()
    passes: list[bool] = []

    def stock(self: Any, data: Any, loss_function: Any, forward_only: bool) -> Any:
        passes.append(forward_only)
        return {"model_output": outputs_of("log_probs")}

    monkeypatch.setattr(FSDPEngineWithLMHead, "forward_backward_batch", stock)
    metrics = built._couple(data)
    gradient = data[engine._GRADIENT]
    assert passes == [True] and torch.isfinite(torch.tensor(metrics["loss"]))
    assert gradient.device.type == "cpu", "verl moves it with the rest of the micro-batch"
    assert gradient.offsets().diff().tolist() == [3, 5]


def test_token_weights_are_computed_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor of the batch is handed to them there."""
    from rlvr.engines.verl import engine

    current = use_method("delta", monkeypatch)

    def weigh(batch: SimpleNamespace) -> tuple[torch.Tensor, dict[str, float]]:
        tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
        assert len(tensors) == 9 and {value.device.type for value in tensors} == {"meta"}
        return torch.ones_like(batch.old_log_probs), {}

    stub: Any = weigh
    counted = replace(current, method=replace(current.method, token_weights=stub))
    monkeypatch.setattr(engine, "current_run", lambda: counted)
    monkeypatch.setattr(engine, "RolloutBatch", SimpleNamespace)  # its own check counts tokens
    built, outputs = engine_on_meta(monkeypatch), outputs_of("log_probs", "entropy")
    weights, _ = built._weigh(batch_of_two(), outputs, torch.zeros(8, 4, device="meta"))
    assert weights.device.type == "meta" and weights.values().shape == (8,)


@pytest.mark.parametrize("name", ["delta", "delta_sketched"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("in_host_memory", [False, True])
def test_hidden_states_are_kept_on_the_device_or_in_host_memory(
    name: str, packed: bool, in_host_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    current = use_method(name, monkeypatch)
    built, micro_batch = engine_on_meta(monkeypatch), batch_of_two()  # of which numbers are read, as verl does
    kept = KeptRows(8, in_host_memory)
    set_item = torch.Tensor.__setitem__

    def put(into: torch.Tensor, at: Any, rows: torch.Tensor) -> None:
        set_item(into, at, rows.cpu() if into.device.type == "cpu" else rows)

    monkeypatch.setattr(torch.Tensor, "__setitem__", put)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it does not know "meta"
    monkeypatch.setattr(FSDPEngineWithLMHead, "prepare_model_outputs", lambda *_: {})
    built._gather_and_unpad_packed = lambda seen, padding: seen[: len(seen) - padding]
    built._head_inputs = HeadInputs({0: (0, 3), 1: (3, 8)}, current, kept.put)
    shape = (1, 14, 4) if packed else (2, 7, 4)
    built._head_inputs.see(None, (torch.zeros(shape, device="meta"),))
    built.prepare_model_outputs(None, {"pad_size": 2} if packed else {}, micro_batch, None)
    rows = kept.on(torch.device("meta"))
    assert rows.device.type == "meta" and rows.shape[0] == 8 and isinstance(rows, RecomputedRows) == in_host_memory


@pytest.mark.parametrize("name", [*COUPLED, "dapo", "sapo", "gspo"])
def test_a_forward_step_has_everything_on_the_device_that_verl_moves_it_to(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensordict import TensorDict
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from rlvr.engines.verl import engine

    current = use_method(name, monkeypatch)
    found: list[torch.Tensor] = []

    def stock(self: Any, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        """verl's own moves the micro-batch first."""
        moved = micro_batch.to("meta")
        mask = torch.ones(2, 5, dtype=torch.bool, device=moved["input_ids"].device)
        log_prob = torch.zeros(2, 5, device=mask.device, requires_grad=True)
        counts = {"dp_size": 8, "batch_num_tokens": 8, "global_batch_size": 2}
        if name not in COUPLED:  # they sum their metrics, numbers that "meta" has not
            assert current.loss.gradient is None
            return log_prob, {"metrics": {}}
        value, _ = current.loss(log_prob, log_prob, log_prob, mask, config=SimpleNamespace(global_batch_info=counts))
        found.append(torch.autograd.grad(value, log_prob)[0])
        return value, {"metrics": {}}

    monkeypatch.setattr(FSDPEngineWithLMHead, "forward_step", stock)
    rows = [torch.ones(3), torch.ones(5)]
    content = {"input_ids": nested([row.long() for row in rows]), "loss_mask": nested(rows)}
    micro_batch = TensorDict(content, batch_size=2)
    if name in COUPLED:
        micro_batch[engine._GRADIENT] = nested(rows)
    object.__new__(engine.MethodEngine).forward_step(micro_batch, None, True)
    assert [gradient.device.type for gradient in found] == ["meta"] * (name in COUPLED)


def test_ranks_wait_for_one_that_loads_its_weights_as_long_as_for_one_that_saves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch.distributed as distributed
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from rlvr.engines.verl import engine

    found: list[timedelta] = []

    def stock(self: Any) -> None:
        """verl's own loads the model and sends it to the ranks."""
        backend: Any = distributed.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        found.append(backend.options._timeout)

    monkeypatch.setattr(FSDPEngineWithLMHead, "initialize", stock)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        object.__new__(engine.MethodEngine).initialize()
    finally:
        distributed.destroy_process_group()
    assert found == [engine._LONGEST_WAIT]
