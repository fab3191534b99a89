"""The table of doses: where the plain method falls, and which methods are better there; and its figure."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evals.core.config.sections import Statistics
from evals.core.files import write_parquet
from evals.core.records import Way
from evals.figures.designs import draw_doses, write_design_figure
from evals.scores.designs import write_doses_table
from tests.unit.scores.test_compare_command import write_scores
from tests.unit.synthetic_results import vouch_for

TITLES = {"dapo": "DAPO", "tis": "Token TIS", "half": "Half the steps"}
DOSES = {"stale_4": ("stale", "4"), "stale_1": ("stale", "1"), "noise_0_1": ("noise", "0.1")}
SHEET = [Way(name=name, method=name, title=title) for name, title in TITLES.items()] + [
    Way(name=f"{name}_{end}", method=name, title=TITLES[name], kind=kind, dose=dose)
    for end, (kind, dose) in DOSES.items()
    for name in ("dapo", "tis")
]
LEVELS = {"dapo": 24, "tis": 24, "half": 12, "dapo_stale_1": 24, "tis_stale_1": 24, "dapo_noise_0_1": 24}
LEVELS |= {"tis_noise_0_1": 24, "dapo_stale_4": 8, "tis_stale_4": 20}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of 30 problems, so many of 32 samples of each right, with three seeds."""
    root, generator = tmp_path_factory.mktemp("doses"), np.random.default_rng(1)
    counts: dict[Any, np.ndarray] = {("base", None): np.full(30, 4)}
    for name, level in LEVELS.items():
        for seed in (1, 2, 3):
            counts[name, seed] = np.clip(level + generator.integers(-3, 4, 30), 0, 32)
            frame = pd.DataFrame({"rollout_kl": [0.0, 0.002 * ("stale_4" in name)], "reward_mean": 0.5})
            directory = root / "runs" / f"tiny-{name}-s{seed}"
            write_parquet(directory / "metrics.parquet", frame)
            vouch_for(directory / "metrics.parquet", "run", parameters={"method": {}})
    scores, statistics = write_scores(root, "easy", counts), Statistics(seed=1, resamples=200, permutations=2000)
    write_doses_table([scores], root / "runs", SHEET, "dapo", statistics, root / "doses")
    return root / "doses.csv"


def test_the_dose_at_which_the_plain_method_falls_and_what_is_better_there(table: Path) -> None:
    text = table.with_suffix(".md").read_text()
    assert "DAPO falls at stale 4 (-5" in text and "better there: Token TIS; worse there: none." in text
    assert "At no dose of noise is DAPO distinguishable from no dose." in text
    rows = pd.read_csv(table, dtype={"dose": str}).set_index(["kind", "dose", "method"])
    plain, helped = rows.loc["stale", "4", "dapo"], rows.loc["stale", "4", "tis"]
    assert (plain["against"], plain["verdict"]) == ("no dose", "worse") and plain["distance"] == pytest.approx(0.001)
    assert (helped["against"], helped["verdict"]) == ("plain", "better")
    assert helped["difference"] == pytest.approx(12 / 32, abs=0.03)
    controls = [line for line in text.splitlines() if line.startswith("| Half the steps")]
    assert len(controls) == 1 and controls[0].rstrip(" |").endswith("worse")


def test_the_figure_marks_where_a_method_differs(table: Path) -> None:
    figure = draw_doses(pd.read_csv(table, dtype={"dose": str}), "dapo")
    panels = dict(zip(("stale", "noise"), figure.axes, strict=True))
    points = {kind: [line for line in axes.lines if line.get_marker() == "o"] for kind, axes in panels.items()}
    assert [float(line.get_xdata()[0]) for line in points["stale"]] == [2, 2] and not points["noise"]
    assert [label.get_text() for label in panels["stale"].get_xticklabels()] == ["none", "1", "4"]
    write_design_figure("doses", table, "dapo", table.with_name("figure"))
    assert table.with_name("figure.png").read_bytes().startswith(b"\x89PNG")
