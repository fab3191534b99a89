from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evals.core.errors import InvalidInput, UserError
from evals.core.manifest import verify_outputs
from evals.core.records import read_runs
from evals.figures.style import figure_style
from rlvr.report.curves import CURVES, draw_training_curves, read_metrics, write_training_curves
from tests.unit.synthetic_results import Study


def test_the_line_is_the_mean_and_the_band_the_extremes_of_the_seeds(synthetic_study: Study) -> None:
    runs = read_runs(synthetic_study.runs_file)
    training = synthetic_study.results / "runs"
    metrics = {run.run: read_metrics(run.run, training) for run in runs if run.seed is not None}
    with figure_style():
        figure = draw_training_curves(runs, metrics)
    axes = figure.axes[2 * len(CURVES)]  # third method, first curve: DelTA's reward
    seeds = np.stack([metrics[f"tiny-delta-s{seed}"]["reward_mean"] for seed in (1, 2)])
    drawn = axes.lines[-1]
    assert drawn.get_ydata() == pytest.approx(seeds.mean(axis=0))
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(seeds.max()) and band[:, 1].min() == pytest.approx(seeds.min())


def test_a_line_ends_with_the_seed_that_stopped_first(synthetic_study: Study) -> None:
    runs = read_runs(synthetic_study.runs_file)
    training = synthetic_study.results / "runs"
    metrics = {run.run: read_metrics(run.run, training) for run in runs if run.seed is not None}
    metrics["tiny-delta-s2"] = metrics["tiny-delta-s2"][:2]
    with figure_style():
        figure = draw_training_curves(runs, metrics)
    assert figure.axes[2 * len(CURVES)].lines[-1].get_xdata().tolist() == [1, 2]


def test_a_column_that_a_method_lacks_is_said_in_its_panel(synthetic_study: Study) -> None:
    runs = read_runs(synthetic_study.runs_file)
    training = synthetic_study.results / "runs"
    metrics = {run.run: read_metrics(run.run, training) for run in runs if run.seed is not None}
    for run in ("tiny-grpo-s1", "tiny-grpo-s2"):
        metrics[run] = metrics[run].assign(clip_fraction=np.nan)
    with figure_style():
        figure = draw_training_curves(runs, metrics)
    said = [[text.get_text() for text in axes.texts if text.get_text() == "does not clip"] for axes in figure.axes]
    assert [place for place, texts in enumerate(said) if texts] == [3]


def test_command_writes_all_formats_and_a_manifest(synthetic_study: Study, tmp_path: Path) -> None:
    training = synthetic_study.results / "runs"
    write_training_curves(runs=synthetic_study.runs_file, training=training, out=tmp_path / "training_curves")
    manifest = verify_outputs(tmp_path / "training_curves.manifest.json", "figure")
    assert set(manifest.outputs) == {"training_curves.png", "training_curves.svg", "training_curves.pdf"}
    assert len(manifest.inputs) == 1 + 6


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
