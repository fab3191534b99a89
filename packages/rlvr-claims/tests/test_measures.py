"""Small estimators, against numbers worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.tokens.table import CLASSES
from rlvr_claims.claims.cancellation_filter import CancellationFilter, halves, mean_overlap, opposed_term, update_norm
from rlvr_claims.claims.claim import draw_claim
from rlvr_claims.claims.delta_coefficients import DeltaCoefficients, class_enrichment, end_weights
from rlvr_claims.claims.findings import (
    CONTRADICTED,
    NOT_MEASURED,
    SUPPORTED,
    UNDECIDED,
    Findings,
    Summary,
    mean_interval,
    measure,
    summary_table,
)
from rlvr_claims.claims.output_layer_proxy import sign_agreement
from rlvr_claims.measures import flips, rank_correlation, sweep

MOVED = torch.tensor([0.3, -0.2, 0.0, 1e-7, 0.5, -0.4], dtype=torch.float64)
SIDES = torch.tensor([1, 1, 1, 1, -1, -1])


def flip_rates(displacements: torch.Tensor, sides: torch.Tensor, *thresholds: float) -> dict[tuple[int, float], float]:
    return {(row["side"], row["threshold"]): row["flip_rate"] for row in sweep(displacements, sides, thresholds)}


def test_boosted_suppressed_and_stable_by_hand() -> None:
    found = flips(MOVED, SIDES == 1, 1e-5)
    assert (found.boosted, found.suppressed, found.stable) == (0.25, 0.25, 0.5)
    assert flips(MOVED, SIDES == 1, 0.0).boosted == 0.5
    rates = flip_rates(MOVED, SIDES, 1e-5, 0.0, 0.45, 10.0)
    assert rates[1, 1e-5] == 0.5
    assert rates[1, 0.0] == pytest.approx(1 / 3)
    assert rates[-1, 0.45] == 1.0
    assert math.isnan(rates[1, 10.0])
    assert math.isnan(flips(MOVED, SIDES == 7, 0.0).boosted)


def test_swapping_sides_and_signs_swaps_the_flip_rates() -> None:
    assert flip_rates(-MOVED, -SIDES, 1e-5)[-1, 1e-5] == flip_rates(MOVED, SIDES, 1e-5)[1, 1e-5]


def test_sign_agreement_and_chance_by_hand() -> None:
    """Of four tokens that both move, two agree; 3/4 and 1/4 up: chance is 3/16 + 3/16."""
    first = torch.tensor([1.0, 1.0, 1.0, -1.0, 5.0])
    second = torch.tensor([1.0, -1.0, -1.0, -1.0, 1e-9])
    found = sign_agreement(first, second, 1e-6)
    assert (found.observed, found.expected, found.tokens) == (0.5, 0.375, 4)
    assert math.isnan(sign_agreement(first, second, 10.0).observed)


@pytest.mark.parametrize("value", [0.25, math.nan])
def test_statements_about_results_are_not_measured_in_texts_that_have_none(value: float) -> None:
    names = {DeltaCoefficients: "enrichment {}", CancellationFilter: "filtered"}
    for claim, quantity in names.items():
        kinds = {"format": 0.5, "result": value}
        rows = [
            {"unit": unit, "quantity": quantity.format(name), "name": name, "place": 0.0, "value": each}
            for unit in "ab"
            for name, each in kinds.items()
        ]
        measured = list(claim().measurements(pd.DataFrame(rows)))
        (result,) = [each for each in measured if "results" in each.statement]
        assert (
            (result.verdict == NOT_MEASURED)
            == math.isnan(value)
            == (result.quantity == "no token is of the class result")
        )
        notes = summary_table([Summary(title="A", method="", measurements=tuple(measured))]).notes
        assert (f"Not measured: {result.statement}: no token is of the class result." in notes) == math.isnan(value)
        assert any("format" in each.statement and each.verdict != NOT_MEASURED for each in measured)


def test_a_part_of_a_group_that_was_not_measured_is_left_out_of_the_figure() -> None:
    names = {"cross over self": ["whole group", "opposed pairs", "half a group", "overlap"]}
    names |= {key: [*CLASSES] for key in ("boosted jointly", "boosted by rewarded only", "filtered")}
    rows = [
        {"unit": unit, "quantity": quantity, "name": name, "value": 0.5}
        for unit in "ab"
        for quantity, of_quantity in names.items()
        for name in of_quantity
    ]
    claim, series = CancellationFilter(), pd.DataFrame(rows)
    figure = draw_claim(claim, Findings(list(claim.measurements(series)), series))
    assert "rewarded only" in [label.get_text().replace("\n", " ") for label in figure.axes[0].get_yticklabels()]


def test_enrichment_of_a_class_at_the_two_ends() -> None:
    coefficients = np.array([1.0, 2.0, 3.0, 4.0])
    classes = ["format", "format", "result", "result"]
    assert class_enrichment(coefficients, classes, "result", 0.5) == 1.0
    assert class_enrichment(coefficients, classes, "format", 0.25) == -1.0
    # With ties everywhere both ends hold everything alike.
    assert class_enrichment(np.ones(4), classes, "result", 0.25) == 0.0
    with pytest.raises(ValueError, match=r"at most 0\.5"):
        class_enrichment(coefficients, classes, "result", 0.6)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=20), st.floats(0.05, 0.5))
def test_weights_of_an_end_sum_to_one_and_favour_the_largest(values: list[int], fraction: float) -> None:
    array = np.array(values, dtype=np.float64)
    weights = end_weights(array, fraction)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= -1e-12).all()
    assert weights[array.argmax()] == weights.max()


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation(np.array([1.0, 2.0, 9.0]), np.array([0.1, 5.0, 5.1])) == pytest.approx(1.0)
    # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15).
    assert rank_correlation(np.arange(4.0), np.array([0.0, 2.0, 1.0, 3.0])) == pytest.approx(0.8)
    assert math.isnan(rank_correlation(np.ones(4), np.arange(4.0)))


def test_an_interval_and_its_verdicts_by_hand() -> None:
    """Of 1, 2, 3: mean 2, standard error 1 / sqrt(3), t quantile 4.3027 with two degrees of freedom."""
    low, high = mean_interval(np.array([1.0, 2.0, 3.0]))
    assert (low, high) == (pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-4), pytest.approx(4.4842, abs=1e-4))
    values = [1.0, 2.0, 3.0, math.nan]
    assert measure("", "", values, "u", null=-1).verdict == SUPPORTED
    assert measure("", "", values, "u", null=-1, direction="below").verdict == CONTRADICTED
    assert measure("", "", values, "u", null=0).verdict == UNDECIDED
    assert measure("", "", values, "u", null=5).verdict == CONTRADICTED
    assert measure("", "", values, "u", direction=None).verdict == ""
    assert measure("", "", values, "u").units == 3
    assert measure("", "", [1.0], "u").verdict == UNDECIDED


def test_two_opposed_rollouts_that_share_one_of_two_directions() -> None:
    """G_1 = (1, 1), G_2 = (1, -1)... A = (1, -1): the shared first direction cancels, (0, 2) is left."""
    gradients = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    found = update_norm(gradients @ gradients.T, torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert (found.self_term, found.cross_term) == (4.0, 0.0)
    shared = torch.tensor([[2.0, 1.0], [2.0, -1.0]], dtype=torch.float64)
    found = update_norm(shared @ shared.T, torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert (found.self_term, found.cross_term) == (10.0, -6.0)
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
    assert found.self_term + found.cross_term >= -1e-9


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
