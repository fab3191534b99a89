"""Token values against exact enumeration, and by hand."""

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from evals.core.files import write_json
from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import Checkpoint
from evals.grading import GradingPool
from rlvr_claims import counterfactual
from rlvr_claims.claims import delta_coefficients
from rlvr_claims.claims.learning_tax import log_odds, mean_drift
from rlvr_claims.claims.token_value import (
    COMPOSITIONS,
    coefficients_of_smaller_groups,
    compositions_of,
    displacements_by_block,
    gap,
    gaps_of_top,
    parts_of_batch,
    sampling_error,
    shares_boosted,
)
from rlvr_claims.counterfactual import Place, TokenValue, token_values
from rlvr_claims.policy import PolicySnapshot
from rlvr_claims.probes import log_probs_of, score_gradient, stepped


def test_value_and_its_error_by_hand() -> None:
    """Q = 0.8, V = 0.5, pi = 0.4: V = 0.4 * 0.8 + 0.6 * 0.3, so the alternatives' accuracy is 0.3 and the value 0.5."""
    found = TokenValue(0.8, 0.5, 0.4, 100)
    assert found.value == pytest.approx(0.5)
    # (1 - pi)^-1 sqrt(81/102 * 21/102 / 100 + 51/102 * 51/102 / 100)
    expected = math.sqrt(81 / 102 * 21 / 102 / 100 + 0.25 / 100) / 0.6
    assert found.standard_error == pytest.approx(expected)
    assert TokenValue(1.0, 1.0, 0.4, 100).standard_error > 0


def test_values_of_the_answers_digit_are_those_of_enumeration(study_files: Path) -> None:
    r"""After ``\boxed{`` a response that counts is the gold digit, ``}`` and the end: three factors, known exactly."""
    checkpoint = study_files / "base" / "tiny" / "checkpoint"
    model = Checkpoint(checkpoint)
    tokenizer, decoder, (end,) = model.tokenizer, model.decoder("cpu"), model.end_tokens
    sampler = model.model("cpu").sampler()
    prompt = tokenizer.encode("Compute 3+4 from left to right, modulo 10.\n").ids
    before = tokenizer.encode("3+4=7\n\\boxed{").ids

    def distribution(tokens: list[int]) -> torch.Tensor:
        cache = decoder.new_cache(1, len(tokens))
        positions = torch.arange(len(tokens))[None]
        causal = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)[None, None]
        return decoder.forward(torch.tensor([tokens]), positions, causal, cache)[0].double().softmax(-1)

    digits = [tokenizer.token_to_id(str(digit)) for digit in range(10)]
    brace = tokenizer.token_to_id("}")
    first = distribution([*prompt, *before])
    # The gold is a digit that the model is unsure of, so that there is something to estimate.
    unsure = min(digits, key=lambda token: abs(float(first[token]) - 0.5))
    other = max((token for token in digits if token != unsure), key=lambda token: float(first[token]))
    closing = float(distribution([*prompt, *before, unsure])[brace])
    closing *= float(distribution([*prompt, *before, unsure, brace])[end])
    gold = str(digits.index(unsure))
    places = [Place(prompt, before, token, float(first[token]), gold, f"place/{token}") for token in (unsure, other)]
    samples = 3000
    parameters = SamplingParameters(max_new_tokens=len(before) + 3, sampling_batch_size=6000)
    with GradingPool(workers=1) as pool:
        found = token_values(sampler, tokenizer, places, parameters, [end], samples, pool)
    prefix = float(first[unsure]) * closing
    for value, accuracy in zip(found, (closing, 0.0), strict=True):
        error = 4 * math.sqrt(0.25 / samples)
        assert abs(value.with_token - accuracy) < error
        assert abs(value.of_prefix - prefix) < error
        exact = (accuracy - prefix) / (1 - value.probability)
        assert abs(value.value - exact) < 4 * value.standard_error + 1e-3


