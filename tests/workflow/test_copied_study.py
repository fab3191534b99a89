"""A finished study that was copied without its times, to another place, has nothing to do."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest

from evals.core.files import sha256_file, write_json, write_text
from evals.core.manifest import Manifest, hash_files
from rlvr.engines.local.fine_tune import FineTuningSettings
from rlvr.study.designs import sheet_of
from rlvr.study.study import Study
from tests.commands import ended
from tests.workflow.conftest import Project, commands_of

SNAKEMAKES_OWN_LIMIT = 1_000_000
"""Bytes of an input above which Snakemake goes by its time alone, without an option."""


KEPT = ("costs", "problems", "base", "runs", "samples", "grades")


def copied(project: Project, place: Path) -> Project:
    """A copy in which files have times in random order, some weeks ago; times of the future are refused."""
    shutil.copytree(project.root, place, copy_function=shutil.copyfile)
    times = random.Random(5)
    for path in place.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts:
            now = path.stat().st_mtime + times.uniform(-30, -24) * 86400
            os.utime(path, (now, now))
    return Project(place)


def test_a_copied_study_repeats_nothing(smoke_study: Project, tmp_path: Path) -> None:
    assert copied(smoke_study, tmp_path / "another place").planned() == set()


def test_a_study_that_is_made_twice_has_one_root_hash(smoke_study: Project, project_copy: Project) -> None:
    """All but the base model and most runs, which test_kill_and_resume.py and a replay (test_module.py) make again."""
    elsewhere = project_copy.root.parent / "elsewhere"
    for name in (".snakemake/metadata", *(f"results/{kept}" for kept in KEPT)):
        shutil.copytree(smoke_study.root / name, elsewhere / name)
    for stage in KEPT[3:]:
        shutil.rmtree(elsewhere / f"results/{stage}/tiny-dapo-s1")
    project_copy.run("--directory", str(elsewhere))
    times = [
        (place / "results/runs/tiny-delta-s1/manifest.json").stat().st_mtime for place in (smoke_study.root, elsewhere)
    ]
    assert times[0] == times[1], "it was kept"
    hashes = []
    for directory in (smoke_study.root, elsewhere):
        words = [sys.executable, "-P", "-m", "rlvr", "verify", str(directory), "--json"]
        said = subprocess.run(
            words, env=commands_of(smoke_study.root), capture_output=True, text=True, check=True
        ).stdout
        hashes.append(json.loads(said))
    assert hashes[0]["root_hash"] == hashes[1]["root_hash"]
    assert hashes[0]["bytes_hash"] != hashes[1]["bytes_hash"], "times are measured"


def test_results_without_records_are_kept_or_refused(smoke_study: Project, tmp_path: Path) -> None:
    """Snakemake alone would keep them under any settings."""
    project = copied(smoke_study, tmp_path / "copy")
    shutil.rmtree(project.root / ".snakemake")
    for path in project.root.rglob("*"):
        os.utime(path, (1e9, 1e9))  # for without records inputs have no hashes, and later ones count as changed
    assert project.planned() == set()
    assert project.planned(project.changed_config({"execution.forks": True})) == set(), "its default, spelled out"
    for change, file, setting in (
        ({"statistics.seed": 9}, "comparisons.manifest.json", "seed: 9"),
        ({"training.learning_rate": 0.001}, "runs/tiny-dapo-s1/manifest.json", "training.learning_rate: 0.001"),
        ({"evaluation.temperature": 0.5}, "samples/tiny-base/chain_3/manifest.json", "temperature: 0.5"),
        ({"models.tiny.training.steps": 151}, "base/tiny/manifest.json", "steps: 151"),
        ({"models.tiny.corpus.seed": 2}, "base/tiny/corpus.manifest.json", "seed: 2"),
        ({"problems.seed": 3}, "problems/train/manifest.json", "seed: 3"),
        ({"evaluation.backend": "transformers"}, "samples/tiny-base/chain_3/manifest.json", 'engine: "transformers"'),
        ({"evaluation.audited": 0.5}, "grades/tiny-base/chain_3/audit.json", "share: 0.5"),
        ({"title": "Another"}, "study.json", 'study.title: "Another"'),
        ({"question": "Why?"}, "tables/main.md", "Why?"),
    ):
        if "question" in change:
            (project.root / "results/study.json").unlink()
        refused = project.snakemake("--dry-run", config=project.changed_config(change))
        line = refused.stderr.splitlines()[-1]
        assert refused.returncode != 0 and line.startswith(f"error: results/{file}: was made with other settings"), line
        said, accepted = line.split("; accepted: ")
        refused = re.findall(r"results/\S+", accepted)
        output = re.sub("^((samples|grades)/[^/]+)/.*", r"\1/manifest.json", file)  # stands for those of all benchmarks
        assert setting in said and refused[0] == f"results/{output}"
        assert said.endswith(f"; refused, too: {len(refused) - 1} other files") == (len(refused) > 2), line
        runs = {path.relative_to(project.root).as_posix() for path in project.root.glob("results/runs/*/manifest.json")}
        assert runs.issubset(refused) == ("training.learning_rate" in change)
    assert project.planned(project.changed_config({"study": "other"})) == {"study_file", "report_html", "track"}


def test_grades_that_are_new_make_all_again_that_shows_them(finished_copy: Project) -> None:
    assert finished_copy.snakemake("results/grades/tiny-base/manifest.json", "--force").returncode == 0
    shown = {"score", "compare", "table_audit", "page_responses chain_3", "table_main", "report_html", "track"}
    assert finished_copy.planned() >= shown
    assert not [job for job in finished_copy.planned() if job.startswith(("train", "sample", "grade"))]


@pytest.mark.parametrize("lost", ["samples/tiny-base/chain_3/manifest.json", "grades/tiny-base/chain_3/audit.json"])
def test_a_lost_file_of_a_benchmark_is_named_and_made_again(finished_copy: Project, lost: str) -> None:
    """Refuse a plan: Snakemake knows one of a policy's files on all benchmarks, and that one is there."""
    (finished_copy.root / "results" / lost).unlink()
    line = finished_copy.snakemake("--dry-run").stderr.splitlines()[-1]
    stands_for = f"results/{lost.split('/')[0]}/tiny-base/manifest.json"
    assert line.startswith(f"error: results/{lost}: is missing, though {stands_for} is there; accepted: ")
    assert line.endswith(f"which makes it again: rm {stands_for}")
    (finished_copy.root / stands_for).unlink()
    assert finished_copy.snakemake(stands_for).returncode == 0
    assert (finished_copy.root / "results" / lost).is_file()


