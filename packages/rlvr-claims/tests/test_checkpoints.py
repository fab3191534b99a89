"""The claims that two checkpoints and responses are enough for, on tables made by hand and from end to end."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evals.core.files import write_parquet
from evals.core.manifest import Manifest, hash_files
from rlvr.tokens.table import COMPARISON_COLUMNS, COMPARISON_KIND
from rlvr_claims.claims.base import claim_names
from rlvr_claims.claims.claim import draw_claim
from rlvr_claims.claims.findings import SUPPORTED, UNDECIDED, Findings, Measurement, Summary, mean_interval, write_table
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.token_flipping import TokenFlippingOfCheckpoints
from rlvr_claims.claims.update_direction import UpdateDirectionOfCheckpoints
from tests.claims.checkpoint_pair import main, make_pair

BY_HAND = {
    # Problem -> whether right, base probability and log-prob difference of each token.
    "one": [(1, 0.9, 0.0), (1, 0.5, 0.2), (1, 0.1, -0.4), (1, 0.2, 0.3), (0, 0.8, 0.02), (0, 0.3, -0.25)],
    "two": [(1, 0.65, 0.5), (1, 0.75, 0.05), (0, 0.45, 0.6), (0, 0.55, -0.3), (0, 0.55, -0.3), (0, 0.95, 0.05)],
    "three": [(0, 0.5, -1.5)],
}


def table(directory: Path, rows: dict[str, list[tuple[int, float, float]]], weights: str = "w", **more: float) -> Path:
    """A comparison whose tokens are all responses of one token; ``more`` are columns."""
    frame = pd.DataFrame(
        {
            "problem": problem, "sample": number, "position": 0, "token": 1, "text": "1",
            "base_log_prob": math.log(probability), "trained_log_prob": math.log(probability) + difference,
            "base_entropy": 0.5, "trained_entropy": 0.5, "kl_trained_base": 0.1, "kl_base_trained": 0.1,
            "reward": float(right), **more,
        }
        for problem, tokens in rows.items()
        for number, (right, probability, difference) in enumerate(tokens)
    ).astype(COMPARISON_COLUMNS)  # fmt: skip
    path = directory / "tokens.parquet"
    write_parquet(path, frame)
    inputs = {"samples.jsonl": directory.name, "base/model.safetensors": weights, "trained/model.safetensors": weights}
    Manifest(COMPARISON_KIND, inputs, hash_files(directory, path), {"temperature": 1.0}, "").write(
        directory / "manifest.json"
    )
    return directory


def by_quantity(findings: Findings) -> dict[str, Measurement]:
    return {each.quantity: each for each in findings.measurements}


def test_flips_of_right_and_wrong_responses_by_hand(tmp_path: Path) -> None:
    """At 0.1 nats; problem three has no right response, so it counts for wrong ones alone."""
    findings = TokenFlippingOfCheckpoints().measure(Inputs(comparison=table(tmp_path / "x", BY_HAND)))
    found = by_quantity(findings)
    expected = {
        ("right", "boosted"): [2 / 4, 1 / 2],
        ("right", "suppressed"): [1 / 4, 0.0],
        ("right", "stable"): [1 / 4, 1 / 2],
        ("wrong", "boosted"): [0.0, 1 / 4, 0.0],
        ("wrong", "suppressed"): [1 / 2, 2 / 4, 1.0],
        ("wrong", "stable"): [1 / 2, 1 / 4, 0.0],
    }
    for (side, fraction), values in expected.items():
        each = found[f"{fraction} fraction, {side} responses"]
        assert each.estimate == pytest.approx(np.mean(values))
        assert (each.low, each.high) == pytest.approx(mean_interval(np.array(values)))
        assert (each.units, each.unit, each.verdict) == (len(values), "problems", "")
    assert found["flip rate, of tokens that moved, right responses"].estimate == pytest.approx((1 / 3 + 0) / 2)
    assert found["flip rate, of tokens that moved, wrong responses"].estimate == pytest.approx((0 + 1 / 3 + 0) / 3)
    boosted, suppressed = findings.measurements[:2]
    assert (boosted.estimate, boosted.units) == (pytest.approx((1 / 2 + 1 / 4) / 2), 2)
    assert (suppressed.estimate, suppressed.units) == (pytest.approx((1 / 4 + 1 / 2) / 2), 2)
    assert boosted.verdict == UNDECIDED
    # With no threshold what did not move at all is still stable; with a large one nearly everything is.
    series = findings.series.set_index(["problem", "side", "threshold"])
    assert series.loc[("one", 1, 0.0), "stable"] == pytest.approx(1 / 4)
    assert series.loc[("two", -1, 0.0), "boosted"] == pytest.approx(2 / 4)
    assert series.loc[("three", -1, 1.0), "suppressed"] == 1.0
    assert series.loc[("one", 1, 1.0), "stable"] == 1.0


def test_moved_tokens_and_their_probability_by_hand(tmp_path: Path) -> None:
    """Of problem one 4 of 6 tokens move beyond 0.1 nats, of two 4 of 6, of three the only one."""
    findings = UpdateDirectionOfCheckpoints().measure(Inputs(comparison=table(tmp_path / "x", BY_HAND)))
    moved, correlation = findings.measurements
    assert (moved.estimate, moved.units) == (pytest.approx((4 / 6 + 4 / 6 + 1) / 3), 3)
    # Ranks of |difference| 1 3 6 5 2 4 against those of the probability, 6 4 1 2 5 3; one token has no rank.
    values = UpdateDirectionOfCheckpoints().values(findings.series)["correlation with probability"]
    expected = 1 - 6 * ((1 - 6) ** 2 + (3 - 4) ** 2 + (6 - 1) ** 2 + (5 - 2) ** 2 + (2 - 5) ** 2 + (4 - 3) ** 2) / 210
    assert values["one"] == pytest.approx(expected)
    assert correlation.units == 2
    bins = findings.series[findings.series["quantity"] == "moved by probability"].set_index(["problem", "fraction"])
    assert bins.loc[("two", 0.55), "value"] == pytest.approx(0.3)
    histogram = findings.series[findings.series["quantity"] == "histogram difference given"]
    assert histogram["value"].sum() == pytest.approx(1.0)
    assert histogram.set_index("fraction")["value"].loc[lambda each: each.index < -1.45].sum() == pytest.approx(1 / 13)


def test_the_base_model_s_own_responses_add_what_tells_the_two_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every token of the trained model's responses gained, every one of the base's lost; KL and entropy say nothing."""
    gained = {name: [(1, 0.5, 0.2), (0, 0.4, 0.05 + shift)] for shift, name in enumerate(("one", "two", "three"))}
    lost = {name: [(1, 0.5, -0.2), (0, 0.4, -0.3)] for name in gained}
    trained, base = table(tmp_path / "trained", gained), table(tmp_path / "base", lost)
    findings = UpdateDirectionOfCheckpoints().measure(Inputs(comparison=trained, base_comparison=base))
    apart = {each.quantity: each for each in findings.measurements if "AUC" in each.quantity}
    assert {name: each.estimate for name, each in apart.items()} == pytest.approx(dict.fromkeys(apart, 0.5))
    assert len(apart) == 2
    assert findings.measurements[0].estimate == pytest.approx((3 / 4 + 1 + 1) / 3)
    figure = draw_claim(UpdateDirectionOfCheckpoints(), findings)
    assert "base model's responses" in [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    other = table(tmp_path / "other", lost, weights="v")
    arguments = ["measure", "update_direction", "--comparison", str(trained), "--base-comparison", str(other)]
    assert main([*arguments, "--out", str(tmp_path / "o"), "--figure", str(tmp_path / "f")]) == 2
    assert f"--base-comparison: {other} is of other checkpoints" in capsys.readouterr().err


def test_a_clear_difference_is_supported(tmp_path: Path) -> None:
    rows = {str(number): [(1, 0.5, 0.5), (0, 0.5, -0.5), (0, 0.5, 0.5)] for number in range(4)}
    rows["4"] = [(1, 0.5, 0.5), (0, 0.5, -0.5)]
    findings = TokenFlippingOfCheckpoints().measure(Inputs(comparison=table(tmp_path / "x", rows)))
    assert [each.verdict for each in findings.measurements[:2]] == [SUPPORTED, SUPPORTED]
    title = " ".join(draw_claim(TokenFlippingOfCheckpoints(), findings).get_suptitle().split())
    assert title.startswith("100% of the tokens of right responses are boosted, 0% suppressed; 40% of the tokens")


def test_a_pair_and_graded_samples_become_findings_figures_and_a_table(tmp_path: Path) -> None:
    compared = make_pair(tmp_path / "pair").compared(tmp_path / "compared")
    for claim in claim_names(of_checkpoints=True):
        out, figure = tmp_path / claim, tmp_path / "figures" / claim
        arguments = ["measure", claim, "--comparison", str(compared), "--out", str(out), "--figure", str(figure)]
        assert main(arguments) == 0
        found = Summary.read(tmp_path / f"{claim}.json")
        assert found.title and found.method and found.measurements
        assert all(each.unit == "problems" and each.units <= 2 for each in found.measurements)
        assert figure.with_name(f"{claim}.png").stat().st_size > 10_000
        assert str(compared / "tokens.parquet") in (tmp_path / f"{claim}.manifest.json").read_text()
    findings = [tmp_path / f"{claim}.json" for claim in claim_names(of_checkpoints=True)]
    write_table(findings, "figures", tmp_path / "table")


def test_what_a_comparison_cannot_say_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = make_pair(tmp_path / "pair")
    compared = pair.compared(tmp_path / "compared", graded=False)
    ends = ["--out", str(tmp_path / "o"), "--figure", str(tmp_path / "f")]
    own = ["--comparison", str(compared), *ends]
    capsys.readouterr()

    def refusal(*arguments: str) -> str:
        assert main(["measure", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    for claim in set(claim_names()) - set(claim_names(of_checkpoints=True)):
        error = refusal(claim, *own)
        assert f"--comparison: {claim} cannot be measured on it; accepted: token_flipping and update_direction" in error
    assert f"{compared}/tokens.parquet: has no rewards; accepted: one made with" in refusal("token_flipping", *own)
    assert "--steps: is for replayed runs; accepted: with --tables" in refusal("token_flipping", *own, "--steps", "1")
    both = [*own, "--base-comparison", str(compared)]
    assert "--base-comparison: is given for token_flipping; accepted: update_direction --comparison" in refusal(
        "token_flipping", *both
    )
    (compared / "tokens.parquet").write_bytes(b"changed")
    assert "its bytes differ from" in refusal("update_direction", *own)
