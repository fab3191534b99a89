"""The table and the figure of a factorial: effects, their sizes by model, parts of a difference, controls."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evals.core.config.methods import Factorial
from evals.core.config.sections import Statistics
from evals.core.records import Way
from evals.figures.designs import draw_factorial, write_design_figure
from evals.scores.factors import write_factorial_table
from evals.statistics.factorial import Design
from tests.unit.scores.test_compare_command import SAMPLES
from tests.unit.synthetic_results import score_row, write_scores_file

FACTORIAL = Factorial.parse(
    {
        "factors": [
            {"name": "ratio", "levels": [{"level": "token"}, {"level": "sequence"}]},
            {"name": "clip", "levels": [{"level": "yes"}, {"level": "no"}]},
        ],
        "parts": {"Both": {"ratio": "sequence", "clip": "no"}, "Ratio": {"ratio": "sequence"}},
    },
    "factorial",
)
CELLS = ["plain", "plain_01", "plain_10", "plain_11"]
LEVELS = {"w48": [20, 20, 12, 12], "tiny": [20, 20, 12, 20]}
"""Samples of 32 that are right: the sequence ratio lowers all, but without the clip on the second model."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, generator, rows = tmp_path_factory.mktemp("factorial"), np.random.default_rng(1), []
    for model, levels in LEVELS.items():
        for method, level in zip([*CELLS, "half"], [*levels, 4], strict=True):
            for seed in (1, 2, 3):
                run = {"run": f"{model}-{method}-s{seed}", "model": model, "method": method, "seed": seed}
                rows.append(score_row(run, np.clip(level + generator.integers(-3, 4, 30), 0, SAMPLES), SAMPLES))
    scores = write_scores_file(root / "scores/easy.json", rows, SAMPLES, extraction="last_statement")
    statistics = Statistics(seed=1, resamples=100, permutations=100)
    design = Design.of(FACTORIAL)
    named = zip(CELLS, map(design.levels, design.cells), strict=True)
    sheet = [Way(name=name, method=name, title=name, levels=levels) for name, levels in named]
    sheet.append(Way(name="half", method="half", title="Half the steps"))
    write_factorial_table([scores], sheet, FACTORIAL, statistics, root / "factorial")
    return root / "factorial.csv"


def test_effects_parts_and_controls_have_their_verdicts(table: Path) -> None:
    rows = pd.read_csv(table).set_index(["kind", "model", "name"])
    effect = rows["effect"]
    assert effect["main effect", "w48", "ratio sequence"] == pytest.approx(-8 / 32, abs=0.02)
    assert effect["interaction", "tiny", "ratio sequence × clip no"] == pytest.approx(8 / 32, abs=0.04)
    assert effect["size", "tiny less w48", "ratio sequence × clip no"] == pytest.approx(8 / 32, abs=0.05)
    parts = [effect["part", "tiny", f"Both: {factor}"] for factor in ("ratio", "clip")]
    assert sum(parts) == pytest.approx(effect["part", "tiny", "Both"]) and parts[0] == pytest.approx(-0.125, abs=0.03)
    assert list(rows.loc["part", "tiny"].index) == ["Both", "Both: ratio", "Both: clip", "Ratio"]
    verdicts = rows["verdict"]
    assert verdicts["main effect", "w48", "clip no"] == "not distinguishable"
    assert verdicts["interaction", "tiny", "ratio sequence × clip no"] == "raises"
    assert verdicts["control", "w48", "Half the steps"] == "lowers"
    assert (rows["p_value_holm"] >= rows["p_value"]).all()
    text = table.with_suffix(".md").read_text()
    assert "| ratio sequence × clip no |" in text and "| Both: ratio " in text
    assert "Distinguishable on w48: ratio sequence (-" in text and "All possible cells: no fraction." in text
    assert Design.of(FACTORIAL).cells == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_every_table_says_that_the_last_statement_counted(table: Path) -> None:
    text = table.with_suffix(".md").read_text()
    assert text.count("Extraction last_statement: easy.") == f"\n{text}".count("\n## ") > 3


def test_the_figure_has_a_panel_for_each_model_and_a_line_for_each_effect(table: Path) -> None:
    figure = draw_factorial(pd.read_csv(table))
    panels = {axes.get_title(loc="left") or axes.get_title(): axes for axes in figure.axes}
    assert set(panels) == {"w48", "tiny"}
    points = [line for line in panels["tiny"].lines if line.get_marker() == "o"]
    assert len(points) == 3 and len({line.get_color() for line in points}) == 2, "blue and orange"
    write_design_figure("factorial", table, "plain", table.with_name("figure"))