@pytest.mark.parametrize("file", ["runs.json", "study.json", "runs/tiny-dapo-s1/manifest.json", "tables/main.md"])
def test_a_statement_that_cannot_be_read_is_made_again_without_it(finished_copy: Project, file: str) -> None:
    path = finished_copy.root / "results" / file
    (path if path.suffix == ".json" else path.with_suffix(".manifest.json")).write_text("{")
    line = finished_copy.snakemake("--dry-run").stderr.splitlines()[-1]
    assert line.startswith("error: results/") and line.endswith(f"which makes it again: rm results/{file}"), line


def test_another_address_of_a_server_is_refused(project_copy: Project) -> None:
    served = {"source": "server", "prompt_form": "base", "base_url": "http://127.0.0.1:9/v1", "model": "far"}
    sampled = {"samples_per_problem": 1, "max_new_tokens": 8, "seed": 1}
    statistics = {"seed": 1, "resamples": 100, "permutations": 100}
    study = {"study": "far", "models": {"far": served}, "benchmarks": ["chain_3"]}
    config, target = project_copy.root / "config/far.yaml", "results/base/far/manifest.json"
    config.write_text(json.dumps({**study, "evaluation": sampled, "statistics": statistics}))
    directory = (project_copy.root / target).parent
    for address in (served["base_url"], "http://127.0.0.2:9/v1"):
        service = {"base_url": address, "model": "far", "timeout": 3600.0}
        write_json(directory / "server.json", service)
        outputs = hash_files(directory, directory / "server.json")
        Manifest("base_model", {}, outputs, {"source": "server", "model": "far"}, "").write(directory / "manifest.json")
        said = project_copy.snakemake(target, "--dry-run", config=config).stderr
        assert (f"error: {target}: was made with other settings" in said) == (address != served["base_url"]), said


