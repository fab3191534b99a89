"""A random Qwen3 of two layers with as many tokens as a real one, by verl and vLLM: killed, continued, merged."""

from __future__ import annotations

import pandas as pd
import pytest

from evals.core.files import read_json
from evals.core.manifest import verify_outputs
from tests.engines.study_directory import (
    StudyDirectory,
    last_words,
    random_study,
    train_until_killed,
    wait_for_end_of_processes,
)

RUN, STEPS = "qwen3-delta-s1", 4
VOCABULARY = 151_936


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    path = tmp_path_factory.mktemp("study")
    config = random_study(path, "qwen3", VOCABULARY)
    config["training"]["steps"] = STEPS
    # 512 tokens with all logits in float32 take 297 MiB.
    config["execution"]["cluster"] = {**config["execution"]["cluster"], "tokens_per_device": 512}
    return StudyDirectory(path, config)


@pytest.mark.long
def test_a_real_vocabulary_is_trained_sampled_saved_and_merged(study: StudyDirectory) -> None:
    pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
    pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")
    study.snakemake(*(f"results/{name}/manifest.json" for name in ("base/qwen3", "problems/train", "verifiers/train")))
    place = study.write_run(RUN, checkpoints_kept=STEPS)
    saved, error = train_until_killed(study, place, 2)
    assert saved < STEPS, error
    again = study.train(place)
    assert again.returncode == 0, again.stderr[-2000:] + last_words(place)
    assert f"{RUN}: continues after step {saved} of {STEPS}" in again.stdout
    details = verify_outputs(place / "manifest.json", "run").details
    assert details["steps"] == STEPS and details["merged_log_prob_difference"] < 0.05
    assert read_json(place / "checkpoint" / "config.json")["vocab_size"] == VOCABULARY
    metrics = pd.read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(1, STEPS + 1))
    # vLLM and the trainer compute in float32, and nearly every token is as likely as any other.
    assert (metrics["rollout_log_prob_difference_mean"] < 1e-4).all() and (metrics["entropy"] > 11.0).all()
    assert (metrics["grad_norm"] > 0).all() and metrics["reward_mean"].between(0.2, 0.8).all()
    wait_for_end_of_processes(place)
