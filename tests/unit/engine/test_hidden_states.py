"""Hidden states kept in memory or spilled are the same; a sketch's weights come near DelTA's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.core.random import random_projection
from rlvr.engines.local.policy import HiddenStateStore
from rlvr.methods import rollout_batch
from rlvr.methods.rollout_batch import RecomputedRows, RolloutBatch, in_parts
from rlvr.methods.token_weights.delta import DelTA, SketchedDelTA


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spilled_rows_are_the_rows_and_leave_no_file(dtype: torch.dtype, tmp_path: Path) -> None:
    rows = torch.randn(100, 16).to(dtype)
    kept = []
    for budget in (100 * 16 * dtype.itemsize, 100 * 16 * dtype.itemsize - 1):
        store = HiddenStateStore(100, 16, dtype, budget, tmp_path)
        for part in rows.split(33):
            store.append(part)
        kept.append(store)
        assert torch.equal(store.rows(), rows) and store.rows().dtype == dtype
    assert [store.spilled for store in kept] == [False, True]
    assert list(tmp_path.iterdir()) == []


def test_spilled_rows_are_read_in_parts_on_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_batch, "_ROWS_AT_ONCE", 100)
    whole = draw_batch(16)
    parts = dataclasses.replace(whole, hidden_states=in_parts(whole.hidden_states, torch.device("cpu")))
    torch.testing.assert_close(DelTA()(parts)[0], DelTA()(whole)[0])
    found = []
    for budget in (1 << 20, 0):
        store = HiddenStateStore(10, 4, torch.float32, budget, tmp_path)
        store.append(torch.zeros(10, 4))
        assert store.on(torch.device("cpu")) is store.rows()
        found.append(store.on(torch.device("meta")))
    assert [isinstance(each, RecomputedRows) for each in found] == [False, True]
    assert all(each.device.type == "meta" and tuple(each.shape) == (10, 4) for each in found)


def test_missing_rows_are_noticed(tmp_path: Path) -> None:
    store = HiddenStateStore(10, 4, torch.float32, 1 << 20, tmp_path)
    store.append(torch.zeros(7, 4))
    with pytest.raises(ValueError, match="7 of 10"):
        store.rows()


def draw_batch(width: int, hidden_states: Any = None) -> RolloutBatch:
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(64, generator=generator)
    noise = torch.randn(64 * 32, width, generator=generator)
    signal = advantages.sign().repeat_interleave(32)[:, None] * torch.randn(1, width, generator=generator) * 0.2
    return RolloutBatch(
        advantages=advantages,
        old_log_probs=-torch.rand(64, 32, generator=generator) * 3,
        entropies=torch.zeros(64, 32),
        response_mask=torch.ones(64, 32, dtype=torch.bool),
        mini_batch_ids=torch.zeros(64, dtype=torch.int64),
        group_ids=torch.arange(64) // 8,
        token_ids=torch.zeros(64, 32, dtype=torch.int64),
        temperature=1.0,
        generator=generator,
        hidden_states=noise + signal if hidden_states is None else hidden_states,
    )


def test_a_sketchs_error_falls_with_its_dimensions() -> None:
    batch = draw_batch(256)
    exact, _ = DelTA()(batch)
    errors = []
    for dimensions in (8, 64, 512):
        matrix = random_projection(256, dimensions, torch.Generator().manual_seed(1))
        sketched = dataclasses.replace(batch, hidden_states=batch.hidden_states @ matrix)  # type: ignore[operator]
        weights, _ = SketchedDelTA(sketch_dimensions=dimensions)(sketched)
        assert abs(float(weights.mean()) - 1) < 1e-5
        errors.append(float((weights - exact).square().mean().sqrt()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05


def test_unprojected_hidden_states_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hidden_states .*16.*64"):
        SketchedDelTA()(draw_batch(16))
