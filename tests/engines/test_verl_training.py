"""Real verl trains on CPUs: DelTA on query-preserved mini-batches, killed, its newest state damaged, continued, merged.

The run of the short form; the other methods are in test_verl_methods.py.
"""

from __future__ import annotations

import os

import pandas as pd
import pytest

from evals.core.manifest import verify_outputs
from rlvr.engines.verl.metrics import read_metrics
from rlvr.runs.progress import METRICS_SO_FAR
from tests.engines.study_directory import (
    ROOT,
    StudyDirectory,
    last_words,
    smoke_study,
    train_until_killed,
    wait_for_end_of_processes,
)

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")

RUN, STEPS = "tiny-delta-s1", 5


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    """The smoke study's base model and problems; every step of verl's is saved."""
    config = smoke_study(training={"steps": STEPS}, execution={"checkpoint_interval": 1})
    directory = StudyDirectory(tmp_path_factory.mktemp("study"), config)
    directory.snakemake("results/base/tiny/manifest.json", "results/problems/train/manifest.json")
    return directory


def test_a_killed_run_continues_from_its_newest_intact_state(study: StudyDirectory) -> None:
    place = study.write_run(RUN, checkpoints_kept=STEPS)
    saved, error = train_until_killed(study, place, 2)
    assert error.count("\n") == 1, error
    assert f"{RUN}: verl ended with step {saved} saved, of {STEPS}" in error and saved < STEPS
    shown = pd.read_parquet(place / METRICS_SO_FAR)["step"].tolist()
    assert shown == list(range(1, len(shown) + 1)) and saved - 1 <= len(shown) <= saved

    state = next(place.glob(f"state/*/global_step_{saved}"))
    shard = max(state.rglob("*.pt"), key=lambda path: path.stat().st_size)
    os.truncate(shard, shard.stat().st_size // 2)
    again = study.train(place)
    assert again.returncode == 0, again.stderr[-2000:] + last_words(place)
    assert f"{state}: damaged or not saved to its end; going back to the state before it" in again.stdout
    assert f"{RUN}: continues after step {saved - 1} of {STEPS}" in again.stdout

    manifest = verify_outputs(place / "manifest.json", "run")
    assert manifest.details["steps"] == STEPS and manifest.details["optimizer_steps"] == 2 * STEPS
    assert manifest.details["merged_log_prob_difference"] < 0.05
    assert "checkpoint/model.safetensors" in manifest.outputs
    assert not (place / METRICS_SO_FAR).exists()
    metrics = pd.read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(1, STEPS + 1))
    assert metrics["groups_whole_fraction"].tolist() == [1.0] * STEPS
    assert metrics["token_weight_mean"].to_numpy() == pytest.approx(1.0, abs=1e-6)
    assert (metrics["token_weight_p95"] > metrics["token_weight_p05"]).all()
    # vLLM samples from the policy that is trained: the same log-probs, but for rounding.
    assert (metrics["rollout_log_prob_difference_mean"] < 1e-4).all()
    # The names that the default tests hold to the local engine's are still those that verl's runs have.
    recorded = read_metrics([ROOT / "tests" / "unit" / "tracking" / "recorded_verl_metrics.jsonl"], 2)
    assert set(metrics.columns) == set(recorded.columns)
    assert (metrics["grad_norm"] > 0).all() and metrics["reward_mean"].between(0, 1).all()

    finished = study.train(place)
    assert finished.returncode == 0, finished.stderr
    assert len(list(place.glob("state/*/metrics*.jsonl"))) == 2  # it was not started a third time
    wait_for_end_of_processes(place)
