"""Every policy loss against plain loops in float64 written from the equations: values, gradients, metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.aggregation import Aggregation, Mode, Normaliser
from rlvr.methods.losses.sequence_ratios import GSPO
from rlvr.methods.losses.token_ratios import SAPO, Clipped
from tests.unit.methods.loss_references import aggregation_of

MODES: list[Mode] = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
SPREADS = [0.0, 0.0003, 0.3, 3.0, 40.0]


def clipped_oracle(loss: Clipped, ratio: float, advantage: float) -> tuple[float, float, str]:
    """Loss, derivative with respect to the ratio, and the side on which the gradient is stopped."""
    lower, upper = 1 - loss.epsilon_low, 1 + loss.epsilon_high
    if advantage > 0 and ratio > upper:
        return -advantage * upper, 0.0, "upper"
    if advantage < 0 and ratio < lower:
        return -advantage * lower, 0.0, "lower"
    if advantage < 0 and loss.dual_clip is not None and ratio > loss.dual_clip:
        return -advantage * loss.dual_clip, 0.0, "upper"
    return -advantage * ratio, -advantage, ""


def sapo_oracle(loss: SAPO, ratio: float, advantage: float) -> tuple[float, float, str]:
    """Loss, derivative with respect to the ratio; nothing is ever stopped."""
    tau = loss.tau_positive if advantage > 0 else loss.tau_negative
    exponent = -tau * (ratio - 1)
    p = 1 / (1 + math.exp(exponent)) if exponent < 700 else 0.0
    return -advantage * 4 / tau * p, -advantage * 4 * p * (1 - p), ""


def token_share(mode: str, lengths: list[int], rollout: int) -> float:
    """The factor of one token's loss in the loss of the mini-batch."""
    sequences = sum(length > 0 for length in lengths)
    shares = {
        "token-mean": 1 / sum(lengths),
        "seq-mean-token-mean": 1 / (sequences * max(lengths[rollout], 1)),
        "seq-mean-token-sum": 1 / sequences,
    }
    return shares[mode]


def oracle(loss: Any, mode: str, inputs: Any) -> tuple[float, list[list[float]], dict[str, float]]:
    """Loss of the mini-batch, its gradient [B, T] with respect to log_probs, and the metrics' token means."""
    rollouts, longest = inputs.response_mask.shape
    lengths = [int(row.sum()) for row in inputs.response_mask]
    total, gradient = 0.0, [[0.0] * longest for _ in range(rollouts)]
    metrics = {"clip_fraction_lower": 0.0, "clip_fraction_upper": 0.0, "approximate_kl": 0.0}
    for i in range(rollouts):
        share = token_share(mode, lengths, i)
        deltas = [float(inputs.log_probs[i, t] - inputs.old_log_probs[i, t]) for t in range(lengths[i])]
        for t, delta in enumerate(deltas):
            advantage = float(inputs.advantages[i, t])
            limited = min(max(delta, -20.0), 20.0)
            if isinstance(loss, GSPO):
                mean = sum(deltas) / lengths[i]
                ratio = math.exp(min(mean, 10.0))
                unlimited = mean <= 10.0
                value, slope, stopped = clipped_oracle(
                    Clipped(epsilon_low=loss.epsilon_low, epsilon_high=loss.epsilon_high, dual_clip=None),
                    ratio,
                    advantage,
                )
            else:
                ratio = math.exp(limited)
                unlimited = delta == limited
                of_token = clipped_oracle if isinstance(loss, Clipped) else sapo_oracle
                value, slope, stopped = of_token(loss, ratio, advantage)
            total += share * value
            if unlimited:
                reach = range(lengths[i]) if isinstance(loss, GSPO) else [t]
                for s in reach:
                    gradient[i][s] += share * slope * ratio / len(reach)
            metrics["approximate_kl"] += (math.expm1(limited) - limited) / sum(lengths)
            for side in ("lower", "upper"):
                metrics[f"clip_fraction_{side}"] += (stopped == side) / sum(lengths)
    metrics["clip_fraction"] = metrics["clip_fraction_lower"] + metrics["clip_fraction_upper"]
    return total, gradient, metrics


def run(loss: Any, inputs: Any, mode: Mode | None = None) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of the mini-batch, gradient with respect to log_probs, and the metrics' token means."""
    log_probs = inputs.log_probs.clone().requires_grad_()
    mask, aggregation = inputs.response_mask, aggregation_of(loss, mode)
    arguments = (inputs.old_log_probs, inputs.advantages, mask, inputs.group_ids, torch.Generator())
    token_loss, metrics = loss(log_probs, *arguments, aggregation)
    normaliser = Normaliser.of(mask)
    value = aggregation(token_loss, mask, normaliser)
    (gradient,) = torch.autograd.grad(value, log_probs)
    means = {k: Aggregation("token-mean")(v, mask, normaliser) for k, v in metrics.items()}
    return value.detach(), gradient, means


