"""The parts of an update's length, on gradients whose products are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.diagnostics.cancellation import halves, mean_overlap, opposed_term, update_norm


def test_two_opposed_rollouts_that_share_one_of_two_directions() -> None:
    """G_1 = (1, 1), G_2 = (1, -1)... A = (1, -1): the shared first direction cancels, (0, 2) is left."""
    gradients = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    found = update_norm(gradients @ gradients.T, torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert (found.self_term, found.cross_term, found.squared_norm) == (4.0, 0.0, 4.0)
    shared = torch.tensor([[2.0, 1.0], [2.0, -1.0]], dtype=torch.float64)
    found = update_norm(shared @ shared.T, torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert (found.self_term, found.cross_term, found.squared_norm) == (10.0, -6.0, 4.0)
    assert found.cancelled == -0.6
    assert mean_overlap(shared @ shared.T) == pytest.approx(0.6)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.floats(0, 1))
def test_a_constant_overlap_cancels_by_itself_times_the_squared_advantages(values: list[float], rho: float) -> None:
    advantages = torch.tensor(values, dtype=torch.float64)
    advantages -= advantages.mean()
    gram = torch.full((len(values), len(values)), rho, dtype=torch.float64)
    gram.fill_diagonal_(1.0)
    found = update_norm(gram, advantages)
    assert found.cross_term == pytest.approx(-rho * float(advantages.square().sum()), abs=1e-9)
    assert found.squared_norm >= -1e-9


def test_a_part_of_a_group_cancels_by_the_formula() -> None:
    """rho [(sum_P A)^2 - sum_P A^2] for P = the first two of advantages 1, 1, -1, -1 and rho = 1/2: 0.5 (4 - 2)."""
    gram = torch.full((4, 4), 0.5, dtype=torch.float64).fill_diagonal_(1.0)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    assert update_norm(gram[:2, :2], advantages[:2]).cross_term == 1.0
    assert update_norm(gram, advantages).cross_term == -2.0
    # Of the 12 ordered pairs 8 are opposed, each -0.5; the other 4 add 0.5 each.
    assert opposed_term(gram, advantages) == -4.0
    assert math.isnan(update_norm(gram, torch.zeros(4, dtype=torch.float64)).cancelled)


def test_halves_are_halves() -> None:
    found = halves(8, 50, torch.Generator().manual_seed(1))
    assert all(len(half.unique()) == 4 and int(half.max()) < 8 for half in found)
    assert len({tuple(half.tolist()) for half in found}) > 10
