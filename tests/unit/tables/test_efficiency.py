"""Scores at equal cost: the table and figures of rewards over tokens, and of compute-performance curves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evals.core.comparisons import Controls
from evals.core.errors import UserError
from evals.figures.efficiency import write_compute_performance, write_cost_curves
from evals.tables.efficiency import (
    at_equal_tokens,
    efficiency_tables,
    fit_courses,
    read_courses,
    write_efficiency_table,
)
from tests.unit.synthetic_results import Study

CEILINGS = {"grpo": 0.6, "dapo": 0.9, "delta": 0.9}
TOKENS = {"grpo": 1000, "dapo": 1000, "delta": 3000}  # of a step
STEPS, PROBLEMS, SAMPLES = 24, 60, 16


@pytest.fixture
def validated(editable_study: Study) -> Study:
    """Trainings with known curves: C_mid is 6,000 tokens, B is 2; GRPO has a lower ceiling, DelTA pays three times."""
    generator = np.random.default_rng(8)
    base = generator.beta(2, 3, PROBLEMS)
    for run in editable_study.runs():
        if run["method"] == "base":
            continue
        directory = editable_study.results / "runs" / run["run"]
        tokens = TOKENS[run["method"]] * np.arange(1, STEPS + 1)
        rise = 1 / (1 + (6 * TOKENS[run["method"]] / tokens) ** 2)
        metrics = pd.read_parquet(directory / "metrics.parquet").sample(STEPS, replace=True, random_state=1)
        metrics = metrics.assign(step=np.arange(1, STEPS + 1), reward_mean=rise, optimizer_steps=2, seconds_step=0.5)
        metrics.assign(tokens_generated=TOKENS[run["method"]]).to_parquet(directory / "metrics.parquet", index=False)
        ceiling = CEILINGS[run["method"]] + 0.01 * run["seed"] - 0.015
        accuracies = base + (ceiling - base) * np.r_[0, rise][:, None]
        counts = [row.tolist() for row in generator.binomial(SAMPLES, accuracies)]
        frame = pd.DataFrame({"step": range(STEPS + 1), "correct_counts": counts, "samples_per_problem": SAMPLES})
        frame.to_parquet(directory / "validation.parquet", index=False)
    return editable_study


def test_every_method_stands_at_the_tokens_that_all_trainings_generated(validated: Study) -> None:
    tokens, methods = at_equal_tokens(validated.read(), validated.results / "runs")
    assert tokens == 24_000
    by_name = {row.method: method for row, method in methods.items()}
    assert (by_name["dapo"].steps, by_name["delta"].steps) == (48, 16)  # 24 and 8 rollout steps of 2 updates
    assert by_name["delta"].seconds == pytest.approx(4.0)
    rise = [1 / (1 + (6 / step) ** 2) for step in (22, 23, 24)]
    assert by_name["dapo"].by_seed == pytest.approx([np.mean(rise)] * 2)
    assert by_name["delta"].by_seed == pytest.approx([1 / (1 + (6 / 8) ** 2)] * 2)


def test_known_curves_are_recovered_and_told_apart(validated: Study) -> None:
    fits = fit_courses(validated.read(), validated.results / "runs")
    assert fits is not None
    curves = {row.method: curve for row, curve in fits.curves.items()}
    for method, ceiling in CEILINGS.items():
        assert curves[method].ceiling == pytest.approx([ceiling], abs=0.03)
        assert np.exp(curves[method].log_midpoint) == pytest.approx([6 * TOKENS[method]], rel=0.3)
    tables, frame = efficiency_tables(validated.read(), validated.results / "runs")
    assert [table.name for table in tables] == ["equal_tokens", "scaling", "scaling_versus"]
    verdicts = {row[0]: (row[3], row[6]) for row in tables[2].rows}
    assert verdicts["GRPO"][0] == "lower" and verdicts["DelTA"] == ("not distinguishable", "more")
    assert frame.set_index("method")["log_midpoint"]["delta"] == pytest.approx(np.log(18_000), abs=0.15)
    assert {row[0]: row[5] for row in tables[1].rows}["GRPO"] == "not reached"


def test_a_ceiling_is_not_identified_where_the_scores_do_not_bend(validated: Study) -> None:
    for seed in (1, 2):
        path = validated.results / "runs" / f"tiny-delta-s{seed}" / "validation.parquet"
        scores = pd.read_parquet(path)
        counts = [[round(SAMPLES * (0.1 + 0.7 * step / STEPS))] * PROBLEMS for step in scores["step"]]
        scores.assign(correct_counts=counts).to_parquet(path)
    tables, frame = efficiency_tables(validated.read(), validated.results / "runs")
    assert {row[0]: row[1] for row in tables[1].rows}["DelTA"] == "not identified"
    against = {row[0]: row[1:4] for row in tables[2].rows}
    assert [*against["DelTA"]] == ["not identified", "–", "not identified"] and against["GRPO"][2] == "lower"
    assert frame.set_index("method")["ceiling_p_holm"]["delta"] is None


def test_the_positive_control_is_left_out(validated: Study) -> None:
    results = replace(validated.read(), controls=Controls(positive="grpo", negative="delta"))
    tokens, methods = at_equal_tokens(results, validated.results / "runs")
    assert (tokens, [row.method for row in methods]) == (24_000, ["dapo", "delta"])
    fits = fit_courses(results, validated.results / "runs")
    assert fits is not None and [row.method for row in fits.courses] == ["dapo", "delta"]


def test_tables_and_figures_are_written_with_and_without_validation(validated: Study, tmp_path: Path) -> None:
    results, training = validated.read(), validated.results / "runs"
    write_cost_curves(results, training, tmp_path / "cost_curves")
    write_compute_performance(results, training, tmp_path / "compute_performance")
    write_efficiency_table(results, training, tmp_path / "efficiency")
    assert "Compute-performance curves" in (tmp_path / "efficiency.md").read_text()
    (training / "tiny-dapo-s1" / "validation.parquet").unlink()
    write_efficiency_table(results, training, tmp_path / "again")
    assert "Compute-performance curves" not in (tmp_path / "again.md").read_text()
    with pytest.raises(UserError, match="not every run has validation"):
        write_compute_performance(results, training, tmp_path / "again")


def test_a_short_training_has_a_reward_and_no_check_of_its_second_half(validated: Study) -> None:
    for run in validated.runs()[1:]:
        directory = validated.results / "runs" / run["run"]
        for name, rows in (("metrics", 4), ("validation", 5)):
            pd.read_parquet(directory / f"{name}.parquet")[:rows].to_parquet(directory / f"{name}.parquet")
    metrics = validated.results / "runs" / "tiny-delta-s1" / "metrics.parquet"
    pd.read_parquet(metrics).assign(tokens_generated=9_000).to_parquet(
        metrics
    )  # its first step is beyond the others' end
    tables, _ = efficiency_tables(validated.read(), validated.results / "runs")
    assert {row[0]: row[-1] for row in tables[1].rows}["GRPO"] == "–"
    assert not any("nan" in cell for table in tables for row in table.rows for cell in row)


def test_seeds_that_stopped_early_are_compared_as_far_as_all_go(validated: Study) -> None:
    directory = validated.results / "runs" / "tiny-delta-s1"
    for name, rows in (("metrics", 10), ("validation", 11)):
        pd.read_parquet(directory / f"{name}.parquet")[:rows].to_parquet(directory / f"{name}.parquet")
    results = validated.read()
    (delta,) = (row for row in results.conditions if row.method == "delta")
    course = read_courses(delta, validated.results / "runs")["tokens_generated"]
    assert course.compute.shape == (2, 10) and course.accuracies.shape == (2, 11, PROBLEMS)
    assert efficiency_tables(results, validated.results / "runs")[0]
