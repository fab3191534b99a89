"""``snakemake decoding``: what it leaves, what a changed setting makes it do again, and models that exist."""

import csv
import json

import yaml
from transformers import LlamaConfig

from evals.core.yaml_file import read_yaml
from tests.unit.engine.conftest import import_pretrained
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
    return {job.split()[0] for job in project.planned(None, "decoding")}


def test_the_table_the_figure_and_a_changed_gamma(smoke_study: Project) -> None:
    settings = smoke_study.root / "config/decoding.yaml"
    settings.write_text(yaml.safe_dump(SMALL))
    smoke_study.run("decoding", "--cores", "2")
    results = smoke_study.root / "results/decoding"
    with open(results / "tables/decoding.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == METHODS
    assert all(0 < float(row["replaced"]) < 1 for row in rows[2:])
    assert (results / "figures/replaced_tokens.png").read_bytes().startswith(b"\x89PNG")
    page = (results.parent / "decoding.html").read_text()
    assert all(title in page for title in (": replacement, base driving", "data:image/svg+xml"))
    scored = {
        text for benchmark in ("chain_3", "variables_4") for text in problems(smoke_study, f"problems/{benchmark}")
    }
    assert not scored & set(problems(smoke_study, "decoding/problems"))
    assert planned(smoke_study) == set()

    settings.write_text(yaml.safe_dump({**SMALL, "gammas": [0.4]}))
    again = planned(smoke_study)
    assert {"decoding_sweep", "decoding_choose", "decoding_sample", "table_decoding", "figure_replaced_tokens"} <= again
    assert not again & {"train", "sample", "grade", "base_model", "decoding_problems"}


def problems(project: Project, directory: str) -> list[str]:
    """Texts of a problem set under results/."""
    path = project.root / "results" / directory / "problems.jsonl"
    return [json.loads(line)["problem"] for line in path.read_text().splitlines()]


def test_a_pretrained_model_whose_thresholds_a_published_benchmark_chooses(project_copy: Project) -> None:
    """A random Llama in bfloat16 and problems of a file: none of those that choose is reported."""
    root = project_copy.root
    import_pretrained(root / "llama", LlamaConfig, num_key_value_heads=2, max_position_embeddings=128)
    rows = [{"id": f"w-{n}", "problem": f"Ann has {n} pens. How many pens?", "answer": f"{n}"} for n in range(8)]
    (root / "written.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    left_out = ("repository", "revision", "split", "columns")
    svamp = read_yaml(root / "config/benchmarks/svamp.yaml")
    written = {key: value for key, value in svamp.items() if key not in left_out}
    written |= {"source": "path", "path": "written.jsonl", "count": len(rows)}
    (root / "config/benchmarks/written.yaml").write_text(yaml.safe_dump(written))
    model = {"source": "hugging_face", "path": "llama/model", "prompt_form": "base", "dtype": "bfloat16"}
    study = project_copy.changed_config(
        {
            **{"study": "exists", "seeds": [1], "models": {"llama": model}, "methods": {"dapo": {}}},
            **{"benchmarks": ["written", "variables_4"], "training.steps": 1, "evaluation.max_new_tokens": 16},
            "decoding": {**SMALL, "problems": {"benchmark": "written", "count": 6}},
        }
    )
    content = read_yaml(study)
    del content["diagnostics"]
    study.write_text(yaml.safe_dump(content))
    project_copy.run("results/decoding/tables/decoding.md", "--cores", "1", config=study)
    decoding = root / "results/decoding"
    assert problems(project_copy, "decoding/problems") == [row["problem"] for row in rows[:6]]
    checked = json.loads((decoding / "problems/disjoint.json").read_text())["trained_on"]
    assert set(checked) == {f"results/problems/{name}/problems.jsonl" for name in ("train", "variables_4")}
    assert [path.name for path in (decoding / "scores").glob("*[!t].json")] == ["variables_4.json"]
    manifest = json.loads((decoding / "samples/llama-dapo_replacement-s1/variables_4/manifest.json").read_text())
    assert manifest["parameters"]["dtype"] == "bfloat16"
    assert "the first 6 problems of the benchmark written" in (decoding / "tables/decoding.md").read_text()
