"""The losses with statistics or stop-gradients against float64 loops written from the equations: values and gradients.

A reference returns, for every real token, its loss and the derivative of the mini-batch's summed token losses with
respect to its log-probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.methods.aggregation import Normaliser, aggregate
from rlvr.methods.losses.cispo import CISPO
from rlvr.methods.losses.clip_cov import ClipCov
from rlvr.methods.losses.clipped import Clipped
from rlvr.methods.losses.dfpo import DFPO
from rlvr.methods.losses.fipo import FIPO
from rlvr.methods.losses.gmpo import GMPO
from rlvr.methods.losses.grpo_fix import GRPOFix
from rlvr.methods.losses.gspo import GSPO
from rlvr.methods.losses.gspo_token import GSPOToken
from rlvr.methods.losses.kl_cov import KLCov
from rlvr.methods.losses.reinforce import Reinforce

Token = tuple[int, int]
Reference = dict[Token, tuple[float, float]]
SPREADS = [0.0, 0.0003, 0.3, 3.0, 50.0]


class Batch:
    """Plain numbers of a mini-batch."""

    def __init__(self, inputs: Any) -> None:
        self.lengths = [int(row.sum()) for row in inputs.response_mask]
        self.new = inputs.log_probs.tolist()
        self.old = inputs.old_log_probs.tolist()
        self.advantage = inputs.advantages.tolist()
        self.group = inputs.group_ids.tolist()

    @property
    def tokens(self) -> list[Token]:
        """All real tokens."""
        return [(i, t) for i, length in enumerate(self.lengths) for t in range(length)]

    def delta(self, i: int, t: int) -> float:
        """The log-ratio."""
        return float(self.new[i][t] - self.old[i][t])

    def limited(self, i: int, t: int) -> float:
        """The log-ratio within +-20."""
        return min(max(self.delta(i, t), -20.0), 20.0)

    def mean_delta(self, i: int) -> float:
        """Mean log-ratio of a response."""
        return math.fsum(self.delta(i, t) for t in range(self.lengths[i])) / self.lengths[i]


def surrogate(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> tuple[float, float]:
    """PPO's clipped loss and its derivative with respect to the ratio."""
    if advantage > 0 and ratio > 1 + high:
        return -advantage * (1 + high), 0.0
    if advantage < 0 and ratio < 1 - low:
        return -advantage * (1 - low), 0.0
    if advantage < 0 and dual is not None and ratio > dual:
        return -advantage * dual, 0.0
    return -advantage * ratio, -advantage


