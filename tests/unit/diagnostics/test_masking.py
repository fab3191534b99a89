"""The masking effect: against updates made separately, and a bandit by hand."""

from __future__ import annotations

import math

import torch

from rlvr.diagnostics.masking import MaskSetting, coupling_strength, full_effects, head_effects, mask_sets
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.probes import log_probs_of, score_gradient, stepped
from tests.unit.diagnostics.test_coupling import bandit, random_view


def test_masking_the_other_pull_of_an_arm_by_hand() -> None:
    """p = (0.5, 0.5), arm 0 pulled twice, step 0.2: logits differ by 0.2 after one pull and by 0.4 after both."""
    view = bandit([0.5, 0.5], [0, 0])
    found = head_effects(view, torch.ones(2, dtype=torch.float64), 0.2, {0: {"other": torch.tensor([1])}})
    expected = math.log((1 + math.exp(-0.2)) / (1 + math.exp(-0.4)))
    assert math.isclose(found[0]["other"], expected, rel_tol=1e-9)
    # To first order 0.2 kappa = 0.2 * 0.5.
    strength = coupling_strength(view, torch.ones(2, dtype=torch.float64), 0.2, 0, torch.tensor([1]))
    assert math.isclose(strength, 0.1, rel_tol=1e-9)


def test_head_effects_are_differences_of_two_updates_and_small_ones_are_the_dose() -> None:
    view = random_view()
    coefficients = torch.linspace(-1, 1, len(view.token_ids), dtype=torch.float64)
    masked = torch.tensor([1, 4])
    for step_size in (0.5, 1e-6):
        found = head_effects(view, coefficients, step_size, {2: {"some": masked}})[2]["some"]
        without = coefficients.clone()
        without[masked] = 0
        after, less = (
            view.log_probs(view.weight + step_size * view.gradient(each)) for each in (coefficients, without)
        )
        assert math.isclose(found, float(after[2] - less[2]), rel_tol=1e-6, abs_tol=1e-15)
    assert math.isclose(found, coupling_strength(view, coefficients, 1e-6, 2, masked), rel_tol=1e-4)


def test_full_effects_are_differences_of_two_updates(moments: list[Moment]) -> None:
    moment = moments[0]
    signal = moment.signal / len(moment.signal)
    full = score_gradient(moment.model, moment.tokens, 1.0, signal)
    candidate, masked = int(moment.column("old_log_prob").argmin()), moment.signal.nonzero()[::5, 0]
    found = full_effects(moment, full, signal, 0.5, {candidate: {"some": masked}})[candidate]["some"]
    without = signal.clone()
    without[masked] = 0
    after = []
    for coefficients in (signal, without):
        gradient = score_gradient(moment.model, moment.tokens, 1.0, coefficients)
        with stepped(moment.model, gradient, 0.5) as model:
            after.append(log_probs_of(model, moment.tokens, 1.0)[candidate])
    assert math.isclose(found, float(after[0] - after[1]), abs_tol=1e-5)


def test_sets_hold_what_their_names_say_and_cannot_be_filled_from_too_few() -> None:
    token_ids = torch.tensor([7, 7, 7, 8, 8, 7, 8, 9])
    probability = torch.tensor([0.5, 0.2, 0.99, 0.3, 0.99, 0.4, 0.1, 0.6])
    pool = torch.arange(1, 8)
    generator = torch.Generator().manual_seed(1)
    sets = mask_sets(0, pool, token_ids, probability, MaskSetting(2, 0.9), generator)
    assert sets is not None
    assert set(sets["both"].tolist()) == {1, 5}
    assert set(sets["same token"].tolist()) <= {1, 2, 5}
    assert bool((probability[sets["low confidence"]] < 0.9).all())
    assert all(len(chosen.unique()) == 2 and 0 not in chosen for chosen in sets.values())
    assert mask_sets(0, pool, token_ids, probability, MaskSetting(3, 0.9), generator) is None
