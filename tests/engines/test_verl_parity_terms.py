"""The KL estimators and the corrections of the sampler against verl's own functions, on the same tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.methods.loss_terms import Band, LossTerm, Mask, Truncated
from rlvr.methods.losses.base import Tokens

pytest.importorskip("verl", reason="verl is in .venv-engines: make test-engines")

from verl.trainer.ppo.core_algos import kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask


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


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
@pytest.mark.parametrize(("level", "of_verl"), [("token", "token"), ("sequence", "seq_sum"), ("geometric", "seq_mean")])
def test_what_a_range_leaves_out_is_what_verl_rejects(level: Any, of_verl: str, spread: float) -> None:
    """verl's bounds are of mu / pi_old, the inverse of w; a band is its mask times its weights."""
    rejected = False
    for seed in range(20):
        tokens, sampler, _ = drawn(seed, spread)
        log_ratio = (tokens.given_old_log_probs - sampler).masked_fill(~tokens.mask, 0.0)
        kept, _ = compute_rollout_rejection_mask(
            log_ratio, tokens.mask.long(), f"{of_verl}_k1", rollout_rs_threshold=f"{1 / 1.5}_{1 / 0.8}"
        )
        weights, metrics = Mask(level=level, lower=0.8, upper=1.5)(tokens)
        assert torch.equal(weights, kept.to(weights))
        rejected |= bool(metrics["corrected_fraction"].any())
        if level != "geometric":  # a weight that verl does not have
            ratios, _ = compute_rollout_correction_weights(log_ratio, tokens.mask.long(), level, 1e12)
            found = Band(level=level, lower=0.8, upper=1.5)(tokens)[0]
            torch.testing.assert_close(found, ratios * kept, rtol=1e-12, atol=0)
    assert rejected == (spread > 0)