def cispo(loss: CISPO, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        weight = min(max(math.exp(batch.limited(i, t)), 1 - loss.epsilon_low), 1 + loss.epsilon_high)
        coefficient = -weight * batch.advantage[i][t]
        result[i, t] = (coefficient * batch.new[i][t], coefficient)
    return result


def reinforce(loss: Reinforce, batch: Batch) -> Reference:
    return {(i, t): (-batch.advantage[i][t] * batch.new[i][t], -batch.advantage[i][t]) for i, t in batch.tokens}


def grpo_fix(loss: GRPOFix, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        ratio = math.exp(batch.limited(i, t))
        inside = 1 - loss.epsilon_low <= ratio <= 1 + loss.epsilon_high
        kept = min(max(ratio, 1 - loss.epsilon_low), 1 + loss.epsilon_high)
        result[i, t] = (-batch.advantage[i][t] * kept, -batch.advantage[i][t] * ratio if inside else 0.0)
    return result


def gspo_token(loss: GSPOToken, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        mean = batch.mean_delta(i)
        ratio = math.exp(min(mean, 10.0))
        value, slope = surrogate(ratio, batch.advantage[i][t], loss.epsilon_low, loss.epsilon_high, None)
        result[i, t] = (value, slope * ratio if mean <= 10 else 0.0)
    return result


def gmpo(loss: GMPO, batch: Batch) -> Reference:
    result = {}
    for i, length in enumerate(batch.lengths):
        logs, free = [], []
        for t in range(length):
            value, advantage = batch.limited(i, t), batch.advantage[i][t]
            stopped = (advantage > 0 and value > loss.epsilon_high) or (advantage < 0 and value < -loss.epsilon_low)
            bound = loss.epsilon_high if advantage > 0 else -loss.epsilon_low
            logs.append(bound if stopped else value)
            free.append(not stopped and value == batch.delta(i, t))
        for t in range(length):
            ratio = math.exp(math.fsum(logs) / length)
            response_advantage = math.fsum(batch.advantage[i][:length]) / length
            # Every one of the response's tokens carries the loss, and each of them moves with every free token.
            result[i, t] = (-response_advantage * ratio, -response_advantage * ratio if free[t] else 0.0)
    return result


def future_weight(loss: FIPO, batch: Batch, i: int, t: int) -> float:
    """f_t by the sum over the future, not by the recursion."""
    drift = 0.0
    for k in range(t, batch.lengths[i]):
        if math.exp(batch.limited(i, k)) <= loss.dual_clip:
            drift += 2.0 ** (-(k - t) / loss.half_life) * batch.limited(i, k)
    highest = 10.0 if loss.future_high is None else 1 + loss.future_high
    weight = min(max(math.exp(min(drift, 700.0)), 1 - loss.future_low), highest)
    if batch.advantage[i][t] < 0 and math.exp(batch.limited(i, t)) > loss.safety_ratio:
        return min(max(weight, 0.8), 1.0) if loss.safety_rule == "limit" else 1.0
    return weight


def fipo(loss: FIPO, batch: Batch) -> Reference:
    def bounded(i: int) -> int:
        return sum(
            batch.advantage[i][t] < 0 and math.exp(batch.limited(i, t)) > loss.dual_clip
            for t in range(batch.lengths[i])
        )

    kept = [i for i, length in enumerate(batch.lengths) if length and bounded(i) <= 1]
    if loss.aggregation == "token-mean":
        correction = sum(batch.lengths) / max(1, sum(batch.lengths[i] for i in kept))
    else:
        correction = sum(length > 0 for length in batch.lengths) / max(1, len(kept))
    result = {}
    for i, t in batch.tokens:
        ratio = math.exp(batch.limited(i, t))
        signal = future_weight(loss, batch, i, t) * batch.advantage[i][t]
        value, slope = surrogate(ratio, signal, loss.epsilon_low, loss.epsilon_high, loss.dual_clip)
        moves = batch.limited(i, t) == batch.delta(i, t)
        result[i, t] = (value * correction, slope * ratio * correction * moves) if i in kept else (0.0, 0.0)
    return result


def dfpo(loss: DFPO, batch: Batch) -> Reference:
    present = [i for i, length in enumerate(batch.lengths) if length]
    weights, advantage = {}, {}
    for i in present:
        total = math.fsum(batch.delta(i, t) for t in range(batch.lengths[i]))
        total = total / batch.lengths[i] if loss.weight == "sequence_mean" else total
        weights[i] = math.exp(min(max(total, -20.0), 20.0))
        advantage[i] = math.fsum(batch.advantage[i][: batch.lengths[i]]) / batch.lengths[i]
    result = {}
    for i in present:
        members = [j for j in present if batch.group[j] == batch.group[i]]
        if loss.transform == "min_replace":
            weight = min(weights[j] for j in members)
        else:
            square = math.fsum(advantage[j] ** 2 for j in members)
            along = math.fsum(advantage[j] * weights[j] for j in members) / square if square else 0.0
            weight = weights[i] - along * advantage[i]
        for t in range(batch.lengths[i]):
            result[i, t] = (-weight * batch.advantage[i][t],) * 2
    return result


def covariances(batch: Batch) -> dict[Token, float]:
    tokens = batch.tokens
    mean_advantage = math.fsum(batch.advantage[i][t] for i, t in tokens) / len(tokens)
    mean_log_prob = math.fsum(batch.new[i][t] for i, t in tokens) / len(tokens)
    return {(i, t): (batch.advantage[i][t] - mean_advantage) * (batch.new[i][t] - mean_log_prob) for i, t in tokens}


def kl_cov(loss: KLCov, batch: Batch) -> Reference:
    ranked = sorted(covariances(batch).items(), key=lambda item: -item[1])
    penalised = {token for token, _ in ranked[: max(1, int(loss.top_fraction * len(ranked)))]}
    result = {}
    for i, t in batch.tokens:
        delta, ratio = batch.delta(i, t), math.exp(batch.limited(i, t))
        value = -batch.advantage[i][t] * ratio
        slope = value if batch.limited(i, t) == delta else 0.0
        if (i, t) in penalised:
            value += loss.kl_coefficient * abs(delta)
            slope += loss.kl_coefficient * math.copysign(1.0, delta) * (delta != 0)
        result[i, t] = (value, slope)
    return result


def clip_cov_with_all_drawn(loss: ClipCov, batch: Batch) -> Reference:
    """With clip_fraction 1 every eligible token is drawn, so that nothing is random."""
    covariance = covariances(batch)
    result = {}
    for i, t in batch.tokens:
        ratio, advantage = math.exp(batch.limited(i, t)), batch.advantage[i][t]
        value, slope = surrogate(ratio, advantage, loss.epsilon_low, loss.epsilon_high, None)
        clipped = (advantage > 0 and ratio > 1 + loss.epsilon_high) or (advantage < 0 and ratio < 1 - loss.epsilon_low)
        drawn = not clipped and loss.covariance_low < covariance[i, t] < loss.covariance_high
        moves = batch.limited(i, t) == batch.delta(i, t)
        result[i, t] = (0.0, 0.0) if drawn else (value, slope * ratio * moves)
    return result


CASES: list[tuple[Any, Callable[..., Reference]]] = [
    (CISPO(), cispo),
    (CISPO(epsilon_low=0.2, aggregation="seq-mean-token-mean"), cispo),
    (Reinforce(), reinforce),
    (GRPOFix(), grpo_fix),
    (GSPOToken(), gspo_token),
    (GSPOToken(epsilon_low=0.2, epsilon_high=0.3, aggregation="token-mean"), gspo_token),
    (GMPO(), gmpo),
    (FIPO(), fipo),
    (FIPO(half_life=2.0, future_low=0.2, safety_ratio=3.0, dual_clip=3.0), fipo),
    (FIPO(future_high=None, safety_rule="reset", safety_ratio=1.5, aggregation="seq-mean-token-mean"), fipo),
    (DFPO(), dfpo),
    (DFPO(weight="product", aggregation="seq-mean-token-mean"), dfpo),
    (DFPO(transform="advantage_orthogonal"), dfpo),
    (DFPO(transform="advantage_orthogonal", weight="product"), dfpo),
    (KLCov(), kl_cov),
    (KLCov(top_fraction=0.3, kl_coefficient=0.1), kl_cov),
    (ClipCov(clip_fraction=1.0, covariance_low=0.0), clip_cov_with_all_drawn),
]


def draw_cases(draw_loss_inputs: Callable[..., Any], spread: float) -> list[Any]:
    """Mixed advantages, one per response as of a group; all of one sign; none."""
    cases = []
    for seed in range(3):
        inputs = draw_loss_inputs(seed, spread)
        cases.append(inputs)
        cases.append(replace(inputs, advantages=inputs.advantages.abs()))
        cases.append(replace(inputs, advantages=-inputs.advantages.abs()))
        cases.append(replace(inputs, advantages=inputs.advantages * 0))
    return cases


def run(loss: Any, inputs: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token losses [B, T], loss of the mini-batch, its gradient [B, T]."""
    log_probs = inputs.log_probs.clone().requires_grad_()
    arguments = (inputs.old_log_probs, inputs.advantages, inputs.response_mask, inputs.group_ids)
    token_loss, _ = loss(log_probs, *arguments, torch.Generator().manual_seed(0))
    value = aggregate(token_loss, inputs.response_mask, loss.aggregation, Normaliser.of(inputs.response_mask))
    (gradient,) = torch.autograd.grad(value, log_probs)
    return token_loss.detach(), value.detach(), gradient


@pytest.mark.parametrize(("loss", "reference"), CASES, ids=lambda case: repr(case) if not callable(case) else "")
@pytest.mark.parametrize("spread", SPREADS)
def test_losses_equal_their_references(
    loss: Any, reference: Callable[..., Reference], spread: float, draw_loss_inputs: Callable[..., Any]
) -> None:
    for inputs in draw_cases(draw_loss_inputs, spread):
        token_loss, value, gradient = run(loss, inputs)
        batch = Batch(inputs)
        if isinstance(loss, KLCov) and len(set(covariances(batch).values())) < len(batch.tokens):
            continue  # which of equal covariances is penalised is nowhere said
        expected = reference(loss, batch)
        sequences = sum(length > 0 for length in batch.lengths)
        total, slopes = 0.0, torch.zeros_like(gradient)
        for (i, t), (one, slope) in expected.items():
            token_mean = loss.aggregation == "token-mean"
            share = 1 / sum(batch.lengths) if token_mean else 1 / (sequences * batch.lengths[i])
            total += share * one
            slopes[i, t] = share * slope
            torch.testing.assert_close(token_loss[i, t].item(), one, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(value.item(), total, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-9)
        assert not token_loss[~inputs.response_mask].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss", [case[0] for case in CASES], ids=repr)
def test_low_precision_inputs_lose_nothing_beyond_float32(
    loss: Any, dtype: torch.dtype, draw_loss_inputs: Callable[..., Any]
) -> None:
    for seed in range(5):
        inputs = draw_loss_inputs(seed, 0.3).cast(dtype)
        _, value, gradient = run(loss, inputs)
        _, expected_value, expected_gradient = run(loss, inputs.cast(torch.float64))
        assert gradient.dtype == dtype and value.dtype == torch.float32
        torch.testing.assert_close(value.double(), expected_value, rtol=1e-5, atol=1e-5)
        rounding = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize(
    "loss", [CISPO(), FIPO(), GMPO(), GSPO(), GSPOToken(), GRPOFix(), Reinforce(), DFPO(), KLCov()], ids=repr
)
def test_gradient_at_ratio_one_is_that_of_reinforce(loss: Any, draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(7, 0.0)
    gradient = run(loss, inputs)[2]
    expected = run(Reinforce(aggregation=loss.aggregation), inputs)[2]
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_fipo_on_the_first_update_is_dapo(draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(3, 0.0)
    for fipo_part, dapo_part in zip(run(FIPO(), inputs), run(Clipped(), inputs), strict=True):
        assert torch.equal(fipo_part, dapo_part)


def test_gspo_token_has_the_gradient_of_gspo_where_a_response_has_one_advantage(
    draw_loss_inputs: Callable[..., Any],
) -> None:
    settings: dict[str, Any] = {"epsilon_low": 0.1, "epsilon_high": 0.2}
    for seed in range(5):
        inputs = draw_loss_inputs(seed, 0.3)
        torch.testing.assert_close(
            run(GSPOToken(**settings), inputs)[2], run(GSPO(**settings), inputs)[2], rtol=1e-12, atol=1e-14
        )


def test_dfpo_weighted_advantages_of_a_group_sum_to_zero(draw_loss_inputs: Callable[..., Any]) -> None:
    """Of responses with tokens, whose advantages sum to zero as a group's do."""
    inputs = draw_loss_inputs(1, 0.8)
    mask = torch.ones_like(inputs.response_mask)
    advantages = torch.tensor([1.0, -2.0, 0.5, 0.5, 3.0, -1.0, -1.0, -1.0], dtype=torch.float64)[:, None].repeat(1, 7)
    generator = torch.Generator().manual_seed(5)
    old = -torch.rand(8, 7, generator=generator, dtype=torch.float64)
    new = old + 0.5 * torch.randn(8, 7, generator=generator, dtype=torch.float64)
    for transform in ("min_replace", "advantage_orthogonal"):
        token_loss, metrics = DFPO(transform=transform)(new, old, advantages, mask, inputs.group_ids, generator)
        weights = metrics["sequence_weight"][:, 0]
        for group in (0, 1):
            members = inputs.group_ids == group
            assert abs(float(token_loss[members, 0].sum())) < 1e-12
            if transform == "min_replace":
                assert weights[members].unique().numel() == 1


def shared_token_gradient(loss: Any) -> float:
    """Gradient on the logit behind a first token that a right and a wrong response of one group share."""
    logit = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    suffixes = torch.tensor([[-0.4, -0.9], [-1.2, -0.3]], dtype=torch.float64)
    shared = torch.nn.functional.logsigmoid(logit)
    log_probs = torch.cat([shared.expand(2, 1), suffixes], dim=1)
    old = torch.tensor([[-0.6, -0.5, -0.8], [-0.6, -1.1, -0.5]], dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(1, 3)
    mask = torch.ones(2, 3, dtype=torch.bool)
    groups = torch.zeros(2, dtype=torch.int64)
    token_loss, _ = loss(log_probs, old, advantages, mask, groups, torch.Generator())
    (gradient,) = torch.autograd.grad(aggregate(token_loss, mask, loss.aggregation, Normaliser.of(mask)), logit)
    return float(gradient)


def test_a_shared_prefix_token_cancels_under_dfpo_and_not_under_gspo() -> None:
    assert abs(shared_token_gradient(DFPO())) < 1e-15
    assert abs(shared_token_gradient(DFPO(transform="advantage_orthogonal"))) < 1e-15
    assert abs(shared_token_gradient(GSPO(epsilon_low=0.9, epsilon_high=0.9))) > 1e-3


@pytest.mark.parametrize("loss", [DFPO(), DFPO(transform="advantage_orthogonal")], ids=repr)
def test_groups_in_separate_micro_batches_add_up(loss: Any, draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(4, 0.5)
    whole = run(loss, inputs)[1]
    normaliser = Normaliser.of(inputs.response_mask)
    parts = []
    for group in (0, 1):
        rows = inputs.group_ids == group
        token_loss, _ = loss(
            inputs.log_probs[rows],
            inputs.old_log_probs[rows],
            inputs.advantages[rows],
            inputs.response_mask[rows],
            inputs.group_ids[rows],
            torch.Generator(),
        )
        parts.append(aggregate(token_loss, inputs.response_mask[rows], loss.aggregation, normaliser))
    torch.testing.assert_close(torch.stack(parts).sum(), whole, rtol=1e-12, atol=1e-14)


def test_clip_cov_draws_the_asked_fraction_at_random_and_repeatably() -> None:
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(10, 100, generator=generator, dtype=torch.float64)
    advantages = torch.randn(10, 1, generator=generator, dtype=torch.float64).repeat(1, 100)
    mask, groups = torch.ones(10, 100, dtype=torch.bool), torch.zeros(10, dtype=torch.int64)
    loss = ClipCov(clip_fraction=0.01, covariance_low=0.0, covariance_high=10.0)
    drawn = [
        loss(old, old, advantages, mask, groups, torch.Generator().manual_seed(seed))[1]["covariance_clipped_fraction"]
        for seed in (1, 1, 2)
    ]
    assert [int(tokens.sum()) for tokens in drawn] == [10, 10, 10]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("loss", [case[0] for case in CASES], ids=repr)
def test_a_batch_of_empty_responses_has_loss_and_gradient_zero(loss: Any) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    log_probs = torch.full((2, 3), -torch.inf, requires_grad=True)
    garbage = torch.full((2, 3), torch.nan)
    token_loss, _ = loss(log_probs, garbage, garbage, mask, torch.zeros(2, dtype=torch.int64), torch.Generator())
    value = aggregate(token_loss, mask, loss.aggregation, Normaliser.of(mask))
    (gradient,) = torch.autograd.grad(value, log_probs)
    assert value.item() == 0.0 and torch.equal(gradient, torch.zeros(2, 3))
