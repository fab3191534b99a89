"""pass@k by k: held to a count over all choices of responses, and the k from which the base model is ahead."""

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evals.core.records import BASE
from evals.tables.pass_at_k import Curve, curves, write_pass_at_k_table
from tests.unit.synthetic_results import Study


def test_a_curve_is_the_mean_of_all_choices_of_k_responses(synthetic_study: Study) -> None:
    results = synthetic_study.read()
    row = next(row for row in results.conditions if row.method == "dapo")
    estimated, samples = curves(results)[row], results.samples_per_problem
    k = 2
    expected = []
    for name in results.benchmarks:
        of_runs = []
        for run in row.runs:
            shares = []
            for correct in results.scores[run.run, name].correct_counts:
                right = [True] * correct + [False] * (samples - correct)
                drawn = list(combinations(range(samples), k))
                shares.append(sum(any(right[one] for one in choice) for choice in drawn) / len(drawn))
            of_runs.append(np.mean(shares))
        expected.append(np.mean(of_runs))
    assert estimated.values[k - 1] == pytest.approx(np.mean(expected))
    assert estimated.values[0] == pytest.approx(results.average(row).value)
    low, high = estimated.band(0.95)
    assert (low <= estimated.values).all() and (estimated.values <= high).all()


def test_the_base_model_is_ahead_from_the_first_k_at_which_its_curve_is_higher() -> None:
    def curve(values: list[float], base: Curve | None = None) -> Curve:
        return Curve(np.array(values), np.tile(values, (100, 1)), base)

    base = curve([0.2, 0.5, 0.8])
    assert curve([0.4, 0.5, 0.7], base).overtaken(0.95) == (3.0, (3.0, 3.0))
    assert curve([0.4, 0.6, 0.9], base).overtaken(0.95) == (math.inf, (math.inf, math.inf))
    assert base.overtaken(0.95) is None


def test_the_table_has_every_method_with_its_lead_over_the_base_model(synthetic_study: Study, tmp_path: Path) -> None:
    results = synthetic_study.read()
    write_pass_at_k_table(results, tmp_path / "pass_at_k")
    table = pd.read_csv(tmp_path / "pass_at_k.csv")
    assert table["method"].to_list() == [row.method for row in results.conditions]
    assert table["base_ahead_from"].isna().to_list() == [row.method == BASE for row in results.conditions]
    assert f"k = {results.samples_per_problem}" in (tmp_path / "pass_at_k.md").read_text()
