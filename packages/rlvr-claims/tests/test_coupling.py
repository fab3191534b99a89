"""The coupling kernel and the masking effect: against autograd, separate updates, and bandits by hand."""

import dataclasses
import math

import pandas as pd
import pytest
import torch

from rlvr_claims.claims.gradient_mass import by_bin, head_norms, shares
from rlvr_claims.claims.masking_effect import coupling_strength, full_effects, growth, head_effects, mask_sets
from rlvr_claims.measures import flips
from rlvr_claims.policy import PolicySnapshot
from rlvr_claims.probes import HeadView, log_probs_of, score_gradient, stepped

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
    torch.testing.assert_close(view.coupling(everything, everything), gradients @ gradients.T)
    torch.testing.assert_close(view.coupling(everything[:2], everything[3:]), gradients[:2] @ gradients[3:].T)


def test_the_gradient_of_the_head_and_the_first_order_displacement_are_sums_over_it() -> None:
    view = random_view()
    gradients = head_gradients(view)
    coefficients = torch.linspace(-1, 1, len(view.token_ids), dtype=torch.float64)
    torch.testing.assert_close(view.gradient(coefficients).flatten(), coefficients @ gradients)
    expected = 0.3 * gradients @ gradients.T @ coefficients
    torch.testing.assert_close(view.first_order_displacement(coefficients, 0.3), expected)


def test_a_small_step_moves_tokens_by_the_first_order() -> None:
    view = random_view()
    coefficients = torch.linspace(-1, 1, len(view.token_ids), dtype=torch.float64)
    moved = view.log_probs(view.weight + 1e-6 * view.gradient(coefficients)) - view.log_probs()
    torch.testing.assert_close(moved, view.first_order_displacement(coefficients, 1e-6), rtol=1e-4, atol=1e-12)


def bandit(probabilities: list[float], pulled: list[int]) -> HeadView:
    """One state, an arm a token: hidden states of 1, logits that are the weights."""
    weight = torch.tensor(probabilities, dtype=torch.float64).log()[:, None]
    return HeadView(torch.ones(len(pulled), 1, dtype=torch.float64), weight, torch.tensor(pulled), 1.0)


def test_a_bandits_distribution_factors_by_hand() -> None:
    """p = (0.5, 0.25, 0.25): |p|^2 = 0.375."""
    view = bandit([0.5, 0.25, 0.25], [0, 1, 2])
    expected = torch.tensor([[0.375, -0.375, -0.375], [-0.375, 0.875, -0.125], [-0.375, -0.125, 0.875]])
    everything = torch.arange(3)
    torch.testing.assert_close(view.distribution_factor(everything, everything), expected.double())


def test_a_token_that_two_opposed_rollouts_share_does_not_move_and_the_others_follow_their_sides() -> None:
    """Rollouts (0, 1) rewarded and (0, 2) punished in a bandit: the shared arm 0 cancels."""
    view = bandit([0.5, 0.25, 0.25], [0, 1, 0, 2])
    coefficients = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    moved = view.first_order_displacement(coefficients, 0.1)
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
        moved = view.first_order_displacement(coefficients, 1.0)
        assert math.isclose(float(moved[1]), expected, abs_tol=1e-9)


def test_masking_the_other_pull_of_an_arm_by_hand() -> None:
    """p = (0.5, 0.5), arm 0 pulled twice, step 0.2: logits differ by 0.2 after one pull and by 0.4 after both."""
    view = bandit([0.5, 0.5], [0, 0])
    found = head_effects(view, torch.ones(2, dtype=torch.float64), 0.2, {0: {("other", 1): torch.tensor([1])}})
    expected = math.log((1 + math.exp(-0.2)) / (1 + math.exp(-0.4)))
    assert math.isclose(found[0]["other", 1], expected, rel_tol=1e-9)
    # To first order 0.2 kappa = 0.2 * 0.5.
    strength = coupling_strength(view, torch.ones(2, dtype=torch.float64), 0.2, 0, torch.tensor([1]))
    assert math.isclose(strength, 0.1, rel_tol=1e-9)


def test_head_effects_are_differences_of_two_updates_and_small_ones_are_the_dose() -> None:
    view = random_view()
    coefficients = torch.linspace(-1, 1, len(view.token_ids), dtype=torch.float64)
    masked = torch.tensor([1, 4])
    for step_size in (0.5, 1e-6):
        found = head_effects(view, coefficients, step_size, {2: {("some", 2): masked}})[2]["some", 2]
        without = coefficients.clone()
        without[masked] = 0
        after, less = (
            view.log_probs(view.weight + step_size * view.gradient(each)) for each in (coefficients, without)
        )
        assert math.isclose(found, float(after[2] - less[2]), rel_tol=1e-6, abs_tol=1e-15)
    assert math.isclose(found, coupling_strength(view, coefficients, 1e-6, 2, masked), rel_tol=1e-4)


