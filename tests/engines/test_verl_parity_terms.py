"""The KL estimators and the corrections of the sampler against verl's own functions, on the same tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.methods.corrections import Truncated
from rlvr.methods.losses.base import Tokens
from rlvr.methods.reference_kl import LossTerm

pytest.importorskip("verl", reason="verl is in .venv-engines: make test-engines")

from verl.trainer.ppo.core_algos import kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights


def drawn(seed: int, spread: float) -> tuple[Tokens, torch.Tensor, torch.Tensor]:
    """Tokens of 8 ragged responses, with the log-probabilities [B, T] of a sampler and of a reference policy."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (8, 1), generator=generator)
    mask = torch.arange(8)[None] < lengths
    old = -4 * torch.rand(8, 8, generator=generator, dtype=torch.float64)
    current, sampler, reference = (
        old + spread * torch.randn(8, 8, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    groups = torch.arange(8) // 4
    return Tokens(current, old, torch.ones_like(old), mask, groups, torch.Generator(), sampler), sampler, reference


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_estimators_are_verls(assert_agrees: Any, name: Any, spread: float) -> None:
    """Up to 10, where verl limits its k3."""
    for seed in range(20):
        tokens, _, reference = drawn(seed, spread)
        log_probs = tokens.given_log_probs.clone().requires_grad_()
        found = LossTerm(estimator=name).of(replace(tokens, given_log_probs=log_probs), reference)
        expected = kl_penalty(log_probs, reference, name)
        compared = tokens.mask & (expected.detach() < 10)
        assert_agrees(f"KL {name}, value", found[compared], expected[compared])
        slopes = [torch.autograd.grad(each[compared].sum(), log_probs)[0] for each in (found, expected)]
        assert_agrees(f"KL {name}, gradient", *slopes)


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_weights_are_verls(assert_agrees: Any, level: Any, spread: float) -> None:
    for seed in range(20):
        tokens, sampler, _ = drawn(seed, spread)
        log_ratio = (tokens.given_old_log_probs - sampler).masked_fill(~tokens.mask, 0.0)
        expected, _ = compute_rollout_correction_weights(
            log_ratio=log_ratio, response_mask=tokens.mask.long(), rollout_is=level, rollout_is_threshold=2.0
        )
        assert_agrees(f"TIS by {level}", Truncated(level=level)(tokens)[0], expected * tokens.mask)
