"""The package's workflow on the smoke study: what it makes, and that the study's own rules make what is missing."""

import csv
import json
from pathlib import Path
from typing import Any

import yaml
from transformers import LlamaConfig

import rlvr_claims
from evals.core.yaml_file import read_yaml
from rlvr.study.source_files import code_of
from tests.unit.engine.conftest import import_pretrained
from tests.workflow.conftest import Project, jobs_in, project_copy, smoke_study

__all__ = ["project_copy", "smoke_study"]
SNAKEFILE = Path(rlvr_claims.__file__).with_name("workflow") / "Snakefile"
CLAIMS = read_yaml(Path(__file__).resolve().parents[1] / "config/smoke.yaml")["claims"]
SMALL = {
    "problems": {"seed": 1, "count": 6},
    "criteria": ["log_prob_difference", "random"],
    "fractions": [0.1, 1.0],
    "extrapolation_fractions": [0.1],
    "gammas": [0.2],
    "seeds": 1,
}
METHODS = ["base", "dapo", "dapo_replacement", "dapo_extrapolation_base", "dapo_extrapolation_trained"]


def file_of(project: Project, study: str = "config/smoke.yaml", **sections: Any) -> Path:
    """A file of the package beside the project's configuration."""
    path = project.root / "claims.yaml"
    path.write_text(yaml.safe_dump({"extends": study, **sections}))
    return path


def planned(project: Project, file: Path, target: str) -> set[str]:
    """The rules that a target would run."""
    said = project.run(target, "--snakefile", str(SNAKEFILE), "--dry-run", "--printshellcmds", config=file)
    return {job.split()[0] for job in jobs_in(said)} - {target}


def texts(project: Project, directory: str) -> list[str]:
    """The problems of a set under results/."""
    path = project.root / "results" / directory / "problems.jsonl"
    return [json.loads(line)["problem"] for line in path.read_text().splitlines()]


def test_looking_inside_a_finished_study_trains_nothing(smoke_study: Project) -> None:
    file = file_of(smoke_study, claims=CLAIMS)
    rules = planned(smoke_study, file, "claims")
    assert rules == {"token_table", "probes", "token_page", "claim", "claims_page"}
    # One file declares all claims; a job of one claim has its own entry among its params, and not the file.
    code = {Path(path).name for path in code_of("rlvr_claims.claims.token_flipping")}
    assert {"base.py", "token_flipping.py"} <= code and not code & {"claims.yaml", "token_value.py"}


def test_what_is_missing_is_trained_by_the_study_s_own_rules(project_copy: Project) -> None:
    rules = planned(project_copy, file_of(project_copy, claims=CLAIMS), "claims")
    assert {"draw_problems", "base_model", "train", "token_table", "claim"} <= rules
    assert not rules & {"report_html", "sweep"}


def test_a_target_that_the_file_does_not_set_up_is_one_line(smoke_study: Project) -> None:
    answer = smoke_study.snakemake("claims", "--snakefile", str(SNAKEFILE), "-n", config=file_of(smoke_study))
    assert answer.returncode != 0 and "claims: is missing; accepted: the runs" in answer.stdout + answer.stderr


def test_the_table_the_figure_and_a_changed_gamma(smoke_study: Project) -> None:
    file = file_of(smoke_study, decoding=SMALL)
    smoke_study.run("decoding", "--snakefile", str(SNAKEFILE), "--cores", "2", config=file)
    results = smoke_study.root / "results/claims/decoding"
    with open(results / "tables/decoding.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["method"] for row in rows] == METHODS
    assert all(0 < float(row["replaced"]) < 1 for row in rows[2:]) and {row["seeds"] for row in rows[1:]} == {"1"}
    assert (results / "figures/replaced_tokens.png").read_bytes().startswith(b"\x89PNG")
    page = (results / "index.html").read_text()
    assert all(title in page for title in (": replacement, base driving", "data:image/svg+xml"))
    scored = {text for name in ("chain_3", "variables_4") for text in texts(smoke_study, f"problems/{name}")}
    assert not scored & set(texts(smoke_study, "claims/decoding/problems"))
    assert planned(smoke_study, file, "decoding") == set()
    again = planned(smoke_study, file_of(smoke_study, decoding={**SMALL, "gammas": [0.4]}), "decoding")
    assert {"sweep", "choose_thresholds", "decode", "compare_decoded", "decoding_page"} <= again
    assert not again & {"train", "sample", "grade", "base_model", "choosing_problems"}
    cooler = smoke_study.changed_config({"evaluation.temperature": 0.5})
    assert {"sweep", "decode"} <= planned(smoke_study, file_of(smoke_study, str(cooler), decoding=SMALL), "decoding")


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
        }
    )
    decoding = {**SMALL, "problems": {"benchmark": "written", "count": 6}}
    file = file_of(project_copy, str(study), decoding=decoding)
    table = "results/claims/decoding/tables/decoding.md"
    project_copy.run(table, "--snakefile", str(SNAKEFILE), "--cores", "1", config=file)
    results = root / "results/claims/decoding"
    assert texts(project_copy, "claims/decoding/problems") == [row["problem"] for row in rows[:6]]
    checked = json.loads((results / "problems/disjoint.json").read_text())["trained_on"]
    assert set(checked) == {f"results/problems/{name}/problems.jsonl" for name in ("train", "variables_4")}
    assert [path.name for path in (results / "scores").glob("*[!t].json")] == ["variables_4.json"]
    manifest = json.loads((results / "samples/llama-dapo_replacement-s1/variables_4/manifest.json").read_text())
    assert manifest["parameters"]["dtype"] == "bfloat16"
    assert "the first 6 problems of the benchmark written" in (root / table).read_text()