def test_a_response_that_is_whole_already_has_the_accuracy_of_itself(study_files: Path) -> None:
    checkpoint = study_files / "base" / "tiny" / "checkpoint"
    model = Checkpoint(checkpoint)
    tokenizer, sampler, (end,) = model.tokenizer, model.model("cpu").sampler(), model.end_tokens
    ends = [end, tokenizer.token_to_id("+")]
    prompt = tokenizer.encode("Compute 3+4 from left to right, modulo 10.\n").ids
    before = tokenizer.encode("3+4=7\n\\boxed{7}").ids
    places = [Place(prompt, before, token, 0.9, "7", f"whole/{token}") for token in ends]
    with GradingPool(workers=1) as pool:
        found = token_values(
            sampler, tokenizer, places, SamplingParameters(max_new_tokens=len(before) + 4), ends, 8, pool
        )
    assert [value.with_token for value in found] == [1.0, 1.0]


def test_every_end_token_of_the_model_ends_a_continuation(
    snapshots: list[PolicySnapshot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``generation_config.json`` often names another token than the tokenizer does."""
    snapshot, given = snapshots[0], list[Any]()
    shutil.copytree(snapshot.run.base, tmp_path / "base")
    write_json(tmp_path / "base" / "checkpoint" / "generation_config.json", {"eos_token_id": [3, 5]})
    run = snapshot.run.model_copy(update={"base": tmp_path / "base"})

    def keep(*arguments: Any) -> list[TokenValue]:
        given.extend(arguments)
        return [TokenValue(1.0, 1.0, 0.5, 1)] * len(arguments[2])

    monkeypatch.setattr(counterfactual, "token_values", keep)
    with GradingPool(workers=1) as pool:
        counterfactual.value_tokens(dataclasses.replace(snapshot, run=run), pool)
    assert {3, 5} <= set(given[4])


def test_the_gap_by_hand() -> None:
    rows = pd.DataFrame({"value": [1.0, 0.5, -0.5, 9.0], "u": [0.1, 0.2, -0.3, 0.0]})
    assert gap(rows, "u") == 1.25
    assert math.isnan(gap(rows[:2], "u"))


def test_the_gap_along_entropy_and_the_boosted_share_of_the_most_valued_by_hand() -> None:
    """Four tokens of update a by falling entropy, 1 and 0 for the first two, and one of b, which has no gap."""
    rows = pd.DataFrame(
        {
            "unit": ["a", "a", "a", "a", "b"],
            "entropy": [4.0, 3.0, 2.0, 1.0, 1.0],
            "value": [1.0, 0.0, 0.5, 0.25, 2.0],
            "as_trained": [0.1, -0.1, 0.1, -0.1, -0.1],
        }
    )
    half, whole = gaps_of_top(rows, 0.5), gaps_of_top(rows, 1.0)
    assert half[0] == 1.0 and whole[0] == 0.75 - 0.125
    assert math.isnan(half[1]) and math.isnan(whole[1])
    assert math.isnan(gaps_of_top(rows, 0.25)[0])  # a boosted token alone
    assert shares_boosted(rows, "as_trained")[0] == 1.0  # a's most valued quarter is its first token
    assert math.isnan(shares_boosted(rows, "as_trained")[1])  # no token is in the top quarter of one


def test_prompts_are_cut_into_parts_and_named_by_their_rewards(snapshots: list[PolicySnapshot]) -> None:
    snapshot = snapshots[0]
    groups = torch.tensor([7, 7, 3, 3, 9, 9, 1, 1])
    assert parts_of_batch(groups, 2).tolist() == [1, 1, 0, 0, 1, 1, 0, 0]
    assert parts_of_batch(groups, 8).unique().numel() == 4  # a prompt is never parted
    found = [COMPOSITIONS[number] for number in compositions_of(snapshot)]
    right = snapshot.of_rollouts("reward")
    for rollout, name in enumerate(found):
        share = float(right[snapshot.groups == snapshot.groups[rollout]].mean())
        assert name == ("sparse" if share <= 0.25 else "saturated" if share >= 0.75 else "balanced")


def test_a_token_moves_by_the_step_of_its_own_block(snapshots: list[PolicySnapshot]) -> None:
    """One block is the joint step; of two, each moves its tokens as a batch of its rollouts alone does."""
    snapshot = snapshots[0]
    before = log_probs_of(snapshot.model, snapshot.tokens, snapshot.temperature)

    def moved(kept: torch.Tensor) -> torch.Tensor:
        own = kept[snapshot.rollout_of]
        coefficients = torch.where(own, snapshot.weighted_advantages, 0.0) / int(own.sum())
        gradient = score_gradient(snapshot.model, snapshot.tokens, snapshot.temperature, coefficients)
        with stepped(snapshot.model, gradient, 0.3) as model:
            return (log_probs_of(model, snapshot.tokens, snapshot.temperature) - before)[own]

    whole = torch.zeros_like(snapshot.groups)
    halves = parts_of_batch(snapshot.groups, 2)
    for blocks in (whole, halves):
        found = displacements_by_block(snapshot, blocks, 0.3, before)
        for block in blocks.unique():
            kept = blocks == block
            torch.testing.assert_close(found[kept[snapshot.rollout_of]], moved(kept), atol=2e-5, rtol=1e-3)
    assert not torch.allclose(found, displacements_by_block(snapshot, whole, 0.3, before), atol=1e-4)


def test_the_sampling_error_of_a_gap_by_hand() -> None:
    """Means of two boosted tokens and of one suppressed: variances 0.09 + 0.16 over 4, and 0.25."""
    rows = pd.DataFrame({"standard_error": [0.3, 0.4, 0.5, 9.0], "u": [0.1, 0.2, -0.3, 0.0]})
    assert sampling_error(rows, "u") == pytest.approx(math.sqrt(0.25 / 4 + 0.25))
    assert math.isnan(sampling_error(rows[:2], "u"))


def test_a_weight_that_goes_with_the_value_has_a_correlation_of_one_on_either_side(
    snapshots: list[PolicySnapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values made from the weights: the same order in rewarded rollouts, the opposite one in punished ones."""
    snapshot = snapshots[0]
    weight = 1.0 + torch.arange(len(snapshot.rows)) / len(snapshot.rows)
    weighted = dataclasses.replace(snapshot, rows=snapshot.rows.assign(weight=weight.numpy()))
    sides = weighted.column("side")

    def made(each: PolicySnapshot, pool: GradingPool) -> list[tuple[int, TokenValue]]:
        rows = (sides != 0).nonzero()[:, 0].tolist()
        return [(row, TokenValue(float(sides[row] * weight[row] ** 3), 0.0, 0.0, 1)) for row in rows]

    monkeypatch.setattr(counterfactual, "value_tokens", made)
    with GradingPool(workers=1) as pool:
        found = {row["quantity"]: row["value"] for row in delta_coefficients.value_rows(weighted, pool)}
    assert found["correlation with value rewarded"] == pytest.approx(1.0)
    assert found["correlation with value punished"] == pytest.approx(-1.0)
    assert found["value rewarded 0"] < found["value rewarded 1"] < found["value rewarded 2"]
    assert found["value punished 0"] > found["value punished 1"] > found["value punished 2"]


def test_groups_of_all_rollouts_have_the_runs_own_signal_and_smaller_ones_sum_to_zero(
    snapshots: list[PolicySnapshot],
) -> None:
    snapshot = snapshots[0]
    torch.testing.assert_close(coefficients_of_smaller_groups(snapshot, 8), snapshot.coefficients, atol=1e-6, rtol=1e-4)
    small = coefficients_of_smaller_groups(snapshot, 2)
    first = torch.tensor(
        [int((snapshot.rollout_of == rollout).nonzero()[0, 0]) for rollout in range(len(snapshot.groups))]
    )
    for group in snapshot.groups.unique():
        assert abs(float(small[first[snapshot.groups == group]].sum())) < 1e-6
    assert bool((small[snapshot.column("sample") >= 2] == 0).all())


def test_log_odds_and_drift_by_hand() -> None:
    half, nine_tenths = math.log(0.5), math.log(0.9)
    torch.testing.assert_close(
        log_odds(torch.tensor([half, nine_tenths])), torch.tensor([0.0, math.log(9)], dtype=torch.float64)
    )
    before, after = torch.tensor([half, half, half]), torch.tensor([nine_tenths, math.log(0.1), -9.0])
    assert mean_drift(before, after, torch.tensor([True, True, False])) == pytest.approx(math.log(9), rel=1e-6)
    assert bool(torch.isfinite(log_odds(torch.tensor([0.0]))).all())
