"""The table and the figure of sizes: verdicts by model, and inversions that are certain."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evals.core.files import fingerprint
from evals.core.manifest import Manifest
from evals.core.records import Run
from evals.figures.designs import draw_sizes, write_design_figure
from evals.results import read_results
from evals.scores.comparison import Settings, write_comparisons
from evals.scores.factors import write_sizes_table
from tests.unit.scores.test_compare_command import SAMPLES
from tests.unit.synthetic_results import score_row, write_scores_file

MODELS = {"w48": 48_000, "tiny": 170_000}
TITLES = {"base": "Base model", "dapo": "DAPO", "gspo": "GSPO", "sapo": "SAPO"}
LEVELS = {
    "w48": {"base": 4, "dapo": 20, "gspo": 12, "sapo": 20},
    "tiny": {"base": 8, "dapo": 20, "gspo": 28, "sapo": 20},
}
"""Samples of 32 that are right: GSPO is worse than DAPO on the small model, and better on the other."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, generator = tmp_path_factory.mktemp("sizes"), np.random.default_rng(1)
    runs, rows = [], []
    for model in reversed(MODELS):  # the table sorts by size
        for method, level in LEVELS[model].items():
            for seed in (None,) if method == "base" else (1, 2, 3, 4):
                name = f"{model}-{method}" + (f"-s{seed}" if seed else "")
                run = {"run": name, "model": model, "method": method, "seed": seed}
                runs.append(Run(**run, title=TITLES[method]))
                rows.append(score_row(run, np.clip(level + generator.integers(-3, 4, 30), 0, SAMPLES), SAMPLES))
    scores = write_scores_file(root / "scores/easy.json", rows, SAMPLES)
    write_comparisons([scores], Settings("dapo", bootstrap_resamples=300, permutations=2000), root / "comparisons.json")
    bases = []
    for model, parameters in MODELS.items():
        bases.append(root / "base" / model / "manifest.json")
        Manifest("base_model", {}, {}, {}, fingerprint({}), {"parameters": parameters}).write(bases[-1])
    results = read_results(runs, [scores], root / "comparisons.json")
    write_sizes_table(results, bases, root / "sizes")
    return root / "sizes.csv"


def test_verdicts_stand_by_size_and_a_certain_inversion_is_named(table: Path) -> None:
    text = table.with_suffix(".md").read_text()
    assert text.index("w48, 48.0 k") < text.index("tiny, 170 k")
    assert "GSPO: worse on w48; better on tiny." in text
    assert "The same verdict on every model: SAPO (not distinguishable)." in text
    order = next(line for line in text.splitlines() if line.startswith("| w48 and tiny"))
    assert "DAPO and GSPO; GSPO and SAPO" in order and "DAPO and SAPO" not in order
    rows = pd.read_csv(table).set_index(["model", "method"])
    assert rows.loc[("w48", "gspo"), "difference"] == pytest.approx(-8 / 32, abs=0.03)
    assert rows.loc[("tiny", "gspo"), "verdict"] == "better" and rows.loc[("tiny", "gspo"), "parameters"] == 170_000


def test_the_figure_has_a_panel_for_each_method_and_a_point_for_each_size(table: Path) -> None:
    figure = draw_sizes(pd.read_csv(table), "DAPO")
    panels = {axes.get_title(loc="left") or axes.get_title(): axes for axes in figure.axes}
    assert set(panels) == {"GSPO", "SAPO"}
    points = [line for line in panels["GSPO"].lines if line.get_marker() == "o"]
    assert [float(line.get_xdata()[0]) for line in points] == [48_000, 170_000]
    assert points[0].get_color() != points[1].get_color()
    write_design_figure("sizes", table, "DAPO", table.with_name("figure"))
