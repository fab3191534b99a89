"""A study of models alone: a checkpoint taken in, more samples."""

import json
from pathlib import Path
from typing import Any

import yaml

from evals.core.files import read_jsonl
from tests.workflow.conftest import Project

SETTINGS: dict[str, Any] = {
    "study": "taken_in",
    "models": {
        "taken": {
            "source": "hugging_face",
            "path": "results/base/tiny/checkpoint",
            "prompt_form": "base",
            "dtype": "float32",
        }
    },
    "benchmarks": ["chain_3"],
    "evaluation": {
        "samples_per_problem": 2,
        "max_new_tokens": 32,
        "temperature": 1.0,
        "top_p": 1.0,
        "sampling_batch_size": 20,
        "seed": 1,
    },
    "statistics": {"seed": 1, "resamples": 200, "permutations": 200},
    "execution": {"device": "cpu", "sampling_threads": 1, "grading_workers": 1},
}
SAMPLES = "results/samples/taken-base/chain_3/samples.jsonl.bz2"


def write_study(project: Project, name: str, **changes: Any) -> Path:
    """The settings above with some sections changed, as a file of the project."""
    study = {key: {**value, **changes.get(key, {})} if key in changes else value for key, value in SETTINGS.items()}
    path = project.root / "config" / f"{name}.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def read_samples(project: Project) -> list[dict[str, Any]]:
    """The rows of the sample file."""
    return read_jsonl(project.root / SAMPLES)


def test_models_alone_are_sampled_scored_and_extended(finished_copy: Project) -> None:
    finished_copy.run("results/tables/main.md", config=write_study(finished_copy, "taken"))
    first = read_samples(finished_copy)
    table = (finished_copy.root / "results/tables/main.md").read_text()
    assert "checkpoint (taken)" in table and "Evaluated without training: checkpoint" in table
    assert "from scratch" not in table
    assert "DAPO" not in table

    more = write_study(finished_copy, "more", evaluation={"samples_per_problem": 4})
    planned = finished_copy.planned(more)
    assert {job for job in planned if job.startswith(("sample", "train", "base", "import"))} == {"sample taken-base"}
    finished_copy.run("results/samples/taken-base/manifest.json", config=more)
    rows = read_samples(finished_copy)
    manifest = json.loads((finished_copy.root / SAMPLES).with_name("manifest.json").read_text())
    assert [row for row in rows if row["sample"] < 2] == first
    assert manifest["details"]["rows_kept_from_earlier"] == len(first) == len(rows) // 2
