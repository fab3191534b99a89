"""Weights by probability and by perplexity against loops, and their limits."""

import math
from typing import Any

import pytest
import torch

from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.token_rules import Dominate, LowProbability, Perplexity
from tests.unit.methods.conftest import drawn_lengths, rollout_batch


def draw_batch(seed: int) -> RolloutBatch:
    """8 rollouts in two groups, lengths 0 .. 5; padding holds NaN."""
    generator = torch.Generator().manual_seed(seed)
    return rollout_batch(drawn_lengths(8, 5, generator), generator)


def perplexity_oracle(rule: Perplexity, batch: RolloutBatch) -> torch.Tensor:
    """Weights [B, T] by loops."""
    lengths = batch.response_mask.sum(dim=1).tolist()
    surprise = {
        i: -math.fsum(float(batch.old_log_probs[i, t]) for t in range(length)) / length
        for i, length in enumerate(lengths)
        if length
    }
    weights = torch.zeros(8, 5, dtype=torch.float64)
    for i, value in surprise.items():
        same = [j for j in surprise if rule.scope == "batch" or batch.group_ids[j] == batch.group_ids[i]]
        mean = math.fsum(surprise[j] for j in same) / len(same)
        std = math.sqrt(math.fsum((surprise[j] - mean) ** 2 for j in same) / len(same))
        weight = max(0.0, 1 - rule.c * (value - mean) / (std + 1e-6))
        if rule.clamp is not None:
            weight = min(max(weight, 1 - rule.clamp), 1 + rule.clamp)
        weights[i, : lengths[i]] = weight
    return weights


@pytest.mark.parametrize(
    "rule", [Perplexity(), Perplexity(c=0.9, scope="batch"), Perplexity(c=0.5, clamp=0.2)], ids=repr
)
def test_perplexity_equals_its_reference(rule: Perplexity) -> None:
    for seed in range(5):
        batch = draw_batch(seed)
        torch.testing.assert_close(rule(batch)[0], perplexity_oracle(rule, batch), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", [LowProbability(), LowProbability(alpha=1.5), Dominate(), Dominate(a=1.0)], ids=repr)
def test_probability_weights_equal_their_references(rule: Any) -> None:
    batch = draw_batch(1)
    weights, metrics = rule(batch)
    total = 0.0
    for i in range(8):
        for t in range(5):
            expected = 0.0
            if batch.response_mask[i, t]:
                p = math.exp(float(batch.old_log_probs[i, t]))
                expected = 1 + rule.alpha * (1 - p) if isinstance(rule, LowProbability) else rule.a * p + 1 - rule.a
            assert float(weights[i, t]) == pytest.approx(expected, rel=1e-12)
            total += expected
    assert metrics["token_weight_mean"] == pytest.approx(total / int(batch.response_mask.sum()))


@pytest.mark.parametrize("rule", [LowProbability(alpha=0.0), Dominate(a=0.0), Perplexity(c=0.0)], ids=repr)
def test_without_their_coefficient_they_are_dapo(rule: Any) -> None:
    batch = draw_batch(2)
    assert torch.equal(rule(batch)[0], batch.response_mask.double())
