"""Runs of both engines in one chart: the same metric under the same name, in MLflow as in the files."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from evals.core.files import read_jsonl
from evals.core.run_spec import Execution, LocalRun
from rlvr.engines.local.train import train
from rlvr.methods.components import composition
from rlvr.report.mlflow.projection import metric_name
from rlvr.study.catalogue import load_catalogue, resolve_method
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import project, shown

RECORDED = Path(__file__).with_name("recorded_verl_metrics.jsonl")
"""Two steps of DelTA by real verl, without the columns of terms that its loss had besides (test_verl_training.py).

tests/engines holds the names to what it writes now.
"""
ONLY_VERL = {
    "groups_whole_fraction",
    "prompts_failed",
    "model_flops_utilisation",
    "tokens_per_second_and_device",
    "seconds_weight_sync",
    "seconds_save",
}
ONLY_LOCAL = {"seconds_reward"}  # verl grades while it samples


def test_both_engines_share_names(make_run: Callable[..., LocalRun], tracked_study: Study, tmp_path: Path) -> None:
    entry = resolve_method("delta", {}, load_catalogue(), "test")
    method = {piece: entry.get(piece) for piece in ("version", *composition().model_fields)}
    directory = tmp_path / "local"
    directory.mkdir()
    local = make_run(training={"steps": 2}, method=method, method_name="delta")
    train(local, directory, Execution(checkpoint_interval=1, lock_wait_seconds=1))
    results = tracked_study.results
    shutil.copy(directory / "metrics.parquet", results / "runs" / "tiny-delta-s1" / "metrics.parquet")
    pd.DataFrame(read_jsonl(RECORDED)).to_parquet(results / "runs" / "tiny-delta-s2" / "metrics.parquet")
    project(tracked_study)
    runs = shown(tracked_study)
    of_local, of_verl = (runs[f"tiny-delta-s{seed}"].data.metrics for seed in (1, 2))
    assert set(of_local) - set(of_verl) == {metric_name(column) for column in ONLY_LOCAL}
    assert set(of_verl) - set(of_local) == {metric_name(column) for column in ONLY_VERL}
    # Not the same numbers, but of one kind: a fraction of one engine is no count of the other.
    for name in set(of_local) & set(of_verl):
        if name.startswith("train/") and name.endswith(("_fraction", "_rate")) and name != "train/learning_rate":
            assert 0 <= of_local[name] <= 1 and 0 <= of_verl[name] <= 1, name
    assert of_verl["train/tokens_generated"] > 100
    assert of_verl["time/seconds_step"] > of_verl["time/seconds_update"] > 0
    assert pd.read_parquet(results / "runs" / "tiny-delta-s2" / "metrics.parquet")["step"].tolist() == [1, 2]
