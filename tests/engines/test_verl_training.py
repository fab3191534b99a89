"""Real verl trains on CPUs: DelTA on query-preserved mini-batches, killed in mid-run, continued, merged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from evals.artifacts import canonical_json
from evals.manifest import verify_outputs
from rlvr.engines.verl.metrics import read_metrics
from rlvr.study.study import Study
from rlvr.study.validation import read_yaml

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")

ROOT = Path(__file__).parents[2]
RUN = "tiny-delta-s1"
_PATIENCE_SECONDS = 1500


def command(directory: Path, module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def call(directory: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of our commands in ``directory``."""
    return subprocess.run(
        command(directory, module, *arguments),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def study_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke study up to what training reads: base model, problems, run.json, cluster.json."""
    directory = tmp_path_factory.mktemp("study")
    study = Study.resolve(read_yaml(ROOT / "config" / "verl_smoke.yaml"), "verl_smoke.yaml")
    model = study.config["models"]["tiny"]
    settings = canonical_json({"architecture": model["architecture"], **model["training"]})
    count = str(model["training"]["steps"] * model["training"]["batch_size"])
    corpus, base = "results/base/tiny/corpus.jsonl", "results/base/tiny"
    problems = study.config["problems"]
    often = ["--checkpoint-interval", "100"]
    draw = ["--kinds", json.dumps(problems["kinds"]), "--count", str(problems["count"]), "--seed", "1"]
    for module, *arguments in (
        ("rlvr.base_model", "corpus", "--settings", canonical_json(model["corpus"]), "--count", count, "--out", corpus),
        (
            "rlvr.base_model",
            "train",
            "--settings",
            settings,
            "--corpus",
            corpus,
            "--threads",
            "1",
            *often,
            "--out",
            base,
        ),
        ("evals.problems", "draw", "--name", "train", "--split", "train", *draw, "--out", "results/problems/train"),
    ):
        answer = call(directory, module, *arguments)
        assert answer.returncode == 0, answer.stderr
    place = directory / "results" / "runs" / RUN
    place.mkdir(parents=True)
    (place / "run.json").write_text(canonical_json(study.resolved_run(RUN)), encoding="utf-8")
    (place / "cluster.json").write_text(canonical_json(study.cluster(RUN)), encoding="utf-8")
    return directory


@pytest.mark.long
def test_a_run_killed_in_the_middle_is_continued_and_merged(study_directory: Path) -> None:
    place = study_directory / "results" / "runs" / RUN
    words = command(study_directory, "rlvr.engines.verl", "train", str(place / "run.json"), "--python", sys.executable)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(words, cwd=study_directory, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not list(place.glob("state/*/global_step_2/shards.json")):
        assert first.poll() is None and time.monotonic() < deadline, (place / "verl" / "verl.log").read_text()[-3000:]
        time.sleep(0.5)
    (driver,) = children_of(first.pid)
    os.kill(driver, signal.SIGKILL)
    _, error = first.communicate(timeout=_PATIENCE_SECONDS)
    assert first.returncode == 2 and f"{RUN}: verl ended with step " in error and error.count("\n") == 1

    again = call(study_directory, "rlvr.engines.verl", "train", str(place / "run.json"), "--python", sys.executable)
    assert again.returncode == 0, again.stderr[-2000:] + (place / "verl" / "verl.log").read_text()[-3000:]
    assert f"{RUN}: continues after step " in again.stdout
    manifest = verify_outputs(place / "manifest.json", "run")
    assert manifest.details["steps"] == 4 and manifest.details["optimizer_steps"] == 8
    assert manifest.details["merged_log_prob_difference"] < 0.05
    assert "checkpoint/model.safetensors" in manifest.outputs
    metrics = pd.read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == [1, 2, 3, 4]
    assert metrics["groups_whole_fraction"].tolist() == [1.0] * 4
    assert metrics["token_weight_mean"].to_numpy() == pytest.approx(1.0, abs=1e-6)
    assert (metrics["token_weight_p95"] > metrics["token_weight_p05"]).all()
    # vLLM samples from the policy that is trained: the same log-probs, but for rounding.
    assert (metrics["rollout_log_prob_difference_mean"] < 1e-4).all()
    # The names that the default tests hold to the local engine's are still those that verl's runs have.
    recorded = read_metrics([ROOT / "tests" / "unit" / "tracking" / "recorded_verl_metrics.jsonl"], 2)
    assert set(metrics.columns) == set(recorded.columns)
    assert (metrics["grad_norm"] > 0).all() and metrics["reward_mean"].between(0, 1).all()

    finished = call(study_directory, "rlvr.engines.verl", "train", str(place / "run.json"), "--python", sys.executable)
    assert finished.returncode == 0, finished.stderr
    assert len(list((place / "verl").glob("metrics*.jsonl"))) == 2  # it was not started a third time


def children_of(pid: int) -> list[int]:
    """Processes that were started by ``pid`` itself."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [int(child) for child in listed]
