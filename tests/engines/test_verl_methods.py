"""Real verl trains the laptop study's base model on CPUs: methods for three steps, one until its reward rises.

DAPO is the long run; DelTA on one rank is what test_verl_training kills and continues.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evals.core.manifest import verify_outputs
from rlvr.engines.rollouts import kept_steps
from rlvr.study.study_file import read_study_file
from rlvr.tokens.table import read_token_table
from tests.engines.study_directory import (
    ROOT,
    StudyDirectory,
    check_merged,
    last_words,
    recorded_steps,
    smoke_study,
    started,
    wait_for_end_of_processes,
)

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")
pytestmark = pytest.mark.long

STEPS, UPDATES, PROMPTS, SAMPLES = 3, 2, 16, 8
SAPO_BALANCED = "sapo_query_preserved_reward_balanced"
TWO_RANKS = "delta_query_preserved_on_two_ranks"
RISING, RISING_STEPS = "dapo_for_long", 30
STOPPING, STOPPING_STEPS = "dapo_until_a_reward_is_no_new_high", 8
BENCHMARK = "worded_4"
KL = {"name": "loss_term", "coefficient": 0.04, "estimator": "k3"}
EVERY_RUN_HAS = {
    "reward_mean",
    "response_length_mean",
    "groups_whole_fraction",
    "tokens_generated",
    "entropy",
    "grad_norm",
    "loss",
    "approximate_kl",
    "sampler_difference_mean",
    "seconds_rollout",
    "seconds_step",
}
Metrics = pd.DataFrame


def groups_are_torn(metrics: Metrics, _of_batch: pd.Series) -> None:
    assert (metrics["groups_whole_fraction"] < 1).all()


def groups_are_whole(metrics: Metrics, _of_batch: pd.Series) -> None:
    assert (metrics["groups_whole_fraction"] == 1).all()


def nothing_is_clipped(metrics: Metrics, _of_batch: pd.Series) -> None:
    assert "clip_fraction" not in metrics, "SAPO's gate has no edge"


def weights_have_mean_one(metrics: Metrics, _of_batch: pd.Series) -> None:
    assert metrics["token_weight_mean"].to_numpy() == pytest.approx(1.0, abs=1e-5)
    assert (metrics["token_weight_p05"] < metrics["token_weight_p95"]).all()


def a_fifth_is_selected(metrics: Metrics, _of_batch: pd.Series) -> None:
    assert metrics["selected_token_fraction"].to_numpy() == pytest.approx(0.2, abs=0.01)
    assert (metrics["token_weight_p05"] == 0).all()


def the_future_weighs(metrics: Metrics, _of_batch: pd.Series) -> None:
    """What only this method measures has arrived without a list that names it."""
    weights = metrics["future_weight"]
    assert weights.between(1.0, 1.2).all() and (weights > 1.0).all()
    assert (metrics["dropped_fraction"] == 0).all()


def the_reference_is_left(metrics: Metrics, _of_batch: pd.Series) -> None:
    assert 0 < metrics["reference_kl"].iloc[0] < metrics["reference_kl"].iloc[-1]


def each_prompt_of_no_use_was_replaced(metrics: Metrics, of_batch: pd.Series) -> None:
    """Check that no prompt more is sampled than it takes to fill the batch with those whose rollouts differ."""
    sampled = metrics["prompts_sampled"]
    assert (sampled > PROMPTS).any(), "nothing was replaced: nothing is shown"
    assert (metrics["groups_mixed_fraction"] * sampled).to_numpy() == pytest.approx(PROMPTS)
    assert metrics["rollouts_discarded_fraction"].to_numpy() == pytest.approx(1 - PROMPTS / sampled.to_numpy())
    assert of_batch.between(1 / SAMPLES, 1 - 1 / SAMPLES).all()


def right_and_wrong_are_balanced(metrics: Metrics, of_batch: pd.Series) -> None:
    """The trained batch, not all that was sampled, has three tenths of either, unless four rounds were not enough."""
    rounds = metrics["prompts_sampled"] / PROMPTS
    assert rounds.isin([1, 2, 3, 4]).all()
    assert (rounds < 4).any(), "balance was not reached once: nothing is shown"
    assert metrics["rollouts_discarded_fraction"].to_numpy() == pytest.approx(1 - 1 / rounds.to_numpy())
    rarer = of_batch.map(lambda mean: min(mean, 1 - mean))
    assert ((rarer >= 0.3) | (rounds == 4)).all()


Check = Callable[[Metrics, pd.Series], None]
METHODS: Mapping[str, tuple[Mapping[str, Any], list[Check]]] = {
    TWO_RANKS: (
        {"extends": "delta", "kl": KL, "batching": {"assignment": {"name": "query_preserved"}}},
        [groups_are_whole, weights_have_mean_one, the_reference_is_left],
    ),
    "fipo": ({}, [groups_are_torn, the_future_weighs]),
    "grpo_kl_in_reward": ({"kl": {"coefficient": 0.1}}, [groups_are_torn]),
    "kl_cov": ({"kl": KL, "loss": {"aggregation": "prompt-mean"}}, [groups_are_torn, the_reference_is_left]),
    "dapo_dynamic_sampling": ({}, [groups_are_torn, each_prompt_of_no_use_was_replaced]),
    "dapo_forking_tokens": ({}, [groups_are_torn, weights_have_mean_one, a_fifth_is_selected]),
    SAPO_BALANCED: (
        {"extends": "dapo_query_preserved_reward_balanced", "loss": {"name": "sapo"}},
        [groups_are_whole, right_and_wrong_are_balanced, nothing_is_clipped],
    ),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> StudyDirectory:
    """The laptop study's base model and problems, in a directory that verl's runs share.

    They are made in pytest's cache, which has them the next time.
    """
    laptop = read_study_file(ROOT / "config" / "sharpening.yaml")
    config = smoke_study(
        models=laptop["models"],
        problems=laptop["problems"],
        training={"steps": STEPS, "prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES, "max_new_tokens": 128},
        execution={"base_threads": 2, "checkpoint_interval": STEPS},
    )
    methods = {name: dict(changes) for name, (changes, _) in METHODS.items()}
    rule = {"steps": STOPPING_STEPS, "learning_rate": 1e-7, "early_stop": {"window": 1, "patience": 1}}
    methods[STOPPING] = {"extends": "dapo", "training": rule}
    config |= {"methods": methods, "reference_method": "fipo"}
    kept, path = pytestconfig.cache.mkdir("laptop-study"), tmp_path_factory.mktemp("study")  # type: ignore[union-attr]
    StudyDirectory(kept, config).snakemake(
        "results/base/tiny/manifest.json", "results/problems/train/manifest.json", "--nolock"
    )
    shutil.copytree(kept / "results", path / "results", symlinks=True)
    return StudyDirectory(path, config)


def rewards_of_batches(place: Path) -> pd.Series:
    """The mean reward of what each step trained on, from its kept rollouts."""
    tables = {step: read_token_table(directory) for step, directory in kept_steps(place)}
    means = {step: rows.groupby(["group", "sample"])["reward"].first().mean() for step, rows in tables.items()}
    return pd.Series(means)


def finished_metrics(study: StudyDirectory, place: Path, steps: int) -> Metrics:
    """Metrics of a run that did all of its steps and left a model that is the trainer's and not the base model."""
    manifest = verify_outputs(place / "manifest.json", "run")
    assert manifest.details["steps"] == steps and manifest.details["optimizer_steps"] == steps * UPDATES
    check_merged(study, place, steps)
    metrics = pd.read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(1, steps + 1))
    assert metrics.columns.isin(EVERY_RUN_HAS).sum() == len(EVERY_RUN_HAS), EVERY_RUN_HAS - set(metrics)
    in_every_step = metrics.drop(columns="seconds_save")
    assert np.isfinite(in_every_step.to_numpy(dtype=float)).all(), in_every_step
    assert metrics["reward_mean"].between(0, 1).all() and (metrics["grad_norm"] > 0).all()
    # vLLM samples from the policy that is trained: the same log-probs, but for rounding.
    assert (metrics["sampler_difference_mean"] < 1e-4).all()
    return metrics


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains(name: str, study: StudyDirectory, report_measured: Callable[[str, str], None]) -> None:
    ranks = 2 if name == TWO_RANKS else 1
    place = study.write_run(f"tiny-{name}-s1", gpus_per_node=ranks, rollouts_kept_every=1)
    answer = study.train(place)
    assert answer.returncode == 0, answer.stderr[-2000:] + last_words(place)
    metrics = finished_metrics(study, place, STEPS)
    for check in METHODS[name][1]:
        check(metrics, rewards_of_batches(place))
    wait_for_end_of_processes(place)
    rewards = " ".join(f"{reward:.2f}" for reward in metrics["reward_mean"])
    seconds = metrics["seconds_step"].iloc[1:].mean()
    report_measured(f"verl, {name}", f"{STEPS} steps, reward {rewards}, {seconds:.1f} s a step after the first")


