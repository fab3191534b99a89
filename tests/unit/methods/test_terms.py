"""Corrections of the sampler against loops in float64, with any loss, and what they may not depend on."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.methods.advantages import GRPO
from rlvr.methods.aggregation import Aggregation, Normaliser
from rlvr.methods.assignments import RandomSplit
from rlvr.methods.loss_terms import Band, Bypass, Fixed, LossTerm, Mask, OffPolicyMask, RewardTerm, Target, Truncated
from rlvr.methods.losses.base import Tokens
from rlvr.methods.losses.sequence_ratios import GSPO
from rlvr.methods.losses.token_ratios import SAPO, Clipped
from rlvr.methods.losses.trust_regions import DPPOTV, DRO, IPO, VESPO
from rlvr.methods.method import Method
from rlvr_conform.expected import divergence
from tests.unit.methods.conftest import LossInputs

CORRECTIONS: list[Any] = [
    Truncated(cap=1.3),
    Truncated(level="sequence", cap=1.5),
    Truncated(level="geometric", cap=1.01),
    Band(lower=0.7, upper=1.4),
    Band(level="sequence", lower=None, upper=1.5),
    Mask(lower=0.8, upper=1.2),
    Mask(level="sequence", lower=0.5, upper=2.0),
    Mask(level="geometric", lower=0.95, upper=1.05),
    OffPolicyMask(delta=0.05),
]
LOSSES: list[Any] = [Clipped(), SAPO(), GSPO(), DPPOTV(), IPO(), DRO(), VESPO()]


def drawn(draw_loss_inputs: Callable[..., Any], seed: int, spread: float = 0.3) -> tuple[Any, torch.Tensor]:
    """Loss inputs, and the sampler's log-probabilities [B, T], garbage at padding."""
    inputs = draw_loss_inputs(seed, spread)
    noise = spread * torch.randn(inputs.old_log_probs.shape, generator=torch.Generator().manual_seed(seed)).double()
    sampler = (inputs.old_log_probs.masked_fill(~inputs.response_mask, 0.0) + noise).clamp(max=-1e-3)
    return inputs, sampler.masked_fill(~inputs.response_mask, torch.nan)


def with_correction(loss: Any, correction: Any) -> Method:
    return Method(GRPO(), None, loss, Aggregation("token-mean"), RandomSplit(), None, correction=correction)


def reference(rule: Any, inputs: Any, sampler: torch.Tensor) -> torch.Tensor:
    """Weights [B, T], token by token."""
    weights = torch.zeros_like(sampler)
    for i, row in enumerate(inputs.response_mask.tolist()):
        length = sum(row)
        old, new, mu = (each[i, :length].tolist() for each in (inputs.old_log_probs, inputs.log_probs, sampler))
        logs = [a - b for a, b in zip(old, mu, strict=True)]
        for t in range(length):
            if isinstance(rule, OffPolicyMask):
                distance = math.fsum(b - a for a, b in zip(new, mu, strict=True)) / length
                weights[i, t] = 0.0 if inputs.advantages[i, t] < 0 and distance > rule.delta else 1.0
                continue
            log = {"token": logs[t], "sequence": math.fsum(logs), "geometric": math.fsum(logs) / length}[rule.level]
            w = math.exp(min(max(log, -20.0), 20.0))
            if isinstance(rule, Truncated):
                weights[i, t] = min(w, rule.cap)
            else:
                inside = (rule.lower or 0.0) <= w <= rule.upper
                weights[i, t] = inside * (w if isinstance(rule, Band) else 1.0)
    return weights


@pytest.mark.parametrize("rule", CORRECTIONS, ids=repr)
@pytest.mark.parametrize("spread", [0.0, 0.3, 50.0])
def test_weights_equal_their_references(rule: Any, spread: float, draw_loss_inputs: Callable[..., Any]) -> None:
    changed = 0
    for seed in range(4):
        inputs, sampler = drawn(draw_loss_inputs, seed, spread)
        weights, metrics = rule(inputs.tokens(given_sampler_log_probs=sampler))
        torch.testing.assert_close(weights, reference(rule, inputs, sampler), rtol=1e-9, atol=1e-9)
        assert not weights[~inputs.response_mask].any() and not weights.requires_grad
        changed += int(metrics["corrected_fraction"].sum())
    assert (changed > 0) == (spread > 0)


