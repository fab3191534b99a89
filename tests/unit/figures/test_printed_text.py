"""The text of every figure for papers: nothing is cut by the page, and nothing overlaps, whatever the titles."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from evals.core.comparisons import Look
from evals.core.records import Chosen
from evals.figures.designs import draw_doses, draw_factorial, draw_sizes
from evals.figures.efficiency import draw_cost_curves
from evals.figures.results import draw_differences, draw_pass_at_k, draw_profiles, draw_scores
from evals.figures.style import VERDICT_COLOURS, save_for_papers, write_figure
from evals.tables.efficiency import read_totals
from rlvr.report.curves import (
    draw_reward_curves,
    draw_score_curves,
    draw_training_curves,
    draw_validation_curves,
    read_metrics,
)
from tests.printed import printed_faults
from tests.unit.synthetic_results import Study

LONG = "A method of another paper, query-preserved, with rewards that are balanced over the groups"
TITLES: Mapping[str, tuple[str, str, str]] = {
    "usual": ("GRPO", "DAPO", "DAPO, query-preserved, reward-balanced"),
    "hostile": (r"DAPO $\x$ & {of} 100 %", "W" * 200, LONG),
}
LOOK = Look(
    model="tiny", method="delta", seeds=2, level=0.05, level_alone=0.05, difference=0.0, interval=None, verdict=None
)


def _drawings(study: Study, titles: tuple[str, str, str]) -> dict[str, Callable[[], Figure]]:
    """Every figure of a study whose three methods have these titles."""
    results, (_, reference, last) = study.read(), titles
    named = dict(zip(("grpo", "dapo", "delta"), titles, strict=True))
    runs = tuple(run.model_copy(update={"title": named.get(run.method, run.title)}) for run in results.runs)
    results = dataclasses.replace(results, runs=runs, looks=(LOOK,), margin=0.02)
    training, trained = study.results / "runs", [run for run in runs if run.seed is not None]
    metrics = {run.run: read_metrics(run.run, training) for run in trained}
    totals = {run.run: read_totals(run.run, training) for run in trained}
    studies = ["Off-policy, sixteen updates a step", last]
    points = {method: [(4, method), (8, method)] for method in named}
    averages = {"base": [0.3], **{method: [0.4, 0.5] for method in named}}
    chosen = [
        Chosen(run=run.run, benchmark="chain_3", samples_per_problem=8, step=4, averages={"4": 0.4, "8": 0.5})
        for run in trained
    ]
    return {
        "scores": lambda: draw_scores(results),
        "scores_column": lambda: draw_scores(results, mean_only=True),
        "differences": lambda: draw_differences(results),
        "differences_column": lambda: draw_differences(results, mean_only=True),
        "profiles": lambda: draw_profiles(results),
        "pass_at_k": lambda: draw_pass_at_k(results),
        "cost_curves": lambda: draw_cost_curves(results, totals),
        "training_curves": lambda: draw_training_curves(runs, metrics),
        "reward_curves": lambda: draw_reward_curves([runs], ["x"], metrics, "dapo"),
        "reward_curves_two": lambda: draw_reward_curves([runs, runs], studies, metrics, "dapo"),
        "score_curves": lambda: draw_score_curves(runs, points, averages, 8),
        "validation_curves": lambda: draw_validation_curves(runs, chosen),
        "sizes": lambda: draw_sizes(_sizes(titles), reference, 2.0),
        "factorial": lambda: draw_factorial(_factorial(titles)),
        "doses": lambda: draw_doses(_doses(titles), "dapo"),
    }


def _ends(value: float) -> dict[str, float]:
    return {"confidence_low": value - 0.01, "confidence_high": value + 0.01}


def _sizes(titles: tuple[str, ...]) -> pd.DataFrame:
    rows = itertools.product(titles, (53_000, 170_000, 660_000, 2_600_000))
    verdicts = itertools.cycle(VERDICT_COLOURS)
    named = [{"title": title, "parameters": size, "verdict": next(verdicts)} for title, size in rows]
    return pd.DataFrame([{**row, "difference": 0.01, **_ends(0.01)} for row in named])


def _factorial(titles: tuple[str, ...]) -> pd.DataFrame:
    effects = [*titles, *(f"{one} × {other}" for one, other in itertools.combinations(titles, 2))]
    kinds = {name: "main effect" if name in titles else "interaction" for name in effects}
    rows = [
        {"model": model, "name": name, "kind": kinds[name], "effect": -0.01, "verdict": "lowers", **_ends(-0.01)}
        for model in ("w48", "tiny")
        for name in effects
    ]
    return pd.DataFrame(rows)


def _doses(titles: tuple[str, ...]) -> pd.DataFrame:
    named = dict(zip(("grpo", "dapo", "delta"), titles, strict=True))
    rows = [{"kind": "", "dose": "none", "method": "dapo", "title": named["dapo"], "average": 0.8, **_ends(0.8)}]
    for kind, doses in {"stale": "1 4 16", "noise": "0.001 0.01", "temperature of the sampler": "0.5 1.5"}.items():
        rows += [
            {"kind": kind, "dose": dose, "method": method, "title": title, "average": 0.7, **_ends(0.7)}
            for dose in doses.split()
            for method, title in named.items()
        ]
    return pd.DataFrame(rows).assign(verdict="worse")


@pytest.mark.parametrize("titles", TITLES)
def test_no_text_is_cut_or_overlaps(synthetic_study: Study, titles: str, tmp_path: Path) -> None:
    found = {}
    for name, draw in _drawings(synthetic_study, TITLES[titles]).items():
        with printed_faults() as faults:
            save_for_papers(draw, tmp_path / f"{name}.pdf", 3.3 if name.endswith("_column") else 6.8)
        found |= {name: faults} if faults else {}
    assert found == {}


def test_names_of_many_methods_are_whole(synthetic_study: Study, tmp_path: Path) -> None:
    results = synthetic_study.read()
    one = next(run for run in results.runs if run.method == "grpo")
    copies = [one.model_copy(update={"method": f"m{number}", "title": f"{LONG} {number}"}) for number in range(15)]
    alike = {key: row for key, row in results.comparisons.items() if key[1] == "grpo"}
    comparisons = {(key[0], copy.method, *key[2:]): row for copy in copies for key, row in alike.items()}
    comparisons |= results.comparisons
    many = dataclasses.replace(results, runs=(*results.runs, *copies), comparisons=comparisons)
    with printed_faults() as faults:
        write_figure("scores", partial(draw_scores, many), tmp_path / "a", [], partial(draw_scores, many, True))
        write_figure("x", partial(draw_differences, many), tmp_path / "b", [], partial(draw_differences, many, True))
    assert faults == []


def test_the_margin_is_shaded_and_named_where_a_study_has_one(synthetic_study: Study) -> None:
    drawings = _drawings(synthetic_study, TITLES["usual"])
    for name in ("differences", "differences_column"):
        figure = drawings[name]()
        (legend,) = figure.legends
        assert "margin of equivalence, 2 points" in [text.get_text() for text in legend.get_texts()]
        (shaded,) = [patch for axes in figure.axes for patch in axes.patches]
        box = shaded.get_extents().transformed(figure.axes[0].transData.inverted())
        assert (box.x0, box.x1) == pytest.approx((-2.0, 2.0))


def test_what_is_cut_or_overlaps_is_found(tmp_path: Path) -> None:
    figure = Figure(figsize=(2, 2))
    for x, y, words in ((0.5, 0.5, "one"), (0.52, 0.52, "other"), (0.95, 0.1, "beyond the page")):
        figure.text(x, y, words)
    figure.text(0.1, 0.1, "alone")
    with printed_faults() as faults:
        figure.savefig(tmp_path / "x.pdf", format="pdf")
    assert [fault.split(" at ")[0] for fault in faults] == ["cut: 'beyond the page'", "overlap: 'one' and 'other'"]
