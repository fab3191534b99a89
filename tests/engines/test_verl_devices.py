"""Every override works on one device; "meta" is the second, of shapes without numbers.

Numbers that go back to the CPU are made up.
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

from evals.core.training_settings import Lora
from rlvr.engines.verl.adapters import ADAPTERS
from rlvr.engines.verl.registered import Field, nested
from tests.engines.second_device import batch_of_two, engine_on_meta, outputs_of, use_method

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

COUPLED = ("fipo", "dfpo_min_replace", "dfpo_advantage_orthogonal", "kl_cov", "clip_cov")


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
        return {"model_output": outputs_of("log_probs"), "metrics": {}}

    monkeypatch.setattr(FSDPEngineWithLMHead, "forward_backward_batch", stock)
    metrics = built.forward_backward_batch(data, None)["metrics"]
    gradient = data[engine._GRADIENT]
    assert passes == [True, False] and torch.isfinite(torch.tensor(metrics["rlvr/loss"].values)).all()
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
def test_hidden_states_stay_on_the_device(name: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    use_method(name, monkeypatch)
    built = engine_on_meta(monkeypatch)
    passes: list[bool] = []

    def stock(self: Any, data: Any, loss_function: Any, forward_only: bool) -> Any:
        """One micro-batch, left on the CPU: numbers of it are read, as verl does too."""
        passes.append(forward_only)
        built.module.head(torch.zeros((1, 14, 4) if packed else (2, 7, 4), device="meta"))
        built.prepare_model_outputs(None, {"pad_size": 2} if packed else {}, data, None)
        return {"model_output": outputs_of("log_probs", "entropy")}

    def weigh(data: Any, found: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
        assert hidden.device.type == "meta" and len(hidden) == 8
        return found["log_probs"], {}

    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it does not know "meta"
    monkeypatch.setattr(FSDPEngineWithLMHead, "prepare_model_outputs", lambda *_: {})
    monkeypatch.setattr(FSDPEngineWithLMHead, "forward_backward_batch", stock)
    built._gather_and_unpad_packed = lambda seen, padding: seen[: len(seen) - padding]
    built._weigh = weigh
    found = built.infer_batch(batch_of_two())["model_output"]
    assert found[Field.TOKEN_WEIGHTS].device.type == "meta" and len(found[Field.WEIGHT_METRICS].unbind()) == 2
    assert passes == [True]


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=2.0)])
def test_adapters_are_saved_from_the_device(lora: Lora | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from rlvr.engines.verl import engine

    current = use_method("dapo", monkeypatch)
    run = current.run.model_copy(update={"training": current.run.training.model_copy(update={"lora": lora})})
    monkeypatch.setattr(engine, "current_run", lambda: replace(current, run=run))
    monkeypatch.setattr(FSDPEngineWithLMHead, "save_checkpoint", lambda *_: None)
    engine_on_meta(monkeypatch).save_checkpoint(str(tmp_path))
    assert (tmp_path / ADAPTERS).exists() == (lora is not None)


def test_adapters_are_drawn_where_weights_have_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from peft import LoraConfig, get_peft_model
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    use_method("dapo", monkeypatch)
    layers = {"here": torch.nn.Linear(4, 4), "sent": torch.nn.Linear(4, 4, device="meta")}
    model: Any = torch.nn.ModuleDict(layers)
    adapted: Any = get_peft_model(model, LoraConfig(r=2, target_modules=list(layers)))
    start = adapted.base_model.model["here"].lora_A["default"].weight.clone()
    monkeypatch.setattr(FSDPEngineWithLMHead, "_build_lora_module", lambda self, module: adapted)
    engine_on_meta(monkeypatch)._build_lora_module(None)
    weights = {name: adapted.base_model.model[name].lora_A["default"].weight for name in layers}
    assert {name: weight.device.type for name, weight in weights.items()} == {"here": "cpu", "sent": "meta"}
    assert not torch.equal(weights["here"], start)


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


def test_an_update_that_verl_leaves_out_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    built = engine_on_meta(monkeypatch)
    built._step, built._update = 3, 1
    for norm in (0.5, float("nan"), float("inf")):
        monkeypatch.setattr(FSDPEngineWithLMHead, "optimizer_step", lambda _, norm=norm: norm)
        if norm == 0.5:
            assert built.optimizer_step() == 0.5
            continue
        with pytest.raises(RuntimeError, match=f"step 3: update 2: the gradient's norm is {norm}"):
            built.optimizer_step()
