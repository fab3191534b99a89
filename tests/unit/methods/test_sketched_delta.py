"""A sketch's weights come near DelTA's."""

import dataclasses

import pytest
import torch

from evals.core.random import random_projection
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.delta import DelTA, SketchedDelTA
from tests.unit.methods.conftest import rollout_batch


def draw_batch(width: int) -> RolloutBatch:
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(64, generator=generator)
    noise = torch.randn(64 * 32, width, generator=generator)
    signal = advantages.sign().repeat_interleave(32)[:, None] * torch.randn(1, width, generator=generator) * 0.2
    return rollout_batch([32] * 64, generator, advantages=advantages, hidden_states=noise + signal)


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
