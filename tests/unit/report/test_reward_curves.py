"""The figure of many methods' reward curves, alone and two studies side by side."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from evals.core.errors import InvalidInput, UserError
from evals.core.manifest import verify_outputs
from evals.core.records import Run, conditions_of, read_runs
from evals.figures.style import figure_style
from rlvr.report.curves import draw_reward_curves, read_metrics, write_reward_curves
from tests.unit.synthetic_results import Study


@pytest.fixture(scope="module")
def runs(synthetic_study: Study) -> list[Run]:
    return read_runs(synthetic_study.runs_file)


@pytest.fixture(scope="module")
def metrics(synthetic_study: Study, runs: list[Run]) -> dict[str, pd.DataFrame]:
    training = synthetic_study.results / "runs"
    return {run.run: read_metrics(run.run, training) for run in runs if run.seed is not None}


def _mean(method: str, metrics: Mapping[str, pd.DataFrame]) -> np.ndarray:
    frames = [frame["reward_mean"] for run, frame in metrics.items() if run.startswith(f"tiny-{method}-s")]
    return np.asarray(np.stack(frames).mean(axis=0))


def _drawn(axes: Axes, colour: str | None = None) -> np.ndarray:
    """The line of a colour, or else the last one, which is the panel's own method."""
    lines = [line for line in axes.lines if colour in (None, line.get_color())]
    return np.asarray(lines[-1].get_ydata())


def test_each_panel_has_its_method_and_the_reference_in_black(
    runs: list[Run], metrics: dict[str, pd.DataFrame]
) -> None:
    with figure_style():
        figure = draw_reward_curves([runs], ["Study"], metrics, "dapo")
    methods = list(dict.fromkeys(run.method for run in runs if run.seed is not None))
    assert len(figure.axes) == len(methods)
    for axes, method in zip(figure.axes, methods, strict=True):
        assert _drawn(axes) == pytest.approx(_mean(method, metrics))
        assert _drawn(axes, "black") == pytest.approx(_mean("dapo", metrics))


def test_two_studies_stand_side_by_side_each_with_a_reference_of_its_own(
    runs: list[Run], metrics: dict[str, pd.DataFrame]
) -> None:
    other = [run.model_copy(update={"run": f"{run.run}x", "method": f"{run.method}_x"}) for run in runs if run.seed]
    shifted = {f"{run}x": frame.assign(reward_mean=frame["reward_mean"] / 2) for run, frame in metrics.items()}
    with figure_style():
        figure = draw_reward_curves([runs, other], ["Stable", "Unstable"], {**metrics, **shifted}, "dapo")
    left, right = figure.axes[:2]
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["Stable", "Unstable"]
    assert _drawn(right, "black") == pytest.approx(_mean("dapo", metrics) / 2)
    assert _drawn(right) == pytest.approx(_drawn(left) / 2)


def test_controls_that_only_the_first_study_has_leave_its_neighbour_no_panel(
    runs: list[Run], metrics: dict[str, pd.DataFrame]
) -> None:
    last = [row.method for row in conditions_of(runs)][-1]
    shorter = [run for run in runs if run.method != last]
    with figure_style():
        figure = draw_reward_curves([runs, shorter], ["a", "b"], metrics, "dapo")
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False]
    labelled = [axes.xaxis.get_tick_params()["labelbottom"] for axes in figure.axes if axes.get_visible()]
    assert labelled == [False, False, False, True, True]


def test_studies_that_do_not_correspond_and_unknown_references_are_refused(
    runs: list[Run], metrics: dict[str, pd.DataFrame]
) -> None:
    shorter = [run for run in runs if run.method != "delta"]
    with pytest.raises(InvalidInput) as error:
        draw_reward_curves([shorter, runs], ["a", "b"], metrics, "dapo")
    assert error.value.key == "--runs" and "2, 3" in error.value.found
    with pytest.raises(InvalidInput) as error:
        draw_reward_curves([runs], ["a"], metrics, "ppo")
    assert error.value.key == "--reference-method" and "dapo" in error.value.accepted


def test_command_writes_all_formats_and_a_manifest(synthetic_study: Study, tmp_path: Path) -> None:
    given = {"runs": [synthetic_study.runs_file], "training": synthetic_study.results / "runs"}
    write = partial(write_reward_curves, **given, reference_method="dapo", out=tmp_path / "reward_curves")
    write(titles=["Study"])
    manifest = verify_outputs(tmp_path / "reward_curves.manifest.json", "figure")
    assert set(manifest.outputs) == {"reward_curves.png", "reward_curves.svg", "reward_curves.pdf"}
    with pytest.raises(UserError):
        write(titles=["one", "two"])