LOSSES = [
    *[(Clipped(), mode) for mode in MODES],
    (Clipped(epsilon_high=0.2, dual_clip=None), MODES[0]),
    *[(SAPO(), mode) for mode in MODES],
    *[(GSPO(), mode) for mode in MODES],
]


@pytest.mark.parametrize(("loss", "mode"), LOSSES, ids=str)
@pytest.mark.parametrize("spread", SPREADS)
def test_values_gradients_and_metrics_equal_the_oracle(
    loss: Any, mode: Mode, spread: float, draw_loss_inputs: Callable[..., Any]
) -> None:
    for seed in range(3):
        inputs = draw_loss_inputs(seed, spread)
        value, gradient, metrics = run(loss, inputs, mode)
        expected_value, expected_gradient, expected_metrics = oracle(loss, mode, inputs)
        torch.testing.assert_close(value.item(), expected_value, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradient, torch.tensor(expected_gradient, dtype=torch.float64), rtol=1e-9, atol=1e-9)
        for name, mean in metrics.items():
            torch.testing.assert_close(mean.item(), expected_metrics[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss", [Clipped(), SAPO(), GSPO(epsilon_low=0.1, epsilon_high=0.1)], ids=repr)
def test_low_precision_inputs_lose_nothing_beyond_float32(
    loss: Any, dtype: torch.dtype, draw_loss_inputs: Callable[..., Any]
) -> None:
    """bfloat16 log-probs are converted first, so the error is float32's; only the gradient is rounded on return."""
    for seed in range(5):
        inputs = draw_loss_inputs(seed, 1.5).cast(dtype)
        value, gradient, _ = run(loss, inputs)
        expected_value, expected_gradient, _ = run(loss, inputs.cast(torch.float64))
        assert gradient.dtype == dtype and value.dtype == torch.float32
        torch.testing.assert_close(value.double(), expected_value, rtol=3e-6, atol=3e-6)
        rounding = 2.0**-8 if dtype == torch.bfloat16 else 3e-6
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=rounding, atol=3e-6)


@pytest.mark.parametrize(("loss", "mode"), LOSSES, ids=str)
def test_gradient_at_ratio_one_is_that_of_reinforce(
    loss: Any, mode: Mode, draw_loss_inputs: Callable[..., Any]
) -> None:
    inputs = draw_loss_inputs(7, 0.0)
    _, gradient, _ = run(loss, inputs, mode)
    log_probs = inputs.log_probs.clone().requires_grad_()
    reinforce = -(inputs.advantages * log_probs).masked_fill(~inputs.response_mask, 0.0)
    clean = reinforce.where(inputs.response_mask, 0.0)
    value = aggregation_of(loss, mode)(clean, inputs.response_mask, Normaliser.of(inputs.response_mask))
    (expected,) = torch.autograd.grad(value, log_probs)
    torch.testing.assert_close(gradient, expected.masked_fill(~inputs.response_mask, 0.0), rtol=0, atol=1e-12)


@given(delta=st.floats(-60, 60), advantage=st.floats(-5, 5).filter(lambda a: abs(a) > 1e-3), scale=st.floats(0.01, 100))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_clip_depends_on_the_sign_of_the_advantage_alone(delta: float, advantage: float, scale: float) -> None:
    """A positive token weight scales the loss; the dual clip acts on negative advantages only and bounds their loss."""
    mask, groups = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    new, old = torch.tensor([[delta]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    advantages, aggregation = torch.tensor([[advantage]], dtype=torch.float64), Aggregation("token-mean")
    dual, metrics = Clipped()(new, old, advantages, mask, groups, torch.Generator(), aggregation)
    scaled, scaled_metrics = Clipped()(new, old, advantages * scale, mask, groups, torch.Generator(), aggregation)
    plain, _ = Clipped(dual_clip=None)(new, old, advantages, mask, groups, torch.Generator(), aggregation)
    torch.testing.assert_close(scaled, dual * scale, rtol=1e-12, atol=0)
    assert torch.equal(metrics["clip_fraction"], scaled_metrics["clip_fraction"])
    if advantage > 0:
        assert torch.equal(dual, plain)
    else:
        assert dual.item() == pytest.approx(min(plain.item(), -10 * advantage), rel=1e-12)


def test_a_batch_of_empty_responses_has_loss_and_gradient_zero() -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    for loss in (Clipped(), SAPO(), GSPO()):
        log_probs = torch.full((2, 3), -torch.inf, requires_grad=True)
        garbage = torch.full((2, 3), torch.nan)
        groups, aggregation = torch.zeros(2, dtype=torch.int64), aggregation_of(loss)
        token_loss, _ = loss(log_probs, garbage, garbage, mask, groups, torch.Generator(), aggregation)
        value = aggregation(token_loss, mask, Normaliser.of(mask))
        (gradient,) = torch.autograd.grad(value, log_probs)
        assert value.item() == 0.0
        assert torch.equal(gradient, torch.zeros(2, 3))
