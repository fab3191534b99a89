"""Real verl and vLLM interrupt rollouts for updates and continue them; the run is killed and continued, too."""

from __future__ import annotations

import pandas as pd
import pytest

from evals.core.manifest import verify_outputs
from tests.engines.study_directory import (
    StudyDirectory,
    last_words,
    random_study,
    train_until_killed,
    wait_for_end_of_processes,
)

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")

RUN, STEPS, POLICIES = "random-dapo-s1", 5, 3


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    """A random model ends a response at any token with one probability: half of a step's take many seconds longer."""
    path = tmp_path_factory.mktemp("study")
    config = random_study(path, "random", vocabulary=2048, context=4096)
    partial = {"batches_ahead": 1, "policies": POLICIES, "importance_limit": 2}
    sizes = {"steps": STEPS, "prompts_per_step": 8, "samples_per_prompt": 2, "max_new_tokens": 3900}
    config["training"] |= {**sizes, "partial_rollouts": partial}
    config["methods"] = {"dapo": {}}
    return StudyDirectory(path, config)


@pytest.mark.long
def test_rollouts_go_on_under_the_next_policy(study: StudyDirectory) -> None:
    study.snakemake(*(f"results/{name}/manifest.json" for name in ("base/random", "problems/train", "verifiers/train")))
    place = study.write_run(RUN, checkpoints_kept=STEPS)
    saved, error = train_until_killed(study, place, 3)
    assert saved < STEPS, error
    again = study.train(place)
    assert again.returncode == 0, again.stderr[-2000:] + last_words(place)
    assert f"{RUN}: continues after step {saved} of {STEPS}" in again.stdout
    assert verify_outputs(place / "manifest.json", "run").details["steps"] == STEPS
    metrics = pd.read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(1, STEPS + 1))
    assert metrics["rollout_age_max"].iloc[0] == 0, "the first step has one policy"
    assert 0 < metrics["rollout_age_max"].max() < POLICIES and (metrics["rollouts_interrupted_fraction"] > 0).any()
    assert (metrics["importance_ratio_mean"] - 1).abs().max() < 0.05 and (metrics["grad_norm"] > 0).all()
    wait_for_end_of_processes(place)
