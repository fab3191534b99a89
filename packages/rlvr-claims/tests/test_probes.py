"""Probing updates: their gradients, what they move, and that the policy comes back."""

import dataclasses
from pathlib import Path

import pytest
import torch

from evals.core.errors import UserError
from rlvr.engines.local.policy import token_log_probs
from rlvr_claims.policy import PolicySnapshot
from rlvr_claims.probes import (
    head_view,
    log_probs_of,
    matched_step_size,
    norm,
    probe,
    read_probes,
    score_gradient,
    stepped,
    write_probes,
)


def test_the_gradient_is_that_of_all_tokens_at_once(snapshots: list[PolicySnapshot]) -> None:
    snapshot = snapshots[0]
    coefficients = snapshot.weighted_advantages.float()
    found = score_gradient(snapshot.model, snapshot.tokens, 1.0, coefficients)
    (token_log_probs(snapshot.model, snapshot.tokens, 1.0) * coefficients).sum().backward()
    for name, parameter in snapshot.model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-4)


def test_a_small_step_moves_a_token_by_the_inner_product_of_gradients(snapshots: list[PolicySnapshot]) -> None:
    snapshot = snapshots[0]
    gradient = score_gradient(snapshot.model, snapshot.tokens, 1.0, snapshot.weighted_advantages)
    token = int(snapshot.column("old_log_prob").argmin())
    alone = torch.zeros(len(snapshot.weighted_advantages))
    alone[token] = 1.0
    own = score_gradient(snapshot.model, snapshot.tokens, 1.0, alone)
    slope = sum(float((own[name].double() * gradient[name].double()).sum()) for name in own)
    size = 1e-2 / norm(gradient)
    before = log_probs_of(snapshot.model, snapshot.tokens, 1.0)
    with stepped(snapshot.model, gradient, size) as after:
        moved = log_probs_of(after, snapshot.tokens, 1.0) - before
    assert abs(float(moved[token]) - size * slope) < 0.05 * abs(size * slope)
    assert torch.equal(log_probs_of(snapshot.model, snapshot.tokens, 1.0), before)


def test_the_heads_view_is_the_models(snapshots: list[PolicySnapshot]) -> None:
    view = head_view(snapshots[0])
    torch.testing.assert_close(
        view.log_probs(), log_probs_of(snapshots[0].model, snapshots[0].tokens, 1.0), atol=1e-5, rtol=0
    )


def test_small_probes_are_of_the_wanted_size_add_up_and_raise_their_own_objective(
    snapshots: list[PolicySnapshot],
) -> None:
    """At a step so small that displacements are proportional to it."""
    rows = snapshots[0].rows.copy()
    rows["new_log_prob"] = rows["old_log_prob"] + 1e-3
    snapshot = dataclasses.replace(snapshots[0], rows=rows)
    found, step_size = probe(snapshot)
    assert step_size > 0
    assert float(found["null"].abs().max()) < 1e-5
    assert 0.8 < float(found["joint"].square().mean().sqrt()) / 1e-3 < 1.25
    torch.testing.assert_close(found["positive_only"] + found["negative_only"], found["joint"], atol=1e-4, rtol=0.05)
    torch.testing.assert_close(found["head_only"], found["first_order"], atol=1e-4, rtol=0.05)
    assert float(snapshot.weighted_advantages.clamp(min=0) @ found["positive_only"]) > 0
    assert float(snapshot.weighted_advantages.clamp(max=0) @ found["negative_only"]) > 0


def test_the_step_size_is_exact_where_displacements_are_proportional_to_it() -> None:
    slopes = torch.tensor([1.0, -2.0, 2.0])
    size = matched_step_size(lambda _, step: step * slopes, {"weight": torch.ones(4)}, torch.tensor([3.0, 0.0, 0.0]))
    assert abs(size - 1.0) < 1e-6
    assert matched_step_size(lambda _, step: step * slopes, {"weight": torch.zeros(4)}, slopes) == 0.0


def test_displacements_are_kept_by_moment(token_table: Path, snapshots: list[PolicySnapshot]) -> None:
    write_probes(token_table, [3])
    (found,) = read_probes(token_table, snapshots[1:])
    with pytest.raises(UserError, match="step 1 was not probed"):
        read_probes(token_table, snapshots)
    expected, _ = probe(snapshots[1])
    rows = found.displacements
    torch.testing.assert_close(rows["joint"], expected["joint"])
    torch.testing.assert_close(rows["as_trained"], snapshots[1].own_displacement)
