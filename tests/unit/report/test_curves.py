"""The figures of quantities along the training: metrics, rewards of many methods, scores of checkpoints."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from evals.core.errors import InvalidInput, UserError
from evals.core.files import write_json
from evals.core.manifest import verify_outputs
from evals.core.records import Chosen, Run, conditions_of, read_runs
from evals.figures.style import figure_style
from rlvr.report.curves import (
    CURVES,
    draw_reward_curves,
    draw_score_curves,
    draw_training_curves,
    draw_validation_curves,
    read_averages,
    read_metrics,
    write_reward_curves,
    write_score_curves,
    write_training_curves,
    write_validation_curves,
)
from tests.unit.synthetic_results import Study


@pytest.fixture(scope="module")
def runs(synthetic_study: Study) -> list[Run]:
    return read_runs(synthetic_study.runs_file)


@pytest.fixture(scope="module")
def metrics(synthetic_study: Study, runs: list[Run]) -> dict[str, pd.DataFrame]:
    training = synthetic_study.results / "runs"
    return {run.run: read_metrics(run.run, training) for run in runs if run.seed is not None}


def test_a_line_is_a_mean_and_a_band_the_extremes(runs: list[Run], metrics: dict[str, pd.DataFrame]) -> None:
    with figure_style():
        figure = draw_training_curves(runs, metrics)
    axes = figure.axes[2 * len(CURVES)]  # third method, first curve: DelTA's reward
    seeds = np.stack([metrics[f"tiny-delta-s{seed}"]["reward_mean"] for seed in (1, 2)])
    drawn = axes.lines[-1]
    assert drawn.get_ydata() == pytest.approx(seeds.mean(axis=0))
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(seeds.max()) and band[:, 1].min() == pytest.approx(seeds.min())


def test_a_line_ends_with_the_seed_that_stopped_first(runs: list[Run], metrics: dict[str, pd.DataFrame]) -> None:
    with figure_style():
        figure = draw_training_curves(runs, {**metrics, "tiny-delta-s2": metrics["tiny-delta-s2"][:2]})
    assert figure.axes[2 * len(CURVES)].lines[-1].get_xdata().tolist() == [1, 2]


def test_a_column_that_a_method_lacks_is_said_in_its_panel(runs: list[Run], metrics: dict[str, pd.DataFrame]) -> None:
    lacking = {run: metrics[run].assign(clip_fraction=np.nan) for run in ("tiny-grpo-s1", "tiny-grpo-s2")}
    with figure_style():
        figure = draw_training_curves(runs, {**metrics, **lacking})
    said = [[text.get_text() for text in axes.texts if text.get_text() == "does not clip"] for axes in figure.axes]
    assert [place for place, texts in enumerate(said) if texts] == [3]


def test_metrics_without_a_column_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.parquet"
    path.parent.mkdir()
    pd.DataFrame({"step": [1]}).to_parquet(path)
    with pytest.raises(InvalidInput) as error:
        read_metrics("run", tmp_path)
    assert error.value.source == str(path) and "reward_mean, entropy, response_length_mean" in error.value.found
    essential = {"step": [1], "reward_mean": [0.5], "entropy": [0.1], "response_length_mean": [9.0]}
    pd.DataFrame(essential).to_parquet(path)
    assert read_metrics("run", tmp_path)["clip_fraction"].isna().all()  # SAPO's, for one
    path.write_text("no parquet")
    with pytest.raises(UserError, match=r"metrics\.parquet: is not parquet"):
        read_metrics("run", tmp_path)


def _mean(method: str, metrics: Mapping[str, pd.DataFrame]) -> np.ndarray:
    frames = [frame["reward_mean"] for run, frame in metrics.items() if run.startswith(f"tiny-{method}-s")]
    return np.asarray(np.stack(frames).mean(axis=0))


def _drawn(axes: Axes, colour: str | None = None) -> np.ndarray:
    """The line of a colour, or else the last one, which is the panel's own method."""
    lines = [line for line in axes.lines if colour in (None, line.get_color())]
    return np.asarray(lines[-1].get_ydata())


