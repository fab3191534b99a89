"""A pretrained model with its own tokenizer and chat template, two steps by verl and vLLM: rewards and log-probs."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from evals.core.files import read_jsonl
from evals.core.manifest import verify_outputs
from evals.generation.checkpoint import Checkpoint
from evals.grading import Case, GradingPool
from rlvr.engines.rollouts import rollout_directory
from rlvr.study.study_file import read_study_file
from rlvr.tokens.table import read_token_table
from tests.engines.study_directory import (
    ROOT,
    StudyDirectory,
    base_log_probs,
    check_merged,
    last_words,
    wait_for_end_of_processes,
)

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")
pytestmark = pytest.mark.long

RUN, STEPS, ROLLOUTS, LENGTH = "smollm2-delta-s1", 2, 32, 32
BASE = "results/base/smollm2/checkpoint"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> StudyDirectory:
    """config/smollm2_smoke.yaml by verl on the CPU; verl writes down its rollouts."""
    config = read_study_file(ROOT / "config" / "smollm2_smoke.yaml")
    path = tmp_path_factory.mktemp("study")
    config["engine"] = "verl"
    config["models"]["smollm2"]["path"] = str(smollm2)
    for key in ("micro_batch_size", "micro_batch_tokens", "sampling_batch_size"):
        del config["training"][key]
    config["training"] |= {"samples_per_prompt": ROLLOUTS // config["training"]["prompts_per_step"]}
    config["training"] |= {"max_prompt_tokens": 128, "max_new_tokens": LENGTH}
    # So asked, it gives a final answer in every second response, and some are right.
    config["problems"]["prompt"], config["training"]["temperature"] = "{problem} Say: The final answer is", 0.5
    config.pop("contrast_steps")
    del config["execution"]["gradient_checkpointing"]
    cluster = {"platform": "cpu_launch", "nodes": 1, "gpus_per_node": 1, "tokens_per_device": 1024}
    cluster["overrides"] = {"trainer.rollout_data_dir": str(path / "rollouts")}
    config["execution"] |= {"training_python": sys.executable, "training_threads": 4, "cluster": cluster}
    config["execution"]["rollouts_kept_every"] = STEPS
    directory = StudyDirectory(path, config)
    directory.snakemake("results/base/smollm2/manifest.json", "results/problems/train/manifest.json")
    return directory


@pytest.fixture(scope="module")
def run(study: StudyDirectory) -> Path:
    """The directory of the run that verl has done."""
    place = study.write_run(RUN)
    answer = study.train(place)
    assert answer.returncode == 0, answer.stderr[-2000:] + last_words(place)
    wait_for_end_of_processes(place)
    return place


def test_rewards_and_log_probs_are_those_of_this_project(study: StudyDirectory, run: Path) -> None:
    verify_outputs(run / "manifest.json", "run")
    check_merged(study, run, STEPS)
    metrics = pd.read_parquet(run / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(1, STEPS + 1)) and (metrics["grad_norm"] > 0).all()
    # vLLM and the trainer compute in float32.
    assert (metrics["sampler_difference_mean"] < 1e-4).all()
    tokenizer = Checkpoint(study.path / BASE).tokenizer
    for step in range(1, STEPS + 1):
        rows = list(read_jsonl(study.path / "rollouts" / f"{step}.jsonl"))
        assert len(rows) == ROLLOUTS
        assert {row["input"].split("\n")[0] for row in rows} == {"system"}, "the turns of the chat template"
        lengths = [len(tokenizer.encode(row["output"], add_special_tokens=False)) for row in rows]
        cases = [
            Case(prediction=row["output"], gold=row["gts"], truncated=length >= LENGTH)
            for row, length in zip(rows, lengths, strict=True)
        ]
        with GradingPool(workers=1) as pool:
            ours = [float(verdict.correct) for verdict in pool.grade(cases)]
        assert ours == [row["score"] for row in rows]
        assert metrics["reward_mean"][step - 1] == pytest.approx(sum(ours) / ROLLOUTS)
        assert tokenizer.get_vocab_size() == 49_152


def test_the_local_engine_has_the_log_probs_of_verls_trainer(study: StudyDirectory, run: Path) -> None:
    """Before the first update the policy is the base model, which the local engine computes by layers of its own.

    Both compute in float32: in bfloat16 rounding would hide what a mistake in positions or in the prompt changes.
    """
    rows = read_token_table(rollout_directory(run, 1))
    of_rollouts = rows.groupby(["group", "sample"], sort=False)
    assert len(of_rollouts) == ROLLOUTS and rows["weight"].nunique() > 1
    difference = (base_log_probs(study, run, rows) - torch.tensor(rows["old_log_prob"].to_numpy())).abs()
    assert difference.max() < 1e-4
