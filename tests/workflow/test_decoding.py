"""``snakemake decoding`` on the smoke study: what it leaves, and what a changed setting makes it do again."""

from __future__ import annotations

import csv
import json

import yaml

from tests.workflow.conftest import Project

METHODS = ["base", "dapo", "dapo_replacement", "dapo_extrapolation_base", "dapo_extrapolation_trained"]
SMALL = {
    "problems": {"seed": 1, "count": 6},
    "criteria": ["log_prob_difference", "random"],
    "fractions": [0.1, 1.0],
    "extrapolation_fractions": [0.1],
    "gammas": [0.2],
}


def planned(project: Project) -> set[str]:
    """Rules that ``snakemake decoding`` would run."""
    answer = project.snakemake("decoding", "--dry-run", "--quiet", "rules")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    lines = (answer.stdout + answer.stderr).split("Job stats:")
    return {line.split()[0] for part in lines[1:] for line in part.splitlines() if line.strip()[-1:].isdigit()}


def test_the_table_the_figure_and_a_changed_gamma(smoke_study: Project) -> None:
    settings = smoke_study.root / "config/decoding.yaml"
    settings.write_text(yaml.safe_dump(SMALL))
    answer = smoke_study.snakemake("decoding", "--cores", "2")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    results = smoke_study.root / "results/decoding"
    with open(results / "tables/decoding.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == METHODS
    assert all(0 < float(row["replaced"]) < 1 for row in rows[2:])
    assert (results / "figures/replaced_tokens.png").read_bytes().startswith(b"\x89PNG")
    page = (results.parent / "decoding.html").read_text()
    assert all(title in page for title in (": replacement, base driving", "data:image/svg+xml"))
    record = json.loads((results.parent / "decoding.tracking.json").read_text())
    assert {"decoding.html", "decoding/tables/decoding.md", "decoding/figures/replaced_tokens.png"} <= {
        *record["files"]
    }
    scored = {
        text for benchmark in ("chain_3", "variables_4") for text in problems(smoke_study, f"problems/{benchmark}")
    }
    assert not scored & set(problems(smoke_study, "decoding/problems"))
    assert planned(smoke_study) == set()

    settings.write_text(yaml.safe_dump({**SMALL, "gammas": [0.4]}))
    again = planned(smoke_study)
    assert {"decoding_sweep", "decoding_choose", "decoding_sample", "table_decoding", "figure_decoding"} <= again
    assert not again & {"train", "sample", "grade", "base_model", "decoding_problems"}


def problems(project: Project, directory: str) -> list[str]:
    """Texts of a problem set under results/."""
    path = project.root / "results" / directory / "problems.jsonl"
    return [json.loads(line)["problem"] for line in path.read_text().splitlines()]