def test_panels_have_their_method_and_the_reference(runs: list[Run], metrics: dict[str, pd.DataFrame]) -> None:
    with figure_style():
        figure = draw_reward_curves([runs], ["Study"], metrics, "dapo")
    methods = list(dict.fromkeys(run.method for run in runs if run.seed is not None))
    assert len(figure.axes) == len(methods)
    for axes, method in zip(figure.axes, methods, strict=True):
        assert _drawn(axes) == pytest.approx(_mean(method, metrics))
        assert _drawn(axes, "black") == pytest.approx(_mean("dapo", metrics))


def test_two_studies_stand_side_by_side(runs: list[Run], metrics: dict[str, pd.DataFrame]) -> None:
    other = [run.model_copy(update={"run": f"{run.run}x", "method": f"{run.method}_x"}) for run in runs if run.seed]
    shifted = {f"{run}x": frame.assign(reward_mean=frame["reward_mean"] / 2) for run, frame in metrics.items()}
    with figure_style():
        figure = draw_reward_curves([runs, other], ["Stable", "Unstable"], {**metrics, **shifted}, "dapo")
    left, right = figure.axes[:2]
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["Stable", "Unstable"]
    assert _drawn(right, "black") == pytest.approx(_mean("dapo", metrics) / 2)
    assert _drawn(right) == pytest.approx(_drawn(left) / 2)


def test_a_control_of_one_study_has_one_panel(runs: list[Run], metrics: dict[str, pd.DataFrame]) -> None:
    last = [row.method for row in conditions_of(runs)][-1]
    shorter = [run for run in runs if run.method != last]
    with figure_style():
        figure = draw_reward_curves([runs, shorter], ["a", "b"], metrics, "dapo")
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False]
    labelled = [axes.xaxis.get_tick_params()["labelbottom"] for axes in figure.axes if axes.get_visible()]
    assert labelled == [False, False, False, True, True]


def test_studies_that_do_not_correspond_are_refused(runs: list[Run], metrics: dict[str, pd.DataFrame]) -> None:
    shorter = [run for run in runs if run.method != "delta"]
    with pytest.raises(InvalidInput) as error:
        draw_reward_curves([shorter, runs], ["a", "b"], metrics, "dapo")
    assert error.value.key == "runs" and "2, 3" in error.value.found
    with pytest.raises(InvalidInput) as error:
        draw_reward_curves([runs], ["a"], metrics, "ppo")
    assert error.value.key == "reference_method" and "dapo" in error.value.accepted


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
    stopping = [{"4": 0.1, "8": 0.5, "12": 0.3}, {"4": 0.2, "7": 0.7}]
    for values, steps in ((stopping, [4]), ([{"4": 0.1}, {"3": 0.2}], [])):
        choices = [_choice(run, each) for run, each in zip(runs[1:], values, strict=True)]
        with figure_style():
            figure = draw_validation_curves(runs, choices)
        assert list(figure.axes[0].lines[0].get_xdata()) == steps


def test_each_figure_has_its_manifest(synthetic_study: Study, runs: list[Run], tmp_path: Path) -> None:
    sheet, training, scores = synthetic_study.runs_file, synthetic_study.results / "runs", synthetic_study.scores
    trained = [run for run in runs if run.seed is not None]
    choices = [tmp_path / run.run / "chosen.json" for run in trained]
    for run, path in zip(trained, choices, strict=True):
        write_json(path, _choice(run, {"4": 0.5}).to_json())
    write_training_curves(sheet, training, tmp_path / "training_curves")
    write_reward_curves([sheet], ["Study"], "dapo", training, tmp_path / "reward_curves")
    write_score_curves([sheet], scores, {"dapo": [(40, "dapo")]}, tmp_path / "score_curves")
    write_validation_curves(sheet, choices, tmp_path / "validation_curves")
    metrics = [training / run.run / "metrics.parquet" for run in trained]
    read = {"training": metrics, "reward": metrics, "score": scores, "validation": choices}
    for name, files in read.items():
        manifest = verify_outputs(tmp_path / f"{name}_curves.manifest.json", "figure")
        assert set(manifest.outputs) == {f"{name}_curves{ending}" for ending in (".png", ".svg", ".pdf")}
        assert set(manifest.inputs) == set(map(str, [sheet, *files]))
    assert verify_outputs(tmp_path / "score_curves.manifest.json", "figure").parameters["points"]["dapo"] == [
        [40, "dapo"]
    ]
    with pytest.raises(UserError, match="no score of tiny-other-s1"):
        read_averages([_run("other", 1)], scores)
