"""The table of doses: where the plain method falls, and which methods are better there; and its figure."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evals.core.config.methods import Factorial
from evals.core.config.sections import Statistics
from evals.core.errors import UserError
from evals.core.files import fingerprint, write_parquet
from evals.core.manifest import Manifest
from evals.core.records import Run, Way
from evals.figures.designs import draw_doses, draw_factorial, draw_sizes, write_design_figure
from evals.results import read_results
from evals.scores.comparison import Settings, write_comparisons
from evals.scores.designs import write_doses_table, write_rates_table
from evals.scores.factors import write_factorial_table, write_sizes_table
from evals.statistics.factorial import Design
from tests.artifacts import vouch_for
from tests.unit.scores.test_compare_command import SAMPLES, write_scores
from tests.unit.synthetic_results import score_row, write_scores_file

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


# The table and the figure of a factorial: effects, their sizes by model, parts of a difference, controls.

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
LEVELS_OF_FACTORIAL = {"w48": [20, 20, 12, 12], "tiny": [20, 20, 12, 20]}
"""Samples of 32 that are right: the sequence ratio lowers all, but without the clip on the second model."""


@pytest.fixture(scope="module")
def table_of_factorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, generator, rows = tmp_path_factory.mktemp("factorial"), np.random.default_rng(1), []
    for model, levels in LEVELS_OF_FACTORIAL.items():
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


def test_effects_parts_and_controls_have_their_verdicts(table_of_factorial: Path) -> None:
    rows = pd.read_csv(table_of_factorial).set_index(["kind", "model", "name"])
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
    text = table_of_factorial.with_suffix(".md").read_text()
    assert "| ratio sequence × clip no |" in text and "| Both: ratio " in text
    assert "Distinguishable on w48: ratio sequence (-" in text and "All possible cells: no fraction." in text
    assert Design.of(FACTORIAL).cells == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_every_table_says_that_the_last_statement_counted(table_of_factorial: Path) -> None:
    text = table_of_factorial.with_suffix(".md").read_text()
    assert text.count("Extraction last_statement: easy.") == f"\n{text}".count("\n## ") > 3


def test_the_figure_has_a_panel_for_each_model_and_a_line_for_each_effect(table_of_factorial: Path) -> None:
    figure = draw_factorial(pd.read_csv(table_of_factorial))
    panels = {axes.get_title(loc="left") or axes.get_title(): axes for axes in figure.axes}
    assert set(panels) == {"w48", "tiny"}
    points = [line for line in panels["tiny"].lines if line.get_marker() == "o"]
    assert len(points) == 3 and len({line.get_color() for line in points}) == 2, "blue and orange"
    write_design_figure("factorial", table_of_factorial, "plain", table_of_factorial.with_name("figure"))


# The table and the figure of sizes: verdicts by model, and inversions that are certain.

MODELS = {"w48": 48_000, "tiny": 170_000}
TITLES_OF_SIZES = {"base": "Base model", "dapo": "DAPO", "gspo": "GSPO", "sapo": "SAPO"}
LEVELS_OF_SIZES = {
    "w48": {"base": 4, "dapo": 20, "gspo": 12, "sapo": 20},
    "tiny": {"base": 8, "dapo": 20, "gspo": 28, "sapo": 20},
}
"""Samples of 32 that are right: GSPO is worse than DAPO on the small model, and better on the other."""


@pytest.fixture(scope="module")
def table_of_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, generator = tmp_path_factory.mktemp("sizes"), np.random.default_rng(1)
    runs, rows = [], []
    for model in reversed(MODELS):  # the table sorts by size
        for method, level in LEVELS_OF_SIZES[model].items():
            for seed in (None,) if method == "base" else (1, 2, 3, 4):
                name = f"{model}-{method}" + (f"-s{seed}" if seed else "")
                run = {"run": name, "model": model, "method": method, "seed": seed}
                runs.append(Run(**run, title=TITLES_OF_SIZES[method]))
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


def test_verdicts_stand_by_size_and_a_certain_inversion_is_named(table_of_sizes: Path) -> None:
    text = table_of_sizes.with_suffix(".md").read_text()
    assert text.index("w48, 48.0 k") < text.index("tiny, 170 k")
    assert "GSPO: worse on w48; better on tiny." in text
    assert "The same verdict on every model: SAPO (not distinguishable)." in text
    order = next(line for line in text.splitlines() if line.startswith("| w48 and tiny"))
    assert "DAPO and GSPO; GSPO and SAPO" in order and "DAPO and SAPO" not in order
    rows = pd.read_csv(table_of_sizes).set_index(["model", "method"])
    assert rows.loc[("w48", "gspo"), "difference"] == pytest.approx(-8 / 32, abs=0.03)
    assert rows.loc[("tiny", "gspo"), "verdict"] == "better" and rows.loc[("tiny", "gspo"), "parameters"] == 170_000


def test_the_figure_has_a_panel_for_each_method_and_a_point_for_each_size(table_of_sizes: Path) -> None:
    figure = draw_sizes(pd.read_csv(table_of_sizes), "DAPO")
    panels = {axes.get_title(loc="left") or axes.get_title(): axes for axes in figure.axes}
    assert set(panels) == {"GSPO", "SAPO"}
    points = [line for line in panels["GSPO"].lines if line.get_marker() == "o"]
    assert [float(line.get_xdata()[0]) for line in points] == [48_000, 170_000]
    assert points[0].get_color() != points[1].get_color()
    write_design_figure("sizes", table_of_sizes, "DAPO", table_of_sizes.with_name("figure"))


# Verdicts at the best learning rate of each method: which rate a seed has, and what is compared.

RATES = {
    "dapo": {"dapo": 0.2, "dapo_rate_half": 0.1, "dapo_rate_twice": 0.4},
    "grpo": {"grpo": 0.2, "grpo_rate_half": 0.1, "grpo_rate_twice": 0.4},
}
TITLES_OF_RATES = {"dapo": "DAPO", "grpo": "GRPO"}
SHEET_OF_RATES = [
    Way(name=name, method=method, title=TITLES_OF_RATES[method], rates={"tiny": rate})
    for method, names in RATES.items()
    for name, rate in names.items()
]
STATISTICS = Statistics(seed=1, resamples=200, permutations=200)


def study(root: Path, held_out: dict[str, list[int]], solved: dict[str, int], seeds: int = 3) -> Path:
    """Runs of 30 problems, so many of 32 samples of each right; held-out problems right of 10, by name and seed."""
    generator = np.random.default_rng(1)
    counts: dict[Any, np.ndarray] = {("base", None): np.full(30, 4)}
    for name, level in solved.items():
        for seed in range(1, seeds + 1):
            counts[name, seed] = np.clip(level + generator.integers(-3, 4, 30), 0, 32)
            rows = [
                {"step": step, "correct_counts": [right], "samples_per_problem": 10}
                for step, right in ((0, 0), (4, held_out[name][seed - 1]))
            ]
            directory = root / "runs" / f"tiny-{name}-s{seed}"
            write_parquet(directory / "validation.parquet", pd.DataFrame(rows))
            write_parquet(directory / "metrics.parquet", pd.DataFrame({"reward_mean": [0.5, 0.5]}))
            vouch_for(directory / "metrics.parquet", "run", parameters={"method": {}})
    return write_scores(root, "easy", counts)


def written(root: Path, scores: Path) -> tuple[pd.DataFrame, str]:
    write_rates_table([scores], root / "runs", SHEET_OF_RATES, "dapo", STATISTICS, root / "rates")
    return pd.read_csv(root / "rates.csv").set_index("method"), (root / "rates.md").read_text()


def test_a_method_is_judged_at_the_rate_that_the_other_seeds_chose(tmp_path: Path) -> None:
    """GRPO is worse at the common rate, and better at twice as much; each seed of its is the best at another rate."""
    held_out = {name: [5, 5, 5] for of_method in RATES.values() for name in of_method}
    held_out |= {"grpo": [9, 2, 2], "grpo_rate_half": [1, 1, 1], "grpo_rate_twice": [1, 8, 8]}
    solved = {"dapo": 16, "dapo_rate_half": 2, "dapo_rate_twice": 30}
    solved |= {"grpo": 10, "grpo_rate_half": 1, "grpo_rate_twice": 22}
    frame, text = written(tmp_path, study(tmp_path, held_out, solved))
    # Seed 1 has the rate of seeds 2 and 3. Those have the one of seed 1 and each other: 9 + 2 against 1 + 8.
    assert frame.loc["grpo", "seeds_by_rate"] == "0.1: 0, 0.2: 2, 0.4: 1"
    assert frame.loc["dapo", "seeds_by_rate"] == "0.1: 0, 0.2: 3, 0.4: 0", "of equals the study's own"
    assert frame.loc["grpo", "average_at_best"] == pytest.approx((22 + 10 + 10) / 3 / 32, abs=0.02)
    assert frame.loc["grpo", "difference"] == pytest.approx(-6 / 32, abs=0.03)
    held_out["grpo"] = [2, 2, 2]
    frame, text = written(tmp_path, study(tmp_path, held_out, solved))
    assert frame.loc["grpo", "verdict_2"] == "not distinguishable", "seed 1 alone would choose otherwise"
    held_out["grpo_rate_twice"] = [6, 8, 8]
    frame, text = written(tmp_path, study(tmp_path, held_out, solved))
    assert frame.loc["grpo", ["verdict_1", "verdict_2"]].tolist() == ["worse", "better"]
    assert frame.loc["dapo", ["verdict_1", "verdict_2"]].tolist() == ["reference", "reference"]
    assert "GRPO: worse at the study's rate, but better where both have their best; most seeds chose a rate at" in text


def test_the_reference_has_its_best_rate_too(tmp_path: Path) -> None:
    held_out = {name: [5 + name.endswith("twice")] * 3 for of_method in RATES.values() for name in of_method}
    solved = {name: 24 if name == "dapo_rate_twice" else 12 for of_method in RATES.values() for name in of_method}
    frame, text = written(tmp_path, study(tmp_path, held_out, solved))
    assert frame.loc["grpo", ["verdict_1", "verdict_2"]].tolist() == ["not distinguishable", "worse"]
    assert "DAPO: most seeds chose a rate at the end of those tried, one beyond may be better." in text


def test_one_seed_cannot_choose(tmp_path: Path) -> None:
    names = [name for of_method in RATES.values() for name in of_method]
    scores = study(tmp_path, {name: [5] for name in names}, dict.fromkeys(names, 9), seeds=1)
    with pytest.raises(UserError, match="tiny has one seed; accepted: 2 or more"):
        written(tmp_path, scores)