def test_a_run_stops_early_and_its_last_step_is_saved(study: StudyDirectory) -> None:
    place = study.write_run(f"tiny-{STOPPING}-s1", checkpoint_interval=STOPPING_STEPS)
    answer = study.train(place)
    assert answer.returncode == 0, answer.stderr[-2000:] + last_words(place)
    rewards = pd.read_parquet(place / "metrics.parquet")["reward_mean"].tolist()
    assert rewards[-1] <= max(rewards[:-1]) and rewards[:-1] == sorted(set(rewards[:-1]))
    # Rewards that rise seven times though nothing is learned: 1 in 40,320.
    assert len(rewards) < STOPPING_STEPS and f"stopped after step {len(rewards)} of {STOPPING_STEPS}" in answer.stdout
    assert verify_outputs(place / "manifest.json", "run").details["steps"] == len(rewards)
    assert recorded_steps(place) == [len(rewards)], "of no other step is there a state"
    again = study.train(place)
    assert again.returncode == 0 and started(place) == 1, "it was started again"
    wait_for_end_of_processes(place)


def test_the_reward_and_the_score_rise(study: StudyDirectory, report_measured: Callable[[str, str], None]) -> None:
    """The whole way by Snakemake: verl trains, its shards are merged, vLLM samples both models, and they are graded."""
    config = study.config | {
        "study": "rising",
        "methods": {RISING: {"extends": "dapo", "training": {"steps": RISING_STEPS}}},
        "reference_method": RISING,
        "benchmarks": [BENCHMARK],
        "evaluation": study.config["evaluation"] | {"backend": "vllm", "samples_per_problem": 8, "max_new_tokens": 96},
        "execution": study.config["execution"] | {"checkpoint_interval": 10},
    }
    StudyDirectory(study.path, config).snakemake(f"results/scores/{BENCHMARK}.json")
    place = study.path / "results" / "runs" / f"tiny-{RISING}-s1"
    metrics = finished_metrics(study, place, RISING_STEPS)
    groups_are_torn(metrics, metrics["reward_mean"])
    first, last = metrics["reward_mean"].iloc[:5].mean(), metrics["reward_mean"].iloc[-10:].mean()
    report_measured("verl, 30 steps", f"reward {first:.2f} in the first five steps, {last:.2f} in the last ten")
    assert last > first + 0.1
    rows = json.loads((study.path / f"results/scores/{BENCHMARK}.json").read_text(encoding="utf-8"))["scores"]
    scores = {row["run"]: row["average_at_k"] for row in rows}
    assert scores.keys() == {"tiny-base", place.name}
    report_measured(
        f"vLLM, avg@8 on {BENCHMARK}", f"base model {scores['tiny-base']:.2f}, after 30 steps {scores[place.name]:.2f}"
    )
    for run in scores:
        samples = json.loads((study.path / f"results/samples/{run}/{BENCHMARK}/manifest.json").read_text())
        assert samples["parameters"]["engine"] == "vllm"
    assert scores[place.name] > scores["tiny-base"] + 0.1
