"""Real verl trains on CPUs: DelTA on query-preserved mini-batches, killed, its newest state damaged, continued, merged.

Its loss has everything that a method can have: a divergence from verl's reference worker, an entropy bonus, a
correction of the sampler; loss and aggregation are in a file of the user's. The run of the short form; other methods
are in test_verl_methods.py.
"""

from __future__ import annotations

import os

import pandas as pd
import pytest

from evals.core.files import read_jsonl
from evals.core.manifest import verify_outputs
from rlvr.engines.rollouts import rollout_directory
from rlvr.methods.component_file import component_copy
from rlvr.runs.job import METRICS_SO_FAR
from rlvr.tokens.table import read_token_table
from tests.engines.study_directory import (
    ROOT,
    StudyDirectory,
    base_log_probs,
    check_merged,
    last_words,
    smoke_study,
    started,
    train_until_killed,
    wait_for_end_of_processes,
)

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")

METHOD, STEPS = "delta_with_terms", 5
RUN = f"tiny-{METHOD}-s1"
TERMS = {
    "kl": {"name": "loss_term", "coefficient": 0.04, "estimator": "k3"},
    "correction": {"name": "truncated", "level": "token", "cap": 2.0},
    "entropy_bonus": {"name": "target", "target": 5.0, "start": 0.001, "step": 0.001, "most": 1.0},
    "batching": {"assignment": {"name": "query_preserved"}},
}
OF_TERMS = {"reference_kl", "seconds_reference", "correction_weight", "corrected_fraction"}
OF_TERMS |= {"entropy_control", "entropy_coefficient", "factor_of_the_file", "away_from_reference"}
"""Their columns, and those of the file's loss."""
COMPONENTS = """import torch
from rlvr.methods.aggregation import TokenShares
from rlvr.methods.losses.base import TokenLoss
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.parameters import component, hyper_parameter

@component("mine")
class Mine(Clipped):
    factor: float = hyper_parameter(1.0, "of a metric", above=0.0)

    def token_loss(self, tokens):
        loss = super().token_loss(tokens)
        factor = torch.full_like(tokens.ratios, self.factor)
        away = (tokens.old_log_probs - tokens.given_reference_log_probs).abs()
        return TokenLoss(loss.values, {**loss.metrics, "factor_of_the_file": factor, "away_from_reference": away})

@component("by_tokens")
class ByTokens(TokenShares):
    def shares(self, response_mask, normaliser, group_ids):
        return response_mask / normaliser.tokens
"""
"""DelTA's own loss, whose token mean is spelled out."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    """The smoke study's base model and problems; every step of verl's is saved."""
    path, optimizer = tmp_path_factory.mktemp("study"), {"adam_beta2": 0.99, "adam_epsilon": 1e-7}
    (path / "mine.py").write_text(COMPONENTS)
    part = {"file": str(path / "mine.py")}
    loss = {**part, "name": "mine", "factor": 2.0, "aggregation": {**part, "name": "by_tokens"}}
    config = smoke_study(training={"steps": STEPS, **optimizer}, execution={"checkpoint_interval": 1})
    config |= {"methods": {METHOD: {"extends": "delta", "loss": loss, **TERMS}}, "reference_method": METHOD}
    directory = StudyDirectory(path, config)
    copy = component_copy(path / "mine.py").with_name("manifest.json")
    directory.snakemake("results/base/tiny/manifest.json", "results/problems/train/manifest.json", str(copy))
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
    check_merged(study, place, STEPS)
    assert manifest.details["optimizer"] == {"name": "AdamW", "betas": [0.9, 0.99], "epsilon": 1e-7}
    assert manifest.details["prompts_left_out"] == 0
    assert "checkpoint/model.safetensors" in manifest.outputs
    assert not (place / METRICS_SO_FAR).exists()
    metrics = pd.read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(1, STEPS + 1))
    assert metrics["groups_whole_fraction"].tolist() == [1.0] * STEPS
    assert metrics["token_weight_mean"].to_numpy() == pytest.approx(1.0, abs=1e-6)
    of_use = metrics["groups_mixed_fraction"] > 0.5  # where vLLM has drawn few right answers, few tokens are weighed
    assert (metrics["token_weight_p95"] > metrics["token_weight_p05"])[of_use].all()
    # vLLM samples from the policy that is trained: the same log-probs, but for rounding.
    assert (metrics["sampler_difference_mean"] < 1e-4).all()
    assert metrics["factor_of_the_file"].to_numpy() == pytest.approx(2.0)
    assert metrics["correction_weight"].to_numpy() == pytest.approx(1.0, abs=1e-3)
    # The reference is the base model and not the policy of the step before.
    kept = read_token_table(rollout_directory(place, 4))
    kept["away"] = (kept["old_log_prob"] - base_log_probs(study, place, kept).numpy()).abs()
    away, of_base = metrics["away_from_reference"], kept.groupby("mini_batch")["away"].mean().mean()
    assert away[0] < 1e-4 < away[3] == pytest.approx(of_base, rel=1e-3) and (metrics["reference_kl"] > 0).all()
    # The coefficient grows step by step, through the kill: what it is computed from is beside the states.
    assert metrics["entropy_coefficient"].to_numpy() == pytest.approx([0.001 * step for step in range(1, STEPS + 1)])
    # The names that the default tests hold to the local engine's are still those that verl's runs have.
    recorded = read_jsonl(ROOT / "tests" / "unit" / "tracking" / "recorded_verl_metrics.jsonl")
    assert set(metrics.columns) == set(recorded[0]) | OF_TERMS
    assert (metrics["grad_norm"] > 0).all() and metrics["reward_mean"].between(0, 1).all()

    finished = study.train(place)
    assert finished.returncode == 0, finished.stderr
    assert started(place) == 2  # and not a third time
    wait_for_end_of_processes(place)
