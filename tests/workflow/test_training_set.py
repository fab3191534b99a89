"""A study that trains on a published set: its problems are read, trained on, and read again when the copy changes."""

import pytest
import yaml

from evals.core.files import read_jsonl, write_jsonl
from tests.workflow.conftest import Project

ROWS = [{"question": f"What is {a}+{b}?", "final_answer": str(a + b)} for a in range(4) for b in range(5)]


@pytest.fixture
def project(finished_copy: Project) -> Project:
    """With a set of twenty problems in the catalogue of training sets, and a copy of it."""
    directory = finished_copy.root / "config/datasets"
    entry = yaml.safe_load((directory / "deepmath_103k.yaml").read_text())
    entry["counts"]["rows"] = len(ROWS)
    (directory / "twenty.yaml").write_text(yaml.safe_dump(entry))
    write_jsonl(finished_copy.root / "copy.jsonl", ROWS)
    return finished_copy


def test_a_published_set_is_read_and_trained_on(project: Project) -> None:
    problems = {"source": "twenty", "path": "copy.jsonl", "prompt": "{problem}\n"}
    study = {"problems": problems, "methods": {"dapo": {}}, "seeds": [1], "benchmarks": ["chain_3"]}
    config = project.changed_config(study)
    project.run("results/runs/tiny-dapo-s1/manifest.json", config=config)
    rows = read_jsonl(project.root / "results/problems/train/problems.jsonl")
    assert [row["problem"] for row in rows] == [row["question"] for row in ROWS]
    assert not {"read_problems train", "train tiny-dapo-s1"} & project.planned(config)

    records, kept = project.root / ".snakemake/metadata", project.root / "metadata"
    records.rename(kept)  # without them Snakemake would keep the problems under any settings
    target = "results/problems/train/manifest.json"
    assert project.planned(config, target) == set()
    refused = project.snakemake(
        target, "--dry-run", config=project.changed_config(study | {"problems": problems | {"exclude": ["3"]}})
    )
    assert f"error: {target}: was made with other settings than the study asks (exclude:" in refused.stderr
    project.changed_config(study)
    kept.rename(records)

    write_jsonl(project.root / "copy.jsonl", [*ROWS[1:], {"question": "What is 9+9?", "final_answer": "18"}])
    assert {"read_problems train", "train tiny-dapo-s1"} <= project.planned(config)
