"""Forking tokens against a sorting loop, both denominators and scopes, and the limit rho = 1."""

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, Normaliser
from rlvr.methods.component_file import components_in
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.method import compose
from rlvr.methods.rollout_batch import RolloutBatch, RowShare
from rlvr.methods.token_weights.token_rules import (
    Dominate,
    ForkingTokens,
    LowProbability,
    Perplexity,
    TokenWeights,
)
from rlvr.study.catalogue import load_catalogue, resolve_method
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


def test_certain_tokens_are_those_that_forking_tokens_leave_out_with_the_same_mean_weight() -> None:
    file = Path(__file__).parents[3] / "config/components/certain_tokens.py"
    of_file = components_in(file)["token_weights"]["certain_tokens"]
    assert issubclass(of_file, TokenWeights)
    batch = draw_batch(5, levels=3)
    certain, metrics = of_file()(batch)
    forking, chosen = ForkingTokens()(batch)
    assert torch.equal((certain > 0) ^ (forking > 0), batch.response_mask)
    assert metrics["selected_token_fraction"] == pytest.approx(1 - chosen["selected_token_fraction"])
    for mini_batch in torch.unique(batch.mini_batch_ids):
        rows = batch.mini_batch_ids == mini_batch
        assert certain[rows].sum().item() == pytest.approx(int(batch.response_mask[rows].sum()))


# Weights by probability and by perplexity against loops, and their limits.


def draw_batch_of_probability(seed: int) -> RolloutBatch:
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
        batch = draw_batch_of_probability(seed)
        torch.testing.assert_close(rule(batch)[0], perplexity_oracle(rule, batch), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", [LowProbability(), LowProbability(alpha=1.5), Dominate(), Dominate(a=1.0)], ids=repr)
def test_probability_weights_equal_their_references(rule: Any) -> None:
    batch = draw_batch_of_probability(1)
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
    batch = draw_batch_of_probability(2)
    assert torch.equal(rule(batch)[0], batch.response_mask.double())


# Hidden states that several processes hold a part of each: the same token weights as one process that holds all.


def batch() -> RolloutBatch:
    """12 rollouts of 1 .. 9 tokens in three groups and two mini-batches."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, 10, (12,), generator=generator).tolist()
    drawn = rollout_batch(
        lengths,
        generator,
        advantages=torch.randn(12, generator=generator).round(decimals=1),
        mini_batch_ids=torch.arange(12) % 2,
        token_ids=torch.randint(0, 30, (12, max(lengths)), generator=generator),
        head_weight=torch.randn(30, 16, generator=generator),
        hidden_states=torch.randn(sum(lengths), 16, generator=generator),
    )
    entropies = torch.rand(drawn.response_mask.shape, generator=generator)
    return replace(drawn, entropies=entropies, old_log_probs=drawn.old_log_probs.float() / 3)


class Processes:
    """Threads that stand for processes and meet at every collective."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._spans = spans
        self._barrier = threading.Barrier(len(spans), timeout=600)
        self._slots: list[Any] = [None] * len(spans)

    def _exchange(self, rank: int, value: Tensor) -> list[Tensor]:
        self._slots[rank] = value
        self._barrier.wait()
        found = list(self._slots)
        self._barrier.wait()
        return found

    def share(self, rank: int) -> RowShare:
        return RowShare(
            *self._spans[rank],
            total=lambda value: torch.stack(self._exchange(rank, value)).sum(dim=0),
            gather=lambda value: torch.cat(self._exchange(rank, value)),
        )

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * len(self._spans)

        def one(rank: int) -> None:
            results[rank] = work(rank)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(self._spans))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


WITH_HIDDEN_STATES = sorted(
    name
    for name in load_catalogue()
    if compose(resolve_method(name, {}, load_catalogue(), "test"), longest=64).needs_hidden_states
    and name != "delta_sketched"
)


@pytest.mark.parametrize("name", WITH_HIDDEN_STATES)
def test_shares_give_the_weights_of_the_whole(name: str) -> None:
    weighting = compose(resolve_method(name, {}, load_catalogue(), "test"), longest=64).token_weights
    assert weighting is not None
    whole = batch()
    expected, expected_metrics = weighting(whole)
    assert whole.hidden_states is not None
    tokens = len(whole.hidden_states)
    spans = [(0, 20), (20, 20), (20, tokens)]  # one process has nothing
    processes = Processes(spans)

    def one(rank: int) -> tuple[Tensor, dict[str, float]]:
        start, stop = spans[rank]
        assert whole.hidden_states is not None
        part = replace(
            whole,
            hidden_states=whole.hidden_states[start:stop],
            share=processes.share(rank),
            generator=torch.Generator().manual_seed(7),
        )
        return weighting(part)

    for weights, metrics in processes.run(one):
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
        assert metrics == pytest.approx(expected_metrics, rel=1e-4, nan_ok=True)


def test_a_share_has_to_fit_its_rows() -> None:
    whole = batch()
    share = RowShare(0, 3, total=lambda value: value, gather=lambda value: value)
    with pytest.raises(ValueError, match=r"expected \[3, D\]"):
        replace(whole, share=share)
