"""The coupling kernel against autograd, and a bandit whose update is known by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rlvr.diagnostics.coupling import (
    coupling,
    distribution_factor,
    dropped_mass,
    first_order_displacement,
)
from rlvr.diagnostics.flipping import flips
from rlvr.diagnostics.probes import HeadView

TEMPERATURE = 0.7


def random_view(tokens: int = 7, width: int = 4, vocabulary: int = 6) -> HeadView:
    generator = torch.Generator().manual_seed(1)
    return HeadView(
        torch.randn(tokens, width, dtype=torch.float64, generator=generator),
        torch.randn(vocabulary, width, dtype=torch.float64, generator=generator),
        torch.randint(vocabulary, (tokens,), generator=generator),
        TEMPERATURE,
    )


def head_gradients(view: HeadView) -> torch.Tensor:
    """[N, V * D] by autograd, a token at a time."""
    rows = []
    for hidden, token in zip(view.hidden, view.token_ids, strict=True):
        weight = view.weight.clone().requires_grad_()
        log_prob = (hidden @ weight.T / view.temperature).log_softmax(-1)[token]
        rows.append(torch.autograd.grad(log_prob, weight)[0].flatten())
    return torch.stack(rows)


def test_the_kernel_is_the_gram_matrix_of_autograds_head_gradients() -> None:
    view = random_view()
    gradients = head_gradients(view)
    everything = torch.arange(len(view.token_ids))
    torch.testing.assert_close(coupling(view, everything, everything), gradients @ gradients.T)
    torch.testing.assert_close(coupling(view, everything[:2], everything[3:]), gradients[:2] @ gradients[3:].T)


def test_the_gradient_of_the_head_and_the_first_order_displacement_are_sums_over_it() -> None:
    view = random_view()
    gradients = head_gradients(view)
    coefficients = torch.linspace(-1, 1, len(view.token_ids), dtype=torch.float64)
    torch.testing.assert_close(view.gradient(coefficients).flatten(), coefficients @ gradients)
    expected = 0.3 * gradients @ gradients.T @ coefficients
    torch.testing.assert_close(first_order_displacement(view, coefficients, 0.3), expected)


def test_a_small_step_moves_tokens_by_the_first_order() -> None:
    view = random_view()
    coefficients = torch.linspace(-1, 1, len(view.token_ids), dtype=torch.float64)
    moved = view.log_probs(view.weight + 1e-6 * view.gradient(coefficients)) - view.log_probs()
    torch.testing.assert_close(moved, first_order_displacement(view, coefficients, 1e-6), rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("top", [1, 3, 6])
def test_keeping_the_largest_probabilities_errs_by_no_more_than_the_mass_dropped(top: int) -> None:
    view = random_view()
    everything = torch.arange(len(view.token_ids))
    exact, kept = (distribution_factor(view, everything, everything, each) for each in (None, top))
    dropped = dropped_mass(view, everything, top)
    error = exact - kept
    assert bool((error >= -1e-12).all())
    assert bool((error <= dropped[:, None] + dropped[None] + 1e-12).all())
    if top == 6:
        torch.testing.assert_close(kept, exact)


def bandit(probabilities: list[float], pulled: list[int]) -> HeadView:
    """One state, an arm a token: hidden states of 1, logits that are the weights."""
    weight = torch.tensor(probabilities, dtype=torch.float64).log()[:, None]
    return HeadView(torch.ones(len(pulled), 1, dtype=torch.float64), weight, torch.tensor(pulled), 1.0)


def test_a_bandits_distribution_factors_by_hand() -> None:
    """p = (0.5, 0.25, 0.25): |p|^2 = 0.375."""
    view = bandit([0.5, 0.25, 0.25], [0, 1, 2])
    expected = torch.tensor([[0.375, -0.375, -0.375], [-0.375, 0.875, -0.125], [-0.375, -0.125, 0.875]])
    everything = torch.arange(3)
    torch.testing.assert_close(distribution_factor(view, everything, everything), expected.double())


def test_a_token_that_two_opposed_rollouts_share_does_not_move_and_the_others_follow_their_sides() -> None:
    """Rollouts (0, 1) rewarded and (0, 2) punished in a bandit: the shared arm 0 cancels."""
    view = bandit([0.5, 0.25, 0.25], [0, 1, 0, 2])
    coefficients = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    moved = first_order_displacement(view, coefficients, 0.1)
    torch.testing.assert_close(moved, torch.tensor([0.0, 0.1, 0.0, -0.1], dtype=torch.float64))
    found = flips(moved, coefficients > 0, 1e-9)
    assert (found.boosted, found.suppressed, found.stable) == (0.5, 0.0, 0.5)


def test_suppressing_one_arm_boosts_another_of_the_same_punished_rollout() -> None:
    """A flip by hand: arm 0 (p = 0.8) punished twice, arm 1 once; arm 1 gains from what arm 0 loses.

    The gradient of the logits is -2 (e_0 - p) - (e_1 - p) = (0.4, -0.7, 0.3), and log p_1 moves by its second entry
    less the mean (0.8, 0.1, 0.1) . (0.4, -0.7, 0.3) = 0.28: with weights 6 and 1 instead,
    -6 (e_0 - p) - (e_1 - p) = (-0.4, -0.3, 0.7), mean -0.28, so log p_1 moves by -0.02; with 8 and 1,
    (-0.8, -0.1, 0.9), mean -0.56, by +0.46.
    """
    view = bandit([0.8, 0.1, 0.1], [0, 1])
    for weight, expected in ((2.0, -0.98), (6.0, -0.02), (8.0, 0.46)):
        coefficients = torch.tensor([-weight, -1.0], dtype=torch.float64)
        moved = first_order_displacement(view, coefficients, 1.0)
        assert math.isclose(float(moved[1]), expected, abs_tol=1e-9)