@pytest.mark.parametrize("damage", ["lost", "older"])
@pytest.mark.parametrize(
    ("output", "change", "setting"),
    [
        ("runs/tiny-dapo-s1/run.json", {"training.learning_rate": 0.001}, "training.learning_rate: 0.001"),
        ("runs/tiny-dapo-s1/metrics.parquet", {"training.learning_rate": 0.001}, "training.learning_rate: 0.001"),
        ("samples/tiny-base/manifest.json", {"evaluation.temperature": 0.9}, "temperature: 0.9"),
        ("comparisons.json", {"benchmarks": ["chain_3"]}, "results/scores/variables_4.json"),
        ("runs.json", {"seeds": [1]}, "runs.tiny-dapo-s2"),
    ],
)
def test_a_changed_setting_is_seen_whatever_record_of_a_job_is_damaged(
    finished_copy: Project, output: str, change: dict[str, Any], setting: str, damage: str
) -> None:
    """Snakemake compares no params of a job that has one output without a record."""
    record = finished_copy.root / ".snakemake/metadata" / urlsafe_b64encode(f"results/{output}".encode()).decode()
    content = json.loads(record.read_text())
    record.unlink()
    if damage == "older":
        record.write_text(json.dumps(content | {"record_format_version": 5}))
    refused = finished_copy.snakemake("--dry-run", config=finished_copy.changed_config(change))
    assert refused.returncode != 0 and "was made with other settings" in refused.stderr
    assert setting in refused.stderr


def test_a_setting_that_goes_back_to_its_default_makes_results_again(finished_copy: Project) -> None:
    """Snakemake's record then has all that is asked, and more."""
    name = urlsafe_b64encode(b"results/samples/tiny-base/manifest.json").decode()
    record = finished_copy.root / ".snakemake/metadata" / name
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"params": [*content["params"], "'top_k: 5'"]}))
    for benchmark in ("chain_3", "variables_4"):
        path = finished_copy.root / "results/samples/tiny-base" / benchmark / "manifest.json"
        made = json.loads(path.read_text())
        path.write_text(json.dumps(made | {"parameters": made["parameters"] | {"top_k": 5}}))
    assert "sample tiny-base" in finished_copy.planned()


@pytest.mark.parametrize("copied", ["runs/tiny-dapo-{}", "samples/tiny-dapo-{}/chain_3", "grades/tiny-dapo-{}/chain_3"])
def test_results_of_another_run_that_were_copied_over_ones_own_are_refused(finished_copy: Project, copied: str) -> None:
    """Snakemake has a record of the results, whose settings are still those of the study."""
    ours, others = (finished_copy.root / "results" / copied.format(seed) for seed in ("s1", "s2"))
    for file in filter(Path.is_file, others.iterdir()):
        shutil.copyfile(file, ours / file.name)
    refused = finished_copy.snakemake("--dry-run")
    assert refused.returncode != 0
    assert f"error: results/{copied.format('s1')}/manifest.json: was made with other settings" in refused.stderr


def test_a_model_that_was_fine_tuned_otherwise_is_refused(project_copy: Project) -> None:
    directory = project_copy.root / "model"
    directory.mkdir()
    solutions = directory / "solutions.jsonl"
    solutions.write_text("{}")
    tuning = {"prompt": "{problem}", "seed": 1, "steps": 2, "batch_size": 2, "micro_batch_tokens": 100}
    tuning |= {"learning_rate": 0.1, "warmup_steps": 0, "weight_decay": 0.0, "gradient_clip": 1.0}
    own = {"dtype": "float32", "prompt_form": "base"}
    model = {"source": "fine_tuned", "path": str(directory), "solutions": str(solutions)}
    config = project_copy.changed_config({"models": {"warm": {**model, **own, "fine_tuning": tuning}}})
    target = "results/base/warm/manifest.json"
    made = FineTuningSettings.parse({**tuning, **own}, "settings").parameters()
    for otherwise in ({}, {"learning_rate": 0.2}, {"head_dtype": "float32"}):
        read = {str(solutions): sha256_file(solutions)}
        manifest = Manifest("base_model", read, {}, {**made, **otherwise}, "fingerprint", {})
        manifest.write(project_copy.root / target)
        said = project_copy.snakemake(target, "--dry-run", config=config).stderr
        refused = f"error: {target}: was made with other settings than the study asks ("
        assert (refused in said) == bool(otherwise), said
        assert all(f"({key}: {value}".replace("'", '"')[:12] in said for key, value in otherwise.items())


