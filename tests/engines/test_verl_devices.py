"""What the engine's overrides hand to a loss is where verl has moved the micro-batch; "meta" is the second device."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.registered import CurrentRun, nested
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

ROOT = Path(__file__).parents[2]
COUPLED = ("fipo", "dfpo_min_replace", "dfpo_advantage_orthogonal", "kl_cov", "clip_cov")


@pytest.mark.parametrize("name", [*COUPLED, "dapo", "sapo", "gspo"])
def test_a_forward_step_has_everything_on_the_device_that_verl_moves_it_to(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensordict import TensorDict
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from rlvr.engines.verl import engine

    config = read_study_file(ROOT / "config" / "verl_smoke.yaml")
    study = Study.resolve({**config, "methods": {name: {}}, "reference_method": name}, "study")
    run = f"tiny-{name}-s1"
    cluster = Cluster.parse(study.cluster(run), "cluster")
    current = CurrentRun.of(VerlRun.parse(study.resolved_run(run), "run.json"), cluster)
    monkeypatch.setattr(engine, "current_run", lambda: current)
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch.distributed as distributed
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from rlvr.engines.verl import engine

    found: list[timedelta] = []

    def stock(self: Any) -> None:
        """verl's own loads the model and sends it to the ranks."""
        backend = distributed.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        found.append(backend.options._timeout)

    monkeypatch.setattr(FSDPEngineWithLMHead, "initialize", stock)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        object.__new__(engine.MethodEngine).initialize()
    finally:
        distributed.destroy_process_group()
    assert found == [engine._LONGEST_WAIT]
