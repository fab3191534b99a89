"""The properties that DelTA has to have; test_delta_ablations.py has its reference."""

import dataclasses
import math

import pytest
import torch

from evals.core.random import random_projection
from rlvr.methods.aggregation import Aggregation
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights import discriminant
from rlvr.methods.token_weights.delta import DelTA, SketchedDelTA
from rlvr.methods.token_weights.token_rules import weight_metrics
from tests.unit.methods.conftest import drawn_lengths, rollout_batch


def draw_batch(seed: int, *, dimensions: int = 5) -> RolloutBatch:
    """Draw a float64 batch of 6 rollouts with lengths 0 .. 6; padding holds NaN."""
    generator = torch.Generator().manual_seed(seed)
    lengths = drawn_lengths(6, 6, generator)
    advantages = torch.randn(6, generator=generator, dtype=torch.float64)
    advantages[2:5] = torch.tensor([1.3, -0.7, 0.0], dtype=torch.float64)
    hidden = torch.randn(sum(lengths), dimensions, generator=generator, dtype=torch.float64)
    return rollout_batch(lengths, generator, advantages=advantages, hidden_states=hidden)


def weights_of(batch: RolloutBatch, component: DelTA | None = None) -> torch.Tensor:
    """Weights of the real tokens in row-major order; padding has weight 0."""
    weights, _ = (component or DelTA())(batch)
    assert torch.equal(weights[~batch.response_mask], torch.zeros_like(weights[~batch.response_mask]))
    return weights[batch.response_mask]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-5)])
@pytest.mark.parametrize("chunk_elements", [1, 10, 15, 23])
def test_chunks_change_nothing(
    chunk_elements: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1, 2, 3 and 4 tokens; the last one is shorter where they do not divide their number."""
    batch = draw_batch(1)
    assert batch.hidden_states is not None and len(batch.hidden_states) % 12
    batch = dataclasses.replace(batch, hidden_states=batch.hidden_states.to(dtype))
    whole = weights_of(batch)
    monkeypatch.setattr(discriminant, "_CHUNK_ELEMENTS", chunk_elements)
    torch.testing.assert_close(weights_of(batch), whole, rtol=tolerance, atol=0)


@pytest.mark.parametrize(("given_type", "expected"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_weights_have_the_type_of_the_log_probs_or_float32(given_type: torch.dtype, expected: torch.dtype) -> None:
    batch = draw_batch(1)
    assert DelTA()(dataclasses.replace(batch, old_log_probs=batch.old_log_probs.to(given_type)))[0].dtype == expected


def test_metrics_of_one_weight_are_that_weight_and_of_none_unknown() -> None:
    names = {"token_weight_mean", "token_weight_p05", "token_weight_p95"}
    assert weight_metrics(torch.tensor([1.5])) == dict.fromkeys(names, 1.5)
    unknown = weight_metrics(torch.empty(0))
    assert set(unknown) == names and all(math.isnan(value) for value in unknown.values())


def test_one_refinement_keeps_the_scale_of_the_first_margins() -> None:
    """The lag: gamma of step 1 is that of step 0, so K = 0 and K = 1 report the same scales, and K = 2 does not."""
    batch = draw_batch(3)
    scales = [DelTA(refinements=k)(batch)[1]["margin_scale_positive"] for k in (0, 1, 2)]
    assert scales[0] == scales[1] != scales[2]


def test_metrics_change_sides_with_the_advantages() -> None:
    batch = draw_batch(3)
    metrics, swapped = (DelTA()(dataclasses.replace(batch, advantages=sign * batch.advantages))[1] for sign in (1, -1))
    for name in ("margin_scale_{}", "token_weight_mean_{}", "{}_token_fraction"):
        positive, negative = (metrics[name.format(side)] for side in ("positive", "negative"))
        assert positive != negative
        assert positive == pytest.approx(swapped[name.format("negative")])
        assert negative == pytest.approx(swapped[name.format("positive")])


def test_equal_bounds_are_dapo() -> None:
    batch = draw_batch(2)
    weights, _ = DelTA(lambda_min=1.0, lambda_max=1.0)(batch)
    assert torch.equal(weights, batch.response_mask.double())
    advantages = batch.advantages.unsqueeze(1).repeat(1, 6)
    new = batch.old_log_probs + 0.1
    mean = Aggregation("token-mean")
    arguments = (new, batch.old_log_probs, batch.response_mask, batch.group_ids)
    weighted, _ = Clipped()(*arguments[:2], weights * advantages, *arguments[2:], batch.generator, mean)
    plain, _ = Clipped()(*arguments[:2], advantages, *arguments[2:], batch.generator, mean)
    assert torch.equal(weighted, plain)


def test_sketched_delta_is_delta_on_states_of_its_dimensions() -> None:
    batch = draw_batch(2, dimensions=8)
    assert batch.hidden_states is not None
    weights, _ = SketchedDelTA(0.5, 1.5, 2, sketch_dimensions=8)(batch)
    assert torch.equal(weights, DelTA(0.5, 1.5, 2)(batch)[0])
    for hidden in (None, batch.hidden_states[:, 1:]):
        with pytest.raises(ValueError, match=r"hidden.states"):
            SketchedDelTA(sketch_dimensions=8)(dataclasses.replace(batch, hidden_states=hidden))


def test_metrics_describe_the_sides() -> None:
    batch = draw_batch(4)
    weights, metrics = DelTA()(batch)
    tokens = int(batch.response_mask.sum())
    sign = batch.advantages.sign().unsqueeze(1).repeat(1, 6)
    for name, value in (("positive", 1), ("negative", -1)):
        side = batch.response_mask & (sign == value)
        assert metrics[f"{name}_token_fraction"] == pytest.approx(int(side.sum()) / tokens)
        assert metrics[f"token_weight_mean_{name}"] == pytest.approx(weights[side].mean().item())
    ordered = weights[batch.response_mask].sort().values
    assert metrics["token_weight_p05"] == ordered[math.ceil(0.05 * tokens) - 1]
    assert metrics["token_weight_p95"] == ordered[math.ceil(0.95 * tokens) - 1]


def test_batches_that_do_not_fit_are_refused() -> None:
    batch = draw_batch(0)
    assert batch.hidden_states is not None
    with pytest.raises(ValueError, match="needs the hidden states"):
        DelTA()(dataclasses.replace(batch, hidden_states=None))
    with pytest.raises(ValueError, match="hidden_states has shape"):
        dataclasses.replace(batch, hidden_states=batch.hidden_states[1:])
    with pytest.raises(ValueError, match="advantages has shape"):
        dataclasses.replace(batch, advantages=batch.advantages[1:])
    with pytest.raises(ValueError, match="bool tensor"):
        dataclasses.replace(batch, response_mask=batch.response_mask.long())


# A sketch's weights come near DelTA's.


def draw_batch_of_sketched(width: int) -> RolloutBatch:
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(64, generator=generator)
    noise = torch.randn(64 * 32, width, generator=generator)
    signal = advantages.sign().repeat_interleave(32)[:, None] * torch.randn(1, width, generator=generator) * 0.2
    return rollout_batch([32] * 64, generator, advantages=advantages, hidden_states=noise + signal)


def test_a_sketchs_error_falls_with_its_dimensions() -> None:
    batch = draw_batch_of_sketched(256)
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
        SketchedDelTA()(draw_batch_of_sketched(16))
