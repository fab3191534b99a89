"""Which runs make a pair, and what the pairs say, on runs made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr.diagnostics.interval import CONTRADICTED, SUPPORTED
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.learning_tax import (
    PRESERVED,
    RANDOM,
    STABLE,
    UNSTABLE,
    conditions_of,
    draw,
    measurements,
)
from rlvr.diagnostics.phenomena.run_ends import RunMetrics
from rlvr.study.named import resolve_studies
from rlvr.study.validation import read_yaml

CONFIG = Path(__file__).resolve().parents[3] / "config"


def test_the_shipped_runs_make_three_objectives_two_batchings_and_two_rates() -> None:
    """Read off the settings that the runs would have, not off their names."""
    studies = resolve_studies(read_yaml(CONFIG / "config.yaml"), "config.yaml")
    methods = studies.by_scope[""].config["diagnostics"]["compared"]
    runs = {}
    for method in methods:
        name = f"tiny-{method}-s1"
        content = studies.runs[name][0].resolved_run(name)
        runs[name] = _run(content)
    found = conditions_of(runs)
    for name, each in found.items():
        assert each["objective"] == name.split("-")[1].split("_")[0]
        assert each["batching"] == (PRESERVED if "query_preserved" in name else RANDOM)
        assert each["rate"] == (UNSTABLE if name.endswith("unstable-s1") else STABLE)
    assert len({tuple(each.values()) for each in found.values()}) == 12


def _run(content: Any) -> RunMetrics:
    training = type("Training", (), content["training"])
    run = type("Run", (), {**content, "training": training})
    return RunMetrics(run, pd.DataFrame())  # type: ignore[arg-type]


def _series(ends: dict[tuple[str, str, str], tuple[float, float, float]]) -> pd.DataFrame:
    """Objective, batching, rate -> drift, reward, entropy of two seeds that differ by 0.01."""
    rows = []
    for (objective, batching, rate), (drift, reward, entropy) in ends.items():
        for seed in (1, 2):
            values = {"drift": drift, "reward": reward, "entropy": entropy, "entropy at the start": 1.0}
            for quantity, value in values.items():
                rows.append([f"{objective}-{seed}", objective, batching, rate, seed, 60, quantity, value + 0.01 * seed])
            for quantity in ("reward curve", "entropy curve"):
                for step in (5, 10):
                    rows.append([f"{objective}-{seed}", objective, batching, rate, seed, step, quantity, 0.1 * step])
    return pd.DataFrame(rows, columns=["run", "objective", "batching", "rate", "seed", "step", "quantity", "value"])


ENDS = {
    ("grpo", RANDOM, STABLE): (2.0, 0.8, 0.5),
    ("grpo", PRESERVED, STABLE): (1.0, 0.9, 0.5),
    ("dfpo", RANDOM, STABLE): (3.0, 0.7, 0.4),
    ("dfpo", PRESERVED, STABLE): (1.5, 0.6, 0.4),
    ("grpo", RANDOM, UNSTABLE): (6.0, 0.3, 0.1),
}


def test_contrasts_are_means_over_pairs_that_share_everything_else() -> None:
    found = {each.statement: each for each in measurements(_series(ENDS))}
    # (3 - 2 + 1.5 - 1) / 2, over two seeds each.
    assert found["DFPO drifts less than GRPO (stable rate)"].estimate == pytest.approx(0.75)
    assert found["DFPO drifts less than GRPO (stable rate)"].units == 4
    assert found["DFPO drifts less than GRPO (stable rate)"].verdict == CONTRADICTED
    # (1 - 2 + 1.5 - 3) / 2
    assert found["Query-preserved batches drift less (stable rate)"].estimate == pytest.approx(-1.25)
    assert found["Query-preserved batches drift less (stable rate)"].verdict == SUPPORTED
    assert found["Query-preserved batches end with more reward (stable rate)"].estimate == pytest.approx(0.0)
    assert found["A higher learning rate ends with less reward"].estimate == pytest.approx(-0.5)
    assert found["A higher learning rate drifts more"].units == 2
    assert found["Entropy falls (dfpo, random mini-batches, stable rate)"].estimate == pytest.approx(-0.6)
    # Without runs on both sides nothing is said.
    assert "Query-preserved batches drift less (unstable rate)" not in found
    assert not [statement for statement in found if "GSPO" in statement]


def test_the_figure_has_a_row_of_panels_for_each_rate_and_names_the_ends() -> None:
    series = _series(ENDS)
    figure = draw(Findings("", "", measurements(series), series))
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    assert {f"{name}, {rate}" for name in ("Reward", "Entropy") for rate in (STABLE, UNSTABLE)} <= set(titles)
    title = " ".join(figure.get_suptitle().split())
    assert f"least under grpo, {PRESERVED}, {STABLE} (2.0" in title
    assert f"most under grpo, {RANDOM}, {UNSTABLE} (6" in title
