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
from rlvr.methods.corrections import Band, Bypass, Mask, OffPolicyMask, Truncated
from rlvr.methods.losses.base import Tokens
from rlvr.methods.losses.off_policy import DRO, VESPO
from rlvr.methods.losses.sequence_ratios import GSPO
from rlvr.methods.losses.token_ratios import SAPO, Clipped
from rlvr.methods.losses.trust_regions import DPPOTV, IPO
from rlvr.methods.method import Method

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


def tokens_of(inputs: Any, sampler: Any, log_probs: Any = None, rows: Any = slice(None)) -> Tokens:
    return Tokens(
        (inputs.log_probs if log_probs is None else log_probs)[rows],
        inputs.old_log_probs[rows],
        inputs.advantages[rows],
        inputs.response_mask[rows],
        inputs.group_ids[rows],
        torch.Generator(),
        given_sampler_log_probs=None if sampler is None else sampler[rows],
    )


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
        weights, metrics = rule(tokens_of(inputs, sampler))
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
            tokens = tokens_of(inputs, sampler, log_probs, rows)
            values, _ = method.token_loss(tokens)
            expected = plain.token_loss(tokens)[0] * reference(rule, inputs, sampler)[rows]
            torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
            method.aggregation(values, inputs.response_mask[rows], normaliser).backward()
        gradients.append(log_probs.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rule", [*CORRECTIONS[:-1], Bypass()], ids=repr)
def test_without_a_difference_a_correction_changes_nothing(rule: Any, draw_loss_inputs: Callable[..., Any]) -> None:
    inputs, _ = drawn(draw_loss_inputs, 5)
    plain = with_correction(Clipped(), None).token_loss(tokens_of(inputs, None))[0]
    for sampler in (None, inputs.old_log_probs):
        assert torch.equal(with_correction(Clipped(), rule).token_loss(tokens_of(inputs, sampler))[0], plain)


def test_bypass_takes_the_sampler_for_the_policy_before_the_update(draw_loss_inputs: Callable[..., Any]) -> None:
    inputs, sampler = drawn(draw_loss_inputs, 6)
    values, _ = with_correction(DPPOTV(), Bypass()).token_loss(tokens_of(inputs, sampler))
    other = replace(inputs, old_log_probs=sampler)
    assert torch.equal(values, with_correction(DPPOTV(), None).token_loss(tokens_of(other, None))[0])
    assert not torch.equal(values, with_correction(DPPOTV(), None).token_loss(tokens_of(inputs, None))[0])


def test_a_range_keeps_its_ends_and_the_off_policy_mask_the_right_responses() -> None:
    old, log_ratio = torch.full((1, 2), -1.0, dtype=torch.float64), math.log(2.0)
    upper = float(torch.tensor(log_ratio, dtype=torch.float64).exp())
    groups = torch.zeros(1, dtype=torch.int64)
    for rule, kept in ((Band(upper=upper), True), (Band(upper=upper - 1e-9), False), (Mask(upper=upper), True)):
        tokens = Tokens(
            old,
            old,
            torch.ones_like(old),
            old < 0,
            groups,
            torch.Generator(),
            old - log_ratio,
        )
        assert bool(rule(tokens)[0].all()) == kept
    for advantage, dropped in ((-1.0, True), (1.0, False), (0.0, False)):
        new = old - 0.6
        tokens = Tokens(
            new,
            old,
            advantage * torch.ones_like(old),
            old < 0,
            groups,
            torch.Generator(),
            old,
        )
        assert bool((OffPolicyMask(delta=0.5)(tokens)[0] == 0).all()) == dropped
        assert not (OffPolicyMask(delta=0.7)(tokens)[0] == 0).any()
