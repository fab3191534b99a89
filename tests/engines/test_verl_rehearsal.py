"""`rlvr-bench rehearse` by real verl and vLLM: two steps, states, merger, samples, grades, scores, with one command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from evals.core.files import read_parquet
from tests.engines.study_directory import ROOT, environment, smoke_study, wait_for_end_of_processes

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")


@pytest.mark.long
def test_a_study_is_rehearsed_from_its_model_to_its_scores(tmp_path: Path) -> None:
    file, out = tmp_path / "study.yaml", tmp_path / "rehearsal"
    file.write_text(yaml.safe_dump(smoke_study()), encoding="utf-8")
    words = ["rehearse", str(file), "--method", "delta", "--out", str(out), "--cores", "1"]
    answer = subprocess.run(
        [sys.executable, "-m", "rlvr", *words], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    logs = [path.read_text(errors="replace")[-3000:] for path in out.glob("results/logs/**/*.log")]
    assert answer.returncode == 0, "\n".join([answer.stdout, answer.stderr, *logs])
    place = out / "results/runs/tiny-delta-s1"
    metrics = read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == [1, 2] and (metrics["rollout_log_prob_difference_mean"] < 1e-4).all()
    assert (metrics[["seconds_save", "seconds_weight_sync"]] > 0).all(axis=None)
    assert "tiny-delta-s1: 2 steps by verl, states saved" in answer.stdout and "rollout_log_prob" in answer.stdout
    assert "tiny-delta-s1 on chain_3, one sample a problem:" in answer.stdout
    wait_for_end_of_processes(place)
