"""Forking tokens against a sorting loop, both denominators and scopes, and the limit rho = 1."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.aggregation import Aggregation, Normaliser
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.token_rules import ForkingTokens
from tests.unit.methods.conftest import drawn_lengths, rollout_batch


def draw_batch(seed: int, levels: int = 1000) -> RolloutBatch:
    """Draw 6 rollouts of 0 .. 5 tokens in 3 mini-batches; few ``levels`` of entropy make ties, padding tops all."""
    generator = torch.Generator().manual_seed(seed)
    entropies = torch.randint(0, levels, (6, 5), generator=generator).double() / levels
    batch = rollout_batch(drawn_lengths(6, 5, generator), generator, mini_batch_ids=torch.tensor([0, 1, 0, 1, 2, 2]))
    return replace(batch, entropies=entropies.masked_fill(~batch.response_mask, 99.0))


def oracle(batch: RolloutBatch, component: ForkingTokens) -> torch.Tensor:
    """Weights [B, T] by sorting the entropies of each scope."""
    tokens = [(i, t) for i in range(6) for t in range(5) if batch.response_mask[i, t]]
    home = {token: int(batch.mini_batch_ids[token[0]]) for token in tokens}
    scopes = [[x for x in tokens if home[x] == m] for m in (0, 1, 2)] if component.scope == "mini_batch" else [tokens]
    selected = set()
    for members in scopes:
        ordered = sorted((float(batch.entropies[x]) for x in members), reverse=True)
        threshold = ordered[math.ceil(component.top_ratio * len(members)) - 1]
        selected |= {x for x in members if float(batch.entropies[x]) >= threshold}
    weights = torch.zeros(6, 5, dtype=torch.float64)
    for token in selected:
        same = [x for x in tokens if home[x] == home[token]]
        weights[token] = len(same) / sum(x in selected for x in same) if component.denominator == "selected" else 1.0
    return weights


@given(
    seed=st.integers(0, 10_000),
    levels=st.sampled_from([1, 3, 1000]),
    top_ratio=st.sampled_from([0.01, 0.2, 0.5, 1.0]),
    denominator=st.sampled_from(["selected", "all"]),
    scope=st.sampled_from(["mini_batch", "rollout_batch"]),
)
@settings(max_examples=80)
def test_weights_equal_the_oracle(seed: int, levels: int, top_ratio: float, denominator: Any, scope: Any) -> None:
    batch = draw_batch(seed, levels)
    component = ForkingTokens(top_ratio=top_ratio, denominator=denominator, scope=scope)
    weights, metrics = component(batch)
    expected = oracle(batch, component)
    torch.testing.assert_close(weights, expected, rtol=1e-12, atol=0)
    fraction = int((expected > 0).sum()) / int(batch.response_mask.sum())
    assert metrics["selected_token_fraction"] == pytest.approx(fraction)
    assert metrics["token_weight_mean"] == pytest.approx(expected[batch.response_mask].mean().item())


@pytest.mark.parametrize("mini_batch", [0, 1])
def test_selected_denominator_makes_the_token_mean_a_mean_over_selected_tokens(mini_batch: int) -> None:
    batch = draw_batch(5)
    weights, _ = ForkingTokens()(batch)
    rows = batch.mini_batch_ids == mini_batch
    mask = batch.response_mask[rows]
    weighted = (weights * batch.advantages.unsqueeze(1))[rows]
    old = batch.old_log_probs[rows]
    others, mean = (mask, batch.group_ids[rows], batch.generator), Aggregation("token-mean")
    token_loss, _ = Clipped()(old + 0.1, old, weighted, *others, mean)
    value = mean(token_loss, mask, Normaliser.of(mask))
    plain, _ = Clipped()(old + 0.1, old, batch.advantages[rows].unsqueeze(1).repeat(1, 5), *others, mean)
    torch.testing.assert_close(value, plain[weights[rows] > 0].mean(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("denominator", ["selected", "all"])
@pytest.mark.parametrize("scope", ["mini_batch", "rollout_batch"])
def test_ratio_one_is_dapo(denominator: Any, scope: Any) -> None:
    batch = draw_batch(8)
    weights, _ = ForkingTokens(top_ratio=1.0, denominator=denominator, scope=scope)(batch)
    assert torch.equal(weights, batch.response_mask.double())