@pytest.mark.parametrize("rule", CORRECTIONS, ids=repr)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_any_loss_takes_a_correction(rule: Any, loss: Any, draw_loss_inputs: Callable[..., Any]) -> None:
    """The loss of a token is the plain one times its weight; micro-batches add up."""
    inputs, sampler = drawn(draw_loss_inputs, 3)
    method, plain = with_correction(loss, rule), with_correction(loss, None)
    gradients = []
    for parts in ([torch.arange(8)], [torch.tensor([i]) for i in range(8)]):
        log_probs = inputs.log_probs.clone().requires_grad_()
        normaliser = Normaliser.of(inputs.response_mask)
        for rows in parts:
            tokens = inputs.tokens(rows, log_probs, given_sampler_log_probs=sampler[rows])
            values, _ = method.token_loss(tokens)
            expected = plain.token_loss(tokens)[0] * reference(rule, inputs, sampler)[rows]
            torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
            method.aggregation(values, inputs.response_mask[rows], normaliser).backward()
        gradients.append(log_probs.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rule", [*CORRECTIONS[:-1], Bypass()], ids=repr)
def test_without_a_difference_a_correction_changes_nothing(rule: Any, draw_loss_inputs: Callable[..., Any]) -> None:
    inputs, _ = drawn(draw_loss_inputs, 5)
    plain = with_correction(Clipped(), None).token_loss(inputs.tokens())[0]
    for sampler in (None, inputs.old_log_probs):
        assert torch.equal(
            with_correction(Clipped(), rule).token_loss(inputs.tokens(given_sampler_log_probs=sampler))[0], plain
        )


def test_bypass_takes_the_sampler_for_the_policy_before_the_update(draw_loss_inputs: Callable[..., Any]) -> None:
    inputs, sampler = drawn(draw_loss_inputs, 6)
    values, _ = with_correction(DPPOTV(), Bypass()).token_loss(inputs.tokens(given_sampler_log_probs=sampler))
    other = replace(inputs, old_log_probs=sampler)
    assert torch.equal(values, with_correction(DPPOTV(), None).token_loss(other.tokens())[0])
    assert not torch.equal(values, with_correction(DPPOTV(), None).token_loss(inputs.tokens())[0])


def test_a_range_keeps_its_ends_and_the_off_policy_mask_the_right_responses() -> None:
    old, log_ratio = torch.full((1, 2), -1.0, dtype=torch.float64), math.log(2.0)
    upper = float(torch.tensor(log_ratio, dtype=torch.float64).exp())
    groups = torch.zeros(1, dtype=torch.int64)
    for rule, kept in ((Band(upper=upper), True), (Band(upper=upper - 1e-9), False), (Mask(upper=upper), True)):
        tokens = Tokens(old, old, torch.ones_like(old), old < 0, groups, torch.Generator(), old - log_ratio)
        assert bool(rule(tokens)[0].all()) == kept
    for advantage, dropped in ((-1.0, True), (1.0, False), (0.0, False)):
        new = old - 0.6
        tokens = Tokens(new, old, advantage * torch.ones_like(old), old < 0, groups, torch.Generator(), old)
        assert bool((OffPolicyMask(delta=0.5)(tokens)[0] == 0).all()) == dropped
        assert not (OffPolicyMask(delta=0.7)(tokens)[0] == 0).any()


# The KL to a reference policy and the entropy bonus: values, expected gradients, and the coefficient's course.

TERMS = [LossTerm(estimator=each, coefficient=0.3) for each in ("k1", "k2", "k3", "unbiased_k3")]


def method_with(**parts: Any) -> Method:
    return Method(GRPO(), None, Clipped(), Aggregation("token-mean"), RandomSplit(), None, **parts)


def reference_of(inputs: Any, seed: int, spread: float) -> torch.Tensor:
    """Log-probabilities [B, T] of a reference policy, garbage at padding."""
    noise = spread * torch.randn(inputs.old_log_probs.shape, generator=torch.Generator().manual_seed(seed)).double()
    values = inputs.old_log_probs.masked_fill(~inputs.response_mask, 0.0) + noise
    return values.masked_fill(~inputs.response_mask, -torch.inf)


@pytest.mark.parametrize("term", TERMS, ids=repr)
@pytest.mark.parametrize("spread", [0.0, 0.3, 50.0])
def test_the_loss_term_is_its_reference(term: LossTerm, spread: float, draw_loss_inputs: Callable[..., Any]) -> None:
    """Value and gradient of the mini-batch, in one piece and in micro-batches, beside the plain loss's."""
    inputs: LossInputs = draw_loss_inputs(2, spread)
    reference, mask = reference_of(inputs, 9, spread), inputs.response_mask
    plain, normaliser = inputs.log_probs.clone().requires_grad_(), Normaliser.of(mask)
    method = method_with(kl=term)
    value, _ = Clipped()(*inputs.part(log_probs=plain), torch.Generator(), method.aggregation)
    loss = method.aggregation(value, mask, normaliser)
    loss.backward()
    expected, slopes = float(loss.detach()), plain.grad.clone()
    for i, t in mask.nonzero().tolist():
        one, slope = divergence(
            term.estimator, *(float(each[i, t]) for each in (inputs.log_probs, inputs.old_log_probs, reference))
        )
        expected += term.coefficient * one / normaliser.tokens
        slopes[i, t] += term.coefficient * slope / normaliser.tokens
    scale = 1e-9 * max(1.0, abs(expected))
    for parts in ([torch.arange(8)], [torch.tensor([i]) for i in range(8)]):
        log_probs, total = inputs.log_probs.clone().requires_grad_(), 0.0
        for rows in parts:
            tokens = inputs.tokens(rows, log_probs, given_reference_log_probs=reference[rows])
            values, metrics = method.token_loss(tokens)
            assert not values[~mask[rows]].any() and not metrics["reference_kl"][~mask[rows]].any()
            part = method.aggregation(values, mask[rows], normaliser)
            part.backward()
            total += float(part.detach())
        assert total == pytest.approx(expected, rel=1e-9, abs=1e-9)
        torch.testing.assert_close(log_probs.grad, slopes, rtol=1e-9, atol=scale)


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("term", TERMS, ids=repr)
def test_the_expected_gradient_is_that_of_the_divergence(term: LossTerm, on_policy: bool) -> None:
    """Over all tokens of a vocabulary, each with its probability under the policy that sampled."""
    generator = torch.Generator().manual_seed(1)
    logits, other, of_reference = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    current = logits.log_softmax(0)
    old = (current.detach() if on_policy else other.log_softmax(0))[None]
    reference = of_reference.log_softmax(0)[None]
    exact = (current.exp() * (current - reference[0])).sum()
    (slopes,) = torch.autograd.grad(exact, logits, retain_graph=True)
    tokens = Tokens(current[None], old, old, old < 0, torch.zeros(1), torch.Generator())
    values = term.of(tokens, reference)
    (found,) = torch.autograd.grad((old.exp() * values).sum(), logits)
    is_exact = {"k1": False, "k2": on_policy, "k3": False, "unbiased_k3": True}[term.estimator]
    assert bool(torch.allclose(found, slopes, rtol=1e-9, atol=1e-12)) == is_exact
    if on_policy:
        value = float((old.exp() * values.detach()).sum())
        assert (value == pytest.approx(float(exact.detach()), rel=1e-9)) == (term.estimator != "k2")
        if term.estimator == "k1":
            torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_reward_term_is_a_sum_over_the_response(estimator: Any, draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(4)
    reference, mask = reference_of(inputs, 3, 0.3), inputs.response_mask
    term = RewardTerm(coefficient=0.2, estimator=estimator)
    expected = [
        0.2
        * math.fsum(divergence(estimator, float(a), 0.0, float(b))[0] for a, b in zip(row[m], other[m], strict=True))
        for row, other, m in zip(inputs.old_log_probs, reference, mask, strict=True)
    ]
    penalties = term.penalties(inputs.old_log_probs, reference, mask)
    torch.testing.assert_close(penalties, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    rewards, groups, lengths = torch.ones(8).double(), inputs.group_ids, mask.sum(dim=1)
    method = method_with(kl=term)
    found = method.advantages(rewards, groups, lengths, 7, penalties=penalties)
    assert torch.equal(found, GRPO()(rewards - penalties, groups, lengths)) and found.any()


def test_the_entropy_bonus_is_taken_from_the_loss_of_every_token(draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(4)
    mask = inputs.response_mask
    entropies = torch.rand(mask.shape, dtype=torch.float64).masked_fill(~mask, torch.nan).requires_grad_()
    method = method_with(entropy_bonus=Fixed())
    values, _ = method.token_loss(inputs.tokens(given_entropies=entropies, entropy_coefficient=0.25))
    plain, _ = method.token_loss(inputs.tokens())
    torch.testing.assert_close(values[mask], (plain - 0.25 * entropies)[mask].detach(), rtol=1e-12, atol=0)
    assert not values[~mask].any()
    (gradient,) = torch.autograd.grad(values.sum(), entropies)
    assert torch.equal(gradient, -0.25 * mask.double())


def test_the_coefficient_follows_the_target_step_by_step() -> None:
    """It grows by 0.1 after an entropy below 0.5, falls after others, stays in [0, 0.2], and acts up to the target."""
    bonus, before, course = Target(target=0.5, step=0.1, most=0.2), {}, []
    for entropy in (0.6, 0.4, 0.4, 0.4, 0.7, 0.5, 0.3):
        coefficient, metrics = bonus.coefficient_at(entropy, before)
        course.append((round(metrics["entropy_control"], 9), round(coefficient, 9)))
        before = {"entropy": entropy, **metrics}
    assert course == [(0.0, 0.0), (0.0, 0.0), (0.1, 0.1), (0.2, 0.2), (0.2, 0.0), (0.1, 0.1), (0.0, 0.0)]
    assert Fixed(coefficient=0.3).coefficient_at(9.0, {}) == (0.3, {})
