"""The figure of scores along the training."""

from pathlib import Path

import pytest

from evals.core.errors import UserError
from evals.core.files import write_json
from evals.core.manifest import verify_outputs
from evals.core.records import Chosen, Run
from evals.figures.style import figure_style
from rlvr.report.curves import (
    draw_score_curves,
    draw_validation_curves,
    read_averages,
    write_score_curves,
    write_validation_curves,
)
from tests.unit.synthetic_results import Study


def _run(method: str, seed: int | None) -> Run:
    suffix = "" if seed is None else f"-s{seed}"
    return Run(run=f"tiny-{method}{suffix}", model="tiny", method=method, seed=seed, title=method.upper())


def test_lines_start_at_the_base_model_and_pass_through_the_means() -> None:
    runs = [_run("base", None), *(_run(method, seed) for method in ("a", "b") for seed in (1, 2))]
    averages = {"base": [0.4], "a_step5": [0.5, 0.6], "a": [0.7, 0.9], "b": [0.3, 0.3]}
    with figure_style():
        figure = draw_score_curves(runs, {"a": [(5, "a_step5"), (10, "a")], "b": [(10, "b")]}, averages, 32)
    base, first, second = figure.axes[0].lines
    assert list(base.get_ydata()) == [40, 40]
    assert list(first.get_xdata()) == [0, 5, 10]
    assert list(first.get_ydata()) == pytest.approx([40, 55, 80])
    assert list(second.get_ydata()) == pytest.approx([40, 30])
    low, high = figure.axes[0].collections[0].get_datalim(figure.axes[0].transData).intervaly
    assert (low, high) == pytest.approx((40, 90))


def test_the_command_draws_a_studys_scores_and_names_what_is_missing(synthetic_study: Study, tmp_path: Path) -> None:
    out = tmp_path / "score_curves"
    points = {"dapo": [[40, "dapo"]]}
    write_score_curves(runs=[synthetic_study.runs_file], scores=synthetic_study.scores, points=points, out=out)
    assert verify_outputs(tmp_path / "score_curves.manifest.json", "figure").parameters["points"]["dapo"] == [
        [40, "dapo"]
    ]
    with pytest.raises(UserError, match="no score of tiny-other-s1"):
        read_averages([_run("other", 1)], synthetic_study.scores)


def _choice(run: Run, averages: dict[str, float]) -> Chosen:
    return Chosen(run=run.run, benchmark="aime_2025", samples_per_problem=8, step=4, averages=averages)


def test_validation_curves_have_a_panel_for_each_model_and_pass_through_the_means() -> None:
    runs = [_run("base", None), *(_run("a", seed) for seed in (1, 2))]
    other = runs[1].model_copy(update={"model": "large", "run": "large-a-s1"})
    values = [{"12": 0.3, "4": 0.1, "8": 0.5}, {"4": 0.2, "8": 0.7, "12": 0.3}, {"4": 0.9}]
    choices = [_choice(run, each) for run, each in zip([*runs[1:], other], values, strict=True)]
    with figure_style():
        figure = draw_validation_curves([*runs, other], choices)
    small, large = (axes.lines for axes in figure.axes)
    assert [list(line.get_xdata()) for line in small] == [[4, 8, 12]]
    assert list(small[0].get_ydata()) == pytest.approx([15, 60, 30])
    assert [list(line.get_ydata()) for line in large] == [[pytest.approx(90)]]
    assert figure.axes[0].get_ylabel() == "avg@8, aime_2025 (%)"
    with pytest.raises(UserError, match="lack that of large-a-s1"):
        draw_validation_curves([*runs, other], choices[:2])


def test_a_seed_that_stopped_early_is_drawn_where_all_seeds_are() -> None:
    runs = [_run("base", None), *(_run("a", seed) for seed in (1, 2))]
    for values, steps in (
        ([{"4": 0.1, "8": 0.5, "12": 0.3}, {"4": 0.2, "7": 0.7}], [4]),
        ([{"4": 0.1}, {"3": 0.2}], []),
    ):
        choices = [_choice(run, each) for run, each in zip(runs[1:], values, strict=True)]
        with figure_style():
            figure = draw_validation_curves(runs, choices)
        assert list(figure.axes[0].lines[0].get_xdata()) == steps


def test_the_command_draws_the_choices(synthetic_study: Study, tmp_path: Path) -> None:
    trained = [run for run in synthetic_study.runs() if run["method"] != "base"]
    choices = [tmp_path / run["run"] / "chosen.json" for run in trained]
    for run, path in zip(trained, choices, strict=True):
        write_json(path, _choice(Run(**run), {"4": 0.5}).to_json())
    write_validation_curves(runs=synthetic_study.runs_file, choices=choices, out=tmp_path / "curves")
    inputs = verify_outputs(tmp_path / "curves.manifest.json", "figure").inputs
    assert set(map(str, choices)) <= set(inputs)