def test_masking_every_other_pull_of_an_arm_one_after_the_other_by_hand() -> None:
    """p = (0.5, 0.5), arm 0 pulled 17 times, step 0.2: n pulls put the logits 0.2 n apart."""
    view, ones = bandit([0.5, 0.5], [0] * 17), torch.ones(17, dtype=torch.float64)
    order = torch.arange(1, 17)
    found = head_effects(view, ones, 0.2, {0: {("both", size): order[:size] for size in (1, 4, 16)}})[0]
    for size in (1, 4, 16):
        expected = math.log((1 + math.exp(-0.2 * (17 - size))) / (1 + math.exp(-0.2 * 17)))
        assert math.isclose(found["both", size], expected, rel_tol=1e-9)
    rows = [{"unit": "u", "candidate": 0, "masked": key[1], "effect": effect} for key, effect in found.items()]
    rows.append({"unit": "u", "candidate": 1, "masked": 4, "effect": 9.0})  # has no 16, and is left out
    grown = growth(pd.DataFrame(rows))
    assert math.isclose(grown["u"], found["both", 16] - found["both", 4])


def test_full_effects_are_differences_of_two_updates(snapshots: list[PolicySnapshot]) -> None:
    snapshot = snapshots[0]
    signal = snapshot.coefficients
    full = score_gradient(snapshot.model, snapshot.tokens, 1.0, signal)
    candidate, masked = int(snapshot.column("old_log_prob").argmin()), snapshot.weighted_advantages.nonzero()[::5, 0]
    key = ("some", len(masked))
    found = full_effects(snapshot, full, signal, 0.5, {candidate: {key: masked}})[candidate][key]
    without = signal.clone()
    without[masked] = 0
    after = []
    for coefficients in (signal, without):
        gradient = score_gradient(snapshot.model, snapshot.tokens, 1.0, coefficients)
        with stepped(snapshot.model, gradient, 0.5) as model:
            after.append(log_probs_of(model, snapshot.tokens, 1.0)[candidate])
    assert math.isclose(found, float(after[0] - after[1]), abs_tol=1e-5)


def test_sets_hold_what_their_names_say_and_cannot_be_filled_from_too_few() -> None:
    token_ids = torch.tensor([7, 7, 7, 8, 8, 7, 8, 9])
    probability = torch.tensor([0.5, 0.2, 0.99, 0.3, 0.99, 0.4, 0.1, 0.6])
    pool = torch.arange(1, 8)
    generator = torch.Generator().manual_seed(1)
    sets = mask_sets(0, pool, token_ids, probability, 2, generator)
    assert sets is not None
    assert set(sets["both"].tolist()) == {1, 5}
    assert set(sets["same token"].tolist()) == {1, 2, 5}
    assert set(sets["random"].tolist()) == set(range(1, 8))
    assert bool((probability[sets["low confidence"]] < 0.9).all())
    assert all(len(chosen.unique()) == len(chosen) and 0 not in chosen for chosen in sets.values())
    assert mask_sets(0, pool, token_ids, probability, 3, generator) is None


def test_head_norms_are_those_of_autograds_gradients() -> None:
    view = random_view()
    torch.testing.assert_close(head_norms(view), head_gradients(view).norm(dim=1))


def test_bins_by_hand() -> None:
    probability, mass = torch.tensor([0.05, 0.1, 0.55, 1.0]).double(), torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    assert by_bin(probability, mass).tolist() == [1, 2, 0, 0, 0, 3, 0, 0, 0, 4]


def test_shares_by_hand(snapshots: list[PolicySnapshot]) -> None:
    """Two tokens have advantage 1 and p = 1/4, -1 and p = 3/4; the others have none: masses 3/4 and 1/4."""
    snapshot = snapshots[0]
    rows = snapshot.rows.assign(advantage=0.0, side=0, weight=1.0)
    rows.loc[[0, 1], "advantage"], rows.loc[[0, 1], "side"] = [1.0, -1.0], [1, -1]
    rows.loc[[0, 1], "old_log_prob"] = torch.tensor([0.25, 0.75]).log().tolist()
    found = {(name, place): value for name, place, value in shares(dataclasses.replace(snapshot, rows=rows))}
    assert found["logits", 0.25] == pytest.approx(0.75, abs=1e-6)
    assert found["logits", 0.75] == found["logits punished", 0.75] == pytest.approx(0.25, abs=1e-6)
    assert found["logits rewarded", 0.75] == 0
    assert found["tokens", 0.25] == found["unlikely, tokens", 0.5] == 0.5
    assert found["unlikely, logits", 0.5] == pytest.approx(0.75, abs=1e-6)
    assert list(shares(dataclasses.replace(snapshot, rows=rows.assign(advantage=0.0)))) == []
