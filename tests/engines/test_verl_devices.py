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

from evals.core.files import read_json
from evals.core.training_settings import Lora
from rlvr.engines.verl.adapters import ADAPTERS
from rlvr.engines.verl.checkpoints import OPTIMIZER
from rlvr.engines.verl.gathering import MiniBatchLoss, fields_of_tokens
from rlvr.engines.verl.registered import Field
from rlvr.methods.aggregation import Normaliser
from tests.engines.second_device import batch_of_two, engine_on_meta, outputs_of, use_method

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

TERMS: dict[str, Any] = {
    "kl": {"name": "loss_term", "coefficient": 0.1, "estimator": "unbiased_k3"},
    "correction": {"name": "band", "level": "sequence", "lower": None, "upper": 3.0},
    "entropy_bonus": {"name": "fixed", "coefficient": 0.1},
}
WITH_TERMS = {f"{name}_with_terms": {"extends": name, **TERMS} for name in ("scalerl", "kl_cov")}
COUPLED = ("fipo", "dfpo_min_replace", "dfpo_advantage_orthogonal", "kl_cov", "clip_cov", "kl_cov_with_terms")


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_losses_take_log_probs_from_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from rlvr.engines.verl import engine

    current = use_method(name, monkeypatch, **WITH_TERMS.get(name, {}))
    names = ["log_probs", "entropy"] if name in WITH_TERMS else ["log_probs"]
    built, data = engine_on_meta(monkeypatch), batch_of_two()
    passes: list[bool] = []

    def stock(self: Any, data: Any, loss_function: Any, forward_only: bool) -> Any:
        passes.append(forward_only)
        return {"model_output": outputs_of(*names), "metrics": {}}

    monkeypatch.setattr(FSDPEngineWithLMHead, "forward_backward_batch", stock)
    metrics = built.forward_backward_batch(data, None)["metrics"]
    assert passes == [True, False] and torch.isfinite(torch.tensor(metrics["rlvr/loss"].values)).all()
    for gradient in (data[engine._GRADIENT + each] for each in names):
        assert gradient.device.type == "cpu", "verl moves it with the rest of the micro-batch"
        assert gradient.offsets().diff().tolist() == [3, 5]
    rate = current.run.training.learning_rate_of(0, 0)
    assert built.optimizer.param_groups == [{"lr": rate}] and metrics["rlvr/learning_rate"].values == [rate]


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
def test_what_is_saved_from_the_device(lora: Lora | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from rlvr.engines.verl import engine

    current = use_method("dapo", monkeypatch)
    run = current.run.model_copy(update={"training": current.run.training.model_copy(update={"lora": lora})})
    monkeypatch.setattr(engine, "current_run", lambda: replace(current, run=run))
    monkeypatch.setattr(FSDPEngineWithLMHead, "save_checkpoint", lambda *_: None)
    built = engine_on_meta(monkeypatch)
    built.optimizer = torch.optim.AdamW([torch.zeros(1)], betas=(0.8, 0.9), eps=1e-5)
    built.save_checkpoint(str(tmp_path))
    assert read_json(tmp_path / OPTIMIZER) == {"name": "AdamW", "betas": [0.8, 0.9], "epsilon": 1e-5}
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


@pytest.mark.parametrize("name", [*COUPLED, "dapo", "sapo", "gspo", "scalerl_with_terms"])
def test_parts_of_the_loss_are_computed_where_verl_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlvr.engines.verl import engine

    current = use_method(name, monkeypatch, **WITH_TERMS.get(name, {}))
    names = ["log_probs", "entropy"] if name in WITH_TERMS else ["log_probs"]
    built, shape = engine_on_meta(monkeypatch), (2, 5)
    normaliser = Normaliser.of(torch.ones(shape, dtype=torch.bool), torch.tensor([1, 1]))
    built._loss = MiniBatchLoss(current.method, normaliser, torch.Generator(), 0.1)
    monkeypatch.setattr(engine, "no_padding_2_padding", lambda values, _data: values)
    of_model = {each: torch.zeros(shape, device="meta", requires_grad=True) for each in names}
    fields = ("response_mask", *fields_of_tokens(current.method), *(engine._GRADIENT + each for each in names))
    padded = SimpleNamespace(to_padded_tensor=lambda _padding: torch.zeros(shape, device="meta"))
    data = {**dict.fromkeys(fields, padded), Field.GROUP: torch.tensor([1, 1], device="meta")}
    value, metrics = built._part_of_loss(of_model, data)
    slopes = torch.autograd.grad(value, list(of_model.values()))
    assert [each.device.type for each in (value, *slopes)] == ["meta"] * (1 + len(names))
    assert (metrics == {}) == (name in COUPLED)


def test_ranks_wait_as_long_for_loads_as_for_saves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