def test_the_table_of_a_design_with_other_parts_or_statistics_is_refused(project_copy: Project) -> None:
    factors = [
        {"name": "ratio", "levels": [{"level": "token"}, {"level": "sequence", "loss": {"name": "gspo"}}]},
        {"name": "advantage", "levels": [{"level": "std"}, {"level": "none", "advantage": {"name": "dr_grpo"}}]},
    ]
    factorial = {"factors": factors, "parts": {"GSPO": {"ratio": "sequence"}}}
    design = {"methods": {"dapo": {}}, "factorial": factorial}
    config, target = project_copy.changed_config(design), "results/tables/factorial"
    study = Study.read(config)
    parameters = {"sheet": [way.identity() for way in sheet_of(study.config, study.titles)], "factorial": factorial}
    parameters["statistics"] = study.config.statistics.identity()
    for ending in (".md", ".csv", ".tex"):
        write_text(project_copy.root / f"{target}{ending}", "a table")
    Manifest("table", {}, {}, parameters, "").write(project_copy.root / f"{target}.manifest.json")
    assert "error: " not in project_copy.snakemake(f"{target}.md", "--dry-run", config=config).stderr
    for change, setting in (
        ({"factorial": factorial | {"parts": {"GSPO": {"advantage": "none"}}}}, "factorial.parts.GSPO.advantage"),
        ({"statistics.seed": 9}, "statistics.seed: 9"),
    ):
        otherwise = project_copy.changed_config(design | change)
        said = project_copy.snakemake(f"{target}.md", "--dry-run", config=otherwise).stderr.splitlines()[-1]
        assert said.startswith(f"error: {target}.md: was made with other settings") and setting in said, said


PLANTED = ("typer", "yaml", "json", "random", "secrets", "multiprocessing", "numpy", "torch", "pydantic", "pandas")
PLANTED += ("rlvr",)


@pytest.mark.parametrize("path", [None, "", "."])
def test_modules_in_the_directory_of_a_study_are_not_imported(
    smoke_study: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    """By jobs that are commands and that are scripts, and by the processes that they start."""
    study, found = tmp_path / "study", tmp_path / "imported"
    for part in ("results", ".snakemake"):
        shutil.copytree(smoke_study.root / part, study / part)
    for name in PLANTED:
        (study / f"{name}.py").write_text(f"open({str(found)!r}, 'a').write('{name} ')\nraise ImportError('planted')\n")
    target = "results/grades/tiny-base/manifest.json"
    for stage in ("samples", "grades"):
        shutil.rmtree(study / "results" / stage / "tiny-base")
    environment = commands_of(smoke_study.root)
    if path is not None:  # an entry of nothing is the directory that a process works in
        environment["PYTHONPATH"] += os.pathsep + path
    words = ["--snakefile", smoke_study.root / "Snakefile", "--directory", study, "--cores", "1", target]
    words += ["--configfile", smoke_study.root / "config/smoke.yaml"]
    done = ended([sys.executable, "-P", "-m", "snakemake", *words], cwd=smoke_study.root, env=environment)
    assert not found.exists(), found.read_text()
    assert done.returncode == 0 and (study / target).is_file(), done.stderr


def test_large_inputs_are_compared_by_their_bytes(project_copy: Project, tmp_path: Path) -> None:
    """The default study's corpus of 4 MB is one; here it is training problems, which take no training to make."""
    target = "results/problems/chain_3/disjoint.json"
    kinds = [{"family": "chain", "operands": 5}]
    many = project_copy.changed_config({"problems.count": 12000, "problems.kinds": kinds})
    project_copy.run(target, config=many)
    project = copied(project_copy, tmp_path / "copy")
    problems = project.root / "results/problems/train/problems.jsonl"
    assert problems.stat().st_size > SNAKEMAKES_OWN_LIMIT
    config = project.root / many.relative_to(project_copy.root)
    later = problems.stat().st_mtime + 10 * 86400  # than all that was made from it
    os.utime(problems, (later, later))
    assert project.planned(config, target) == set()
    with open(problems, "a", encoding="utf-8") as file:  # its bytes decide
        file.write("\n")
    os.utime(problems, (later, later))
    assert project.planned(config, target) == {"check_disjoint chain_3"}
