"""A whole study on a benchmark under GPQA's terms leaves no question, option or token in any file that it makes."""

import sqlite3

import pytest
import yaml

from evals.core.files import read_jsonl, write_jsonl
from tests.workflow.conftest import Project

SECRET = "zyxw"
TOKEN = "hf_zyxwtokenzyxw"


@pytest.fixture
def project(finished_copy: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """With GPQA's entry cut down to six questions, and a copy of these beside the project."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HOME", str(finished_copy.root.parent / "hub"))
    directory = finished_copy.root / "config/benchmarks"
    entry = yaml.safe_load((directory / "gpqa_diamond.yaml").read_text()) | {"configuration": "default", "count": 6}
    (directory / "gpqa_diamond.yaml").write_text(yaml.safe_dump(entry))
    options = ["Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3))]
    rows = [{"Question": f"{SECRET} {row}?"} | {name: f"{name} {SECRET}" for name in options} for row in range(6)]
    write_jsonl(finished_copy.root.parent / "source/train.jsonl", rows)
    return finished_copy


def test_no_file_of_a_study_holds_a_gated_text_or_the_token(project: Project) -> None:
    assert not list((project.root / "results").rglob("*gpqa_diamond*"))
    study = {
        "benchmarks": ["chain_3", "gpqa_diamond"],
        "benchmark_sources": {"gpqa_diamond": {"path": str(project.root.parent / "source")}},
        "methods": {"dapo": {}},
        "seeds": [1],
        "problems.prompt": "{problem}\n",
    }
    answer = project.snakemake(config=project.changed_config(study))
    said = answer.stdout + answer.stderr
    assert answer.returncode == 0, said
    samples = read_jsonl(project.root / "results/samples/tiny-dapo-s1/gpqa_diamond/samples.jsonl.bz2")
    assert {"text", "text_sha256"} <= samples[0].keys()
    with sqlite3.connect(project.root / "results/mlflow.db") as database:
        keys = {key for (key,) in database.execute("select distinct key from metrics")}
    assert any("gpqa_diamond" in key for key in keys), keys
    files = [path for path in project.root.rglob("*") if path.is_file()]
    assert len([path for path in files if "results" in path.parts]) > 40
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in said
