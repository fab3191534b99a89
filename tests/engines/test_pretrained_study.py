"""config/smollm2.yaml cut down, by the local engine: from the model and its warm start to tables and the report."""

from __future__ import annotations

import csv
import json
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from evals.core.files import read_json, read_parquet
from evals.core.manifest import verify_outputs
from evals.core.yaml_file import read_yaml
from rlvr.engines.rollouts import kept_steps
from rlvr.tokens.table import read_token_table
from tests.workflow.conftest import Project, copy_project

pytest.importorskip("gguf", reason="gguf is not in this environment: make test-engines")
pytestmark = pytest.mark.long

STEPS, PROMPTS, SAMPLES, LENGTH = 2, 4, 2, 24
METHODS = ("dapo", "delta")
THINGS = ["apples", "pens", "coins", "shells", "books", "cups", "kites", "stamps", "eggs", "maps", "bells", "nuts"]
THINGS += ["rings", "boxes", "plums", "cards"]
HELD_OUT = 2
"""Of the problems about these things, as many are in the tenth that the study holds out."""
COUNTS = ("rows", "distinct_rows", "distinct_texts", "distinct_problems", "kept")
BENCHMARKS = ("mawps_asdiv_a_test", "svamp")
VERIFIER = """
def verify(problem, response):
    return len(response) % 10 / 10
"""
"""Rewards that differ within a group: after two steps of warm start hardly an answer is right."""


def write_problems(directory: Path) -> None:
    """Write made-up problems in the forms of the releases, as the study's files."""
    directory.mkdir()
    with open(directory / "mawps_asdiv_a_train.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Question", "Numbers", "Equation", "Answer", "group_nums", "Body", "Ques"])
        for number, things in enumerate(THINGS, start=2):
            body, asked = f"Ann had number0 {things} and got number1 more .", f"How many {things} has she ?"
            numbers, answer = f"{number}.0 3.0", f"{number + 3}.0"
            writer.writerow([f"{body} {asked}", numbers, "+ number0 number1", answer, "[1, 2]", body, asked])
    svamp = [
        {"ID": f"chal-{n}", "Body": f"Bo has {n} hats and {n} caps", "Question": "How many in all?", "Answer": 2.0 * n}
        for n in range(1, HELD_OUT + 1)
    ]
    (directory / "svamp.json").write_text(json.dumps(svamp), encoding="utf-8")


def change(path: Path, **changes: Any) -> None:
    """Replace keys of a YAML file."""
    path.write_text(yaml.safe_dump({**read_yaml(path), **changes}), encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Project:
    """A copy of the project in which the study has been run, with other files in the place of its data."""
    project = copy_project(tmp_path_factory.mktemp("study") / "project")
    config = project.root / "config"
    (project.root / "models").mkdir()
    (project.root / "models" / smollm2.name).symlink_to(smollm2)
    write_problems(project.root / "data")
    (project.root / "verifier.py").write_text(VERIFIER, encoding="utf-8")
    # What is known of the releases does not hold of these files.
    change(config / "datasets/mawps_asdiv_a_train.yaml", counts=dict.fromkeys(COUNTS), conflicts=None, sha256=None)
    for name in BENCHMARKS:
        change(config / f"benchmarks/{name}.yaml", count=HELD_OUT, sha256=None)
    whole = read_yaml(config / "smollm2.yaml")
    model, problems = whole["models"]["smollm2"], whole["problems"]
    problems["verifier"] = "verifier.py"
    del problems["exclude"]
    model["fine_tuning"] |= {"steps": STEPS, "batch_size": PROMPTS, "warmup_steps": 0}
    training = {"steps": STEPS, "prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES, "micro_batch_size": 4}
    study = {
        "extends": "smollm2.yaml",
        "study": "cut_down",
        "seeds": [1],
        "models": {"smollm2": model},
        "problems": problems,
        "benchmarks": list(BENCHMARKS),
        "benchmark_sources": {name: {"path": whole["benchmark_sources"][name]["path"]} for name in BENCHMARKS},
        "methods": {method: {} for method in METHODS},
        "training": training | {"max_new_tokens": LENGTH, "warmup_updates": 0},
        "evaluation": {"max_new_tokens": LENGTH},
        "statistics": {"resamples": 1000, "permutations": 2000},
        "execution": {"rollouts_kept_every": 1},
    }
    (config / "cut_down.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    answer = project.snakemake("--cores", "1", config=config / "cut_down.yaml")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return project


def test_the_model_is_converted_and_warmed(project: Project) -> None:
    base = project.root / "results/base"
    assert read_json(base / "smollm2-pretrained/checkpoint/config.json")["vocab_size"] == 49_152
    before = verify_outputs(base / "smollm2-pretrained/manifest.json", "base_model").outputs
    manifest = verify_outputs(base / "smollm2/manifest.json", "base_model")
    assert manifest.details["steps"] == STEPS and manifest.details["solutions"] == len(THINGS) - HELD_OUT
    assert manifest.details["model_computed_by"] == "batched decoder"
    weights = "checkpoint/model.safetensors"
    assert manifest.outputs[weights] != before[weights]
    warm_start = read_parquet(base / "smollm2/metrics.parquet")
    assert warm_start["step"].tolist() == [1, 2]
    assert np.isfinite(warm_start["loss"]).all() and (warm_start["grad_norm"] > 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_trained_and_its_rollouts_are_kept(project: Project, method: str) -> None:
    place = project.root / f"results/runs/smollm2-{method}-s1"
    details = verify_outputs(place / "manifest.json", "run").details
    metrics = read_parquet(place / "metrics.parquet")
    assert np.isfinite(metrics.to_numpy(dtype=float)).all() and metrics["step"].tolist() == [1, 2]
    assert metrics["prompts_sampled"].tolist() == [PROMPTS] * STEPS and (metrics["grad_norm"] > 0).all()
    assert details["optimizer_steps"] == 2 * STEPS
    assert metrics["tokens_generated"].between(PROMPTS * SAMPLES, PROMPTS * SAMPLES * LENGTH).all()
    assert (metrics["contrast_degrees"] > 0).all() == (method == "delta") and "contrast_floor_degrees" in metrics
    kept = dict(kept_steps(place))
    assert list(kept) == [1, 2]
    for step, directory in kept.items():
        rows = read_token_table(directory)
        assert len(rows) == metrics["tokens_generated"][step - 1]
        rewards = rows.groupby(["group", "sample"])["reward"].first()
        assert len(rewards) == PROMPTS * SAMPLES
        assert rewards.mean() == pytest.approx(metrics["reward_mean"][step - 1])
        assert (rows["weight"].nunique() > 1) == (method == "delta") and (rows["old_log_prob"] <= 0).all()


def test_scores_tables_and_report_have_the_model_before_and_after(project: Project) -> None:
    results = project.root / "results"
    runs = ["smollm2-base", *(f"smollm2-{method}-s1" for method in METHODS)]
    for name in BENCHMARKS:
        scores = read_json(results / f"scores/{name}.json")["scores"]
        assert [row["run"] for row in scores] == runs
        assert all(len(row["correct_counts"]) == HELD_OUT and 0 <= row["average_at_k"] <= 1 for row in scores)
    with open(results / "tables/main.csv", encoding="utf-8", newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["base", *METHODS]
    assert isfinite(float(rows["delta"]["contrast_degrees"])) and not rows["dapo"]["contrast_degrees"]
    assert "Contrast (°)" in (results / "tables/main.md").read_text(encoding="utf-8")
    assert 'href="rollouts/index.html"' in (results / "report.html").read_text(encoding="utf-8")
