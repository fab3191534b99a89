"""The learning rate that verl's engine gives the rollout steps of a run, through an interruption."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evals.core.run_spec import Cluster, VerlRun
from rlvr.study.study import Study

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

ROOT = Path(__file__).parents[2]
WARMUP_STEPS = 2


def scheduled() -> tuple[torch.optim.Optimizer, Any]:
    """An optimizer and the scheduler that the engine gives it, with the settings that verl would hand the engine."""
    from rlvr.engines.verl.engine import MethodEngine

    engine = object.__new__(MethodEngine)  # without a model
    engine.rank = 0
    engine.optimizer_config = SimpleNamespace(
        total_training_steps=8,
        lr_warmup_steps=WARMUP_STEPS,
        lr_warmup_steps_ratio=0.0,
        lr_scheduler_type="constant",
        min_lr_ratio=0.0,
        num_cycles=0.5,
        zero_indexed_step=True,
    )
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.0012)
    return optimizer, engine._build_lr_scheduler(optimizer)


def rates_of(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
    """The rates of so many steps, after each of which verl moves the scheduler once."""
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("decay", "table"),
    [
        (None, [0.0, 0.0006, *[0.0012] * 6]),
        ((4, 8), [0.0, 0.0006, 0.0012, 0.0012, 0.0012, 0.0009, 0.0006, 0.0003]),
        ((2, 12), [0.0, 0.0006, 0.0012, 0.00108, 0.00096, 0.00084, 0.00072, 0.0006]),
    ],
    ids=["constant", "half", "part of a longer one"],
)
def test_the_rate_of_every_step(
    decay: tuple[int, int] | None, table: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlvr.engines.verl import engine
    from rlvr.engines.verl.registered import CurrentRun

    study = Study.read(ROOT / "config" / "verl_smoke.yaml")
    content = study.resolved_run("tiny-dapo-s1")
    updates = content["training"]["updates_per_step"]
    content["training"] |= {"steps": 8, "learning_rate": 0.0012, "warmup_updates": WARMUP_STEPS * updates}
    if decay is not None:
        content["training"] |= {"learning_rate_decay_from": decay[0] / decay[1], "planned_steps": decay[1]}
    run, cluster = VerlRun.parse(content, "run.json"), Cluster.parse(study.cluster("tiny-dapo-s1"), "cluster.json")
    monkeypatch.setattr(engine, "current_run", lambda: CurrentRun.of(run, cluster))
    optimizer, scheduler = scheduled()
    assert rates_of(optimizer, scheduler, 6) == pytest.approx(table[:6], rel=1e-12)
    continued, its_scheduler = scheduled()  # as verl continues: optimizer and scheduler from the saved state
    continued.load_state_dict(optimizer.state_dict())
    its_scheduler.load_state_dict(scheduler.state_dict())
    assert rates_of(continued, its_scheduler, 2) == pytest.approx(table[6:], rel=1e-12)
