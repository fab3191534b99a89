"""Criteria against sums written as loops in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr_claims.decoding import draw
from rlvr_claims.decoding.draw import history_values, log_prob_differences
from rlvr_claims.settings import Criterion

HISTORY_CRITERIA = ["kl_trained_base", "kl_base_trained", "js", "jeffreys"]


def probabilities(logits: list[float]) -> list[float]:
    weights = [math.exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def divergence(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def reference(criterion: Criterion, base: list[float], trained: list[float], driver: list[float]) -> float:
    p, q = probabilities(trained), probabilities(base)
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    match criterion:
        case "entropy":
            return -sum(a * math.log(a) for a in probabilities(driver))
        case "kl_trained_base":
            return divergence(p, q)
        case "kl_base_trained":
            return divergence(q, p)
        case "jeffreys":
            return (divergence(p, q) + divergence(q, p)) / 2
        case _:
            return (divergence(p, middle) + divergence(q, middle)) / 2


BASE = [[0.0, 0.0, 0.0, 0.0], [5.0, -3.0, 0.5, 1.0], [-8.0, 2.0, 2.0, 2.5], [30.0, 31.0, 29.0, 10.0]]
TRAINED = [[1.0, -1.0, 0.0, 2.0], [5.0, -3.0, 0.5, 1.0], [2.0, 2.0, -6.0, 2.5], [29.5, 31.0, 28.0, 14.0]]


@pytest.mark.parametrize("criterion", [*HISTORY_CRITERIA, "entropy"])
@pytest.mark.parametrize("driver", [BASE, TRAINED])
def test_history_criteria_are_the_sums_of_their_definitions(criterion: Criterion, driver: list[list[float]]) -> None:
    expected = [reference(criterion, *rows) for rows in zip(BASE, TRAINED, driver, strict=True)]
    values = history_values(criterion, torch.tensor(BASE), torch.tensor(TRAINED), torch.tensor(driver))
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-6)


def test_the_assistants_entropy_is_that_of_the_model_that_does_not_drive() -> None:
    base, trained = torch.tensor(BASE), torch.tensor(TRAINED)
    for driver, other in ((base, TRAINED), (trained, BASE)):
        expected = [reference("entropy", [0.0], [0.0], row) for row in other]
        values = history_values("assistant_entropy", base, trained, driver)
        np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-6)


def test_log_prob_difference_is_trained_minus_base_of_the_token_drawn() -> None:
    row_of, tokens = [3, 0, 0, 2, 1], [3, 1, 3, 0, 2]
    expected = [
        math.log(probabilities(TRAINED[row])[token]) - math.log(probabilities(BASE[row])[token])
        for row, token in zip(row_of, tokens, strict=True)
    ]
    values = log_prob_differences(torch.tensor(BASE), torch.tensor(TRAINED), torch.tensor(row_of), torch.tensor(tokens))
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-6)


def test_a_block_of_rows_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    base, trained = torch.randn(2, 7, 11)
    rows, tokens = torch.arange(7), torch.arange(7)
    whole = [history_values(criterion, base, trained, base) for criterion in [*HISTORY_CRITERIA, "entropy"]]
    whole.append(log_prob_differences(base, trained, rows, tokens))
    monkeypatch.setattr(draw, "_BLOCK_ELEMENTS", 25)
    parts = [history_values(criterion, base, trained, base) for criterion in [*HISTORY_CRITERIA, "entropy"]]
    parts.append(log_prob_differences(base, trained, rows, tokens))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)


LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=5, max_size=5)


@given(LOGITS, LOGITS, st.floats(-50, 50, width=32))
def test_properties_of_divergences(base: list[float], trained: list[float], shift: float) -> None:
    """Not below zero, JS not above log 2 and symmetric, blind to a constant in the logits, zero for equal models."""
    p, q = torch.tensor([trained]), torch.tensor([base])
    for criterion in HISTORY_CRITERIA:
        value = float(history_values(criterion, q, p, q))
        assert value >= 0
        assert float(history_values(criterion, q + shift, p, q)) == pytest.approx(value, rel=1e-3, abs=1e-3)
        assert float(history_values(criterion, p, p, p)) == pytest.approx(0, abs=1e-5)
    js = float(history_values("js", q, p, q))
    assert js <= math.log(2) + 1e-5
    assert js == pytest.approx(float(history_values("js", p, q, q)), rel=1e-4, abs=1e-5)
    both = [float(history_values(criterion, q, p, q)) for criterion in HISTORY_CRITERIA]
    assert both[0] == pytest.approx(float(history_values("kl_base_trained", p, q, q)), rel=1e-4, abs=1e-5)
    assert both[3] == pytest.approx((both[0] + both[1]) / 2, rel=1e-4, abs=1e-5)
