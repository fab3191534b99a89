"""`rlvr-bench rehearse` by real verl and vLLM: two steps, states, merger, samples, grades, scores, with one command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from evals.core.files import read_jsonl, read_parquet
from rlvr.engines.rollouts import kept_steps
from rlvr.tokens.table import read_token_table
from tests.commands import ended
from tests.engines.study_directory import ROOT, environment, smoke_study, wait_for_end_of_processes

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")


@pytest.mark.long
def test_a_study_is_rehearsed_from_its_model_to_its_scores(tmp_path: Path) -> None:
    file, out = tmp_path / "study.yaml", tmp_path / "rehearsal"
    file.write_text(yaml.safe_dump(smoke_study()), encoding="utf-8")
    words = ["rehearse", str(file), "--method", "delta", "--out", str(out), "--cores", "1"]
    answer = ended([sys.executable, "-m", "rlvr", *words], cwd=ROOT, env=environment())
    logs = [path.read_text(errors="replace")[-3000:] for path in out.glob("results/logs/**/*.log")]
    assert answer.returncode == 0, "\n".join([answer.stdout, answer.stderr, *logs])
    place = out / "results/runs/tiny-delta-s1"
    metrics = read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == [1, 2] and (metrics["sampler_difference_mean"] < 1e-4).all()
    assert (metrics[["seconds_save", "seconds_weight_sync"]] > 0).all(axis=None)
    assert "tiny-delta-s1: 2 steps by verl, states saved" in answer.stdout
    assert "sampler_difference_mean" in answer.stdout
    assert "tiny-delta-s1 on chain_3, one sample a problem:" in answer.stdout
    kept = dict(kept_steps(place))
    assert list(kept) == [1, 2], "config/smoke.yaml has rollouts_kept_every: 2"
    problems = {str(row["id"]) for row in read_jsonl(out / "results/problems/train/problems.jsonl")}
    for step, directory in kept.items():
        rows = read_token_table(directory)
        assert len(rows) == metrics["tokens_generated"][step - 1] and set(rows["problem"]) <= problems
        assert (rows["old_log_prob"] <= 0).all() and (rows["entropy"] >= 0).all() and (rows["weight"] > 0).all()
        rollouts = rows.groupby(["group", "sample"]).first()
        assert rollouts["reward"].mean() == pytest.approx(metrics["reward_mean"][step - 1])
        assert (rollouts.groupby("group")["problem"].nunique() == 1).all()
    wait_for_end_of_processes(place)
