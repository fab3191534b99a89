"""avg@k, pass@k, maj@k, G-Pass@k and their standard errors against enumeration and published-style golden values."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.statistics.accuracy import (
    average_at_k,
    clustered_standard_error,
    g_pass_at_k,
    majority_at_k,
    pass_at_k,
    sampling_standard_error,
)

OUTPUTS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "outputs"
needs_shared = pytest.mark.skipif(not OUTPUTS.is_dir(), reason=f"{OUTPUTS} is not here")


def read_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (OUTPUTS / name).read_text(encoding="utf-8").splitlines()]


@given(st.integers(1, 7), st.data())
@settings(max_examples=40)
def test_pass_and_g_pass_equal_enumeration_of_all_draws(samples: int, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, samples), min_size=1, max_size=4))
    k = data.draw(st.integers(1, samples))
    needed = data.draw(st.integers(1, k))
    expected = []
    for count in counts:
        verdicts = [1] * count + [0] * (samples - count)
        draws = [sum(draw) >= needed for draw in itertools.combinations(verdicts, k)]
        expected.append(sum(draws) / len(draws))
    assert g_pass_at_k(counts, samples, k, needed / k) == pytest.approx(np.mean(expected), abs=1e-12)
    if needed == 1:
        assert pass_at_k(counts, samples, k) == pytest.approx(np.mean(expected), abs=1e-12)


@given(st.lists(st.integers(0, 32), min_size=2, max_size=40))
def test_pass_at_k_grows_with_k_from_the_average(counts: list[int]) -> None:
    values = [float(pass_at_k(counts, 32, k)) for k in (1, 2, 4, 8, 16, 32)]
    assert values[0] == pytest.approx(float(average_at_k(counts, 32)))
    assert all(low <= high + 1e-12 for low, high in itertools.pairwise(values))
    assert values[-1] == pytest.approx(np.mean(np.array(counts) > 0))


@pytest.mark.filterwarnings("error")
def test_chances_lie_between_0_and_1_and_grow_with_the_correct_samples() -> None:
    counts = np.arange(25)[:, None]
    for k in range(1, 25):
        for needed in range(1, k + 1):
            chances = g_pass_at_k(counts, 24, k, needed / k)
            assert chances.min() >= 0.0 and chances.max() <= 1.0
            assert (np.diff(chances) >= -1e-12).all()


def test_g_pass_threshold_survives_rounding() -> None:
    # 0.3 * 10 is just above 3 in floating point; three of ten must do.
    assert g_pass_at_k([3], 10, 10, 0.1 * 3) == pytest.approx(1.0)
    assert g_pass_at_k([3], 10, 10, 0.31) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        (["7", "7", "8"], [True, True, False], 1.0),
        (["7", "8"], [True, False], 0.5),
        (["7", "8", "9"], [True, False, False], 1 / 3),
        ([None, None, "7"], [False, False, True], 1.0),
        ([None, None], [False, False], 0.0),
        (["7", "7", "8", "8", "9"], [False, False, True, True, True], 0.5),
    ],
)
def test_majority_counts_ties_by_expectation(answers: list[str | None], correct: list[bool], expected: float) -> None:
    assert majority_at_k([answers], [correct]) == pytest.approx(expected)


@given(st.lists(st.sampled_from(["7", "8", "9", None]), min_size=1, max_size=7), st.data())
@settings(max_examples=60)
def test_majority_of_fewer_samples_equals_enumeration(answers: list[str | None], data: st.DataObject) -> None:
    verdicts = data.draw(st.lists(st.booleans(), min_size=len(answers), max_size=len(answers)))
    k = data.draw(st.integers(1, len(answers)))
    values = []
    for chosen in itertools.combinations(range(len(answers)), k):
        votes = [answers[index] for index in chosen if answers[index] is not None]
        winners = [vote for vote in set(votes) if votes.count(vote) == max(map(votes.count, votes))]
        shares = [
            np.mean([verdict for other, verdict in zip(answers, verdicts, strict=True) if other == vote])
            for vote in winners
        ]
        values.append(np.mean(shares) if shares else 0.0)
    assert majority_at_k([answers], [verdicts], k) == pytest.approx(np.mean(values), abs=1e-12)


def test_a_majority_of_one_is_the_average_and_more_voters_than_samples_are_refused() -> None:
    answers, correct = [["7", "8", "7", None]], [[True, False, True, False]]
    assert majority_at_k(answers, correct, 1) == pytest.approx(0.5)
    for k in (0, 5):
        with pytest.raises(ValueError, match=r"1\.\.4"):
            majority_at_k(answers, correct, k)


def test_sampling_error_equals_the_spread_of_simulated_scores() -> None:
    generator = np.random.default_rng(1)
    truth = generator.beta(1.0, 1.0, 25)
    counts = generator.binomial(8, truth, (20_000, 25))
    estimated = np.sqrt((sampling_standard_error(counts, 8) ** 2).mean())
    assert estimated == pytest.approx(average_at_k(counts, 8).std(), rel=0.02)


def test_clustered_error_equals_the_spread_over_draws_of_problems() -> None:
    generator = np.random.default_rng(2)
    counts = generator.binomial(8, generator.beta(1.0, 2.0, (20_000, 25)))
    estimated = np.sqrt((clustered_standard_error(counts / 8) ** 2).mean())
    assert estimated == pytest.approx(average_at_k(counts, 8).std(), rel=0.02)
    assert estimated > 1.5 * np.sqrt((sampling_standard_error(counts, 8) ** 2).mean())


@pytest.mark.parametrize(
    ("counts", "samples", "message"),
    [([5], 4, "0..4"), ([-1], 4, "0..4"), ([], 4, "no problems"), ([1], 0, "at least 1"), ([0.5], 4, "integers")],
)
def test_counts_that_cannot_be_are_refused(counts: list[int], samples: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        average_at_k(counts, samples)


def test_k_beyond_the_samples_is_refused() -> None:
    for k in (0, 5):
        with pytest.raises(ValueError, match=r"1\.\.4"):
            pass_at_k([1, 2], 4, k)


@needs_shared
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("qwen25math_math100x8", "qwen25math_math100x8.jsonl"),
        ("llama32-3b_aime2020_17x8", "llama32-3b_aime2020_8samples_17problems.jsonl"),
    ],
)
def test_golden_values_of_real_model_outputs(name: str, file: str) -> None:
    golden = json.loads((OUTPUTS / "reference_metrics.json").read_text())[name]
    rows = read_lines(file)
    verdicts = np.array([row["upstream_correct"] if "upstream_correct" in row else row["correct"] for row in rows])
    counts = verdicts.sum(axis=1)
    assert counts.shape == (golden["N"],)
    assert average_at_k(counts, 8) == pytest.approx(golden["avg"], abs=1e-12)
    assert clustered_standard_error(counts / 8) == pytest.approx(golden["se_question"], abs=1e-12)
    assert sampling_standard_error(counts, 8) == pytest.approx(golden["se_sampling_only"], abs=1e-12)
    for k, value in golden["pass_at"].items():
        assert pass_at_k(counts, 8, int(k)) == pytest.approx(value, abs=1e-12)


@needs_shared
def test_golden_majority_of_real_model_outputs() -> None:
    golden = json.loads((OUTPUTS / "reference_metrics.json").read_text())["qwen25math_math100x8"]
    rows = read_lines("qwen25math_math100x8.jsonl")
    value = majority_at_k([row["upstream_pred"] for row in rows], [row["upstream_correct"] for row in rows])
    assert value == pytest.approx(golden["maj_at_8_string_votes_expected_ties"], abs=1e-12)


def test_a_batch_of_benchmarks_has_the_estimates_of_its_rows() -> None:
    counts = np.random.default_rng(4).integers(0, 9, (2, 3, 5))
    for estimate in (
        lambda values: average_at_k(values, 8),
        lambda values: pass_at_k(values, 8, 3),
        lambda values: g_pass_at_k(values, 8, 4, 0.5),
        lambda values: clustered_standard_error(values / 8),
        lambda values: sampling_standard_error(values, 8),
    ):
        found = estimate(counts)
        assert found.shape == (2, 3)
        assert found == pytest.approx(np.array([[float(estimate(row)) for row in rows] for rows in counts]))


def test_estimates_by_hand_at_their_smallest() -> None:
    """One sample, two problems, two samples: the least that each needs."""
    assert average_at_k([0, 1], 1) == 0.5 and pass_at_k([1], 1, 1) == 1.0
    assert clustered_standard_error([0.0, 1.0]) == pytest.approx(0.5)
    assert sampling_standard_error([1], 2) == pytest.approx(0.5)
    for threshold in (0.0, 1.1):
        with pytest.raises(ValueError, match="threshold"):
            g_pass_at_k([1], 2, 2, threshold)
    with pytest.raises(ValueError, match="two problems"):
        clustered_standard_error([0.5])
    with pytest.raises(ValueError, match="two samples"):
        sampling_standard_error([1], 1)
    for nothing in (lambda: average_at_k(3, 4), lambda: majority_at_k([], [])):
        with pytest.raises(ValueError, match="no problems"):
            nothing()
    with pytest.raises(ValueError, match="zip"):
        majority_at_k([["7"]], [[True], [False]])
    with pytest.raises(ValueError, match="zip"):
        majority_at_k([["7", "8"]], [[True]])
