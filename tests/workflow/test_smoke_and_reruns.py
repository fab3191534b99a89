"""The smoke study through the snakemake command line; then exactly what each kind of change makes it do again."""

import csv
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from evals.core.arithmetic import processor
from tests.workflow.conftest import JOB, Project, jobs_in

RUNS = ["tiny-base", *(f"tiny-{method}-s{seed}" for method in ("dapo", "delta") for seed in (1, 2))]
RUNS += [f"tiny-dapo_query_preserved_reward_balanced-s{seed}" for seed in (1, 2)]
BENCHMARKS = ["chain_3", "variables_4"]
TABLES = {"table_main", "table_of_scores by_seed", "table_paper_vs_ours"}
TABLES |= {"table_of_scores robust", "table_of_scores pass_at_k", "table_of_training efficiency"}
OF_METHODS = {"figure_of_methods profiles", "figure_of_methods pass_at_k"}
FIGURES_OF_SCORES = {"figure_of_scores scores", "figure_of_scores differences", *OF_METHODS}
FIGURES_OF_SCORES |= {"figure_of_training cost_curves"}
AFTER_SCORES = {"compare", "report_html", "track", *TABLES, *FIGURES_OF_SCORES}
AFTER_SCORES |= {f"page_responses {name}" for name in BENCHMARKS}


def evaluation_of(runs: list[str]) -> set[str]:
    """Sampling and grading of policies, each on all benchmarks."""
    return {f"{rule} {run}" for rule in ("sample", "grade") for run in runs}


def pages_of(benchmarks: list[str]) -> set[str]:
    """What shows new grades: the pages of responses, and the audits' table."""
    return {*(f"page_responses {benchmark}" for benchmark in benchmarks), "table_audit"}


@contextmanager
def edited(path: Path, old: str, new: str) -> Iterator[None]:
    """A source file with ``old`` replaced by ``new`` for the length of the block."""
    original = path.read_text()
    assert old in original
    path.write_text(original.replace(old, new, 1))
    try:
        yield
    finally:
        path.write_text(original)


def test_the_study_leaves_what_it_promises(smoke_study: Project) -> None:
    results = smoke_study.root / "results"
    for ending in ("md", "csv", "tex"):
        assert (results / f"tables/main.{ending}").stat().st_size > 200
    for figure in ("scores", "differences", "profiles", "training_curves"):
        assert (results / f"figures/{figure}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (results / f"figures/{figure}.svg").read_text()
    with open(results / "tables/main.csv", newline="") as file:
        methods = [row["method"] for row in csv.DictReader(file)]
    assert methods == ["base", "dapo", "delta", "dapo_query_preserved_reward_balanced"]
    with open(results / "tables/audit.csv", newline="") as file:
        audits = list(csv.DictReader(file))
    assert [(row["run"], row["benchmark"]) for row in audits] == [(run, name) for name in BENCHMARKS for run in RUNS]
    asked = [int(row["compared"]) + int(row["failed"]) for row in audits]
    assert sum(asked) > 0 and all(number <= int(row["samples"]) for number, row in zip(asked, audits, strict=True))
    report = (results / "report.html").read_text()
    assert "http://" not in report.replace("http://www.w3.org/", "")
    assert report.count("<script>") == 1 and report.count("<script") == 2  # ours, and the data of the curves
    for benchmark in BENCHMARKS:
        assert f'href="responses/{benchmark}/index.html#' in report
        assert len(list((results / f"responses/{benchmark}/texts").glob("*.js"))) == len(RUNS)
    trained = [run for run in RUNS if run != "tiny-base"]
    assert 'href="rollouts/index.html"' in report
    texts = {path.name for path in (results / "rollouts/texts").glob("*.js")}
    assert texts == {f"{run}-step{step}-0.js" for run in trained for step in (1, 2, 4)}
    answer = smoke_study.snakemake("--report", str(smoke_study.root / "snakemake.html"))
    assert answer.returncode == 0, answer.stderr
    with sqlite3.connect(results / "mlflow.db") as database:
        keys = {key for (key,) in database.execute("select distinct key from metrics")}
    assert {"eval/all/avg_at_4", "train/reward_mean", "train/entropy", "time/seconds_step"} <= keys


@pytest.mark.skipif(not hasattr(os, "pidfd_open") or processor()[1] != "", reason="where no job is a fork")
def test_every_job_of_a_function_is_a_fork(smoke_study: Project) -> None:
    """A fork has the code paths of the server, the portable ones; a process that starts by itself has others."""
    results = smoke_study.root / "results"
    assert [path for path in (results / "logs").rglob("*.log") if "without it" in path.read_text()] == []
    manifests = [json.loads(path.read_text()) for path in results.rglob("*manifest.json")]
    assert {manifest["kind"] for manifest in manifests} >= {"problems", "grades", "scores", "comparisons", "figure"}
    assert {manifest["environment"]["arithmetic"]["code_paths"] for manifest in manifests} == {"portable"}


def test_all_problems_are_made_and_checked_before_anything_is_trained_or_sampled(project_copy: Project) -> None:
    """Bad problems end the study at once."""
    answer = project_copy.snakemake("--dry-run", "--printshellcmds")
    priorities: dict[str, set[float]] = {}
    for rule, body in JOB.findall(answer.stdout + answer.stderr):
        written = re.search(r"^    priority: (\S+)$", body, re.MULTILINE)
        priorities.setdefault(rule, set()).add(float(written[1]) if written else 0)
    of_problems = {rule: priorities[rule] for rule in ("draw_problems", "check_disjoint")}
    lowest = min(map(min, of_problems.values()))
    assert all(max(priorities[rule]) < lowest for rule in ("base_model", "train", "sample"))


def test_a_finished_study_has_nothing_to_do_after_an_edited_comment(smoke_study: Project) -> None:
    with ExitStack() as edits:
        modules = ["rlvr/methods/token_weights/delta.py", "rlvr/engines/local/learner.py"]  # versions say what changed
        for module in (*modules, "evals/grading/comparison.py", "evals/generation/sampler.py"):
            edits.enter_context(edited(smoke_study.root / module, "\nfrom evals", "\n# An edited comment.\nfrom evals"))
        assert smoke_study.planned() == set()


def planned_without(project: Project, *lost: str) -> set[str]:
    """The jobs that would run if manifests below results/ were lost."""
    manifests = [project.root / "results" / directory / "manifest.json" for directory in lost]
    aside = [path.rename(path.with_suffix(".aside")) for path in manifests]
    planned = project.planned()
    for path, moved in zip(manifests, aside, strict=True):
        moved.rename(path)
    return planned


def test_what_a_failed_job_lost_is_made_again(smoke_study: Project) -> None:
    """The scores and tables made from it before are still there, and must not pass for current."""
    runs, sampled, graded = "runs/tiny-delta-s1", "samples/tiny-dapo-s1", "grades/tiny-dapo-s2"
    planned = planned_without(smoke_study, runs, sampled, graded)
    assert planned >= {"train tiny-delta-s1", "score", "table_main"}
    expected = evaluation_of(["tiny-delta-s1", "tiny-dapo-s1"]) | {"grade tiny-dapo-s2"}
    assert {job for job in planned if job.startswith(("sample", "grade"))} == expected

    lost = [path for name in ("comparisons*", "grades/*/manifest.json") for path in
            (smoke_study.root / "results").glob(name)]  # fmt: skip
    contents = {path: path.read_bytes() for path in lost}
    for path in contents:
        path.unlink()
    planned = smoke_study.planned()
    for path, content in contents.items():
        path.write_bytes(content)
    assert len(contents) > 2 and {"compare", "grade tiny-base", "table_main"} <= planned

    planned = planned_without(smoke_study, "problems/chain_3", "base/tiny")
    assert planned >= {"draw_problems chain_3", "base_model tiny", "sample tiny-base", "table_main"}


def test_a_coefficient_reruns_its_method_and_what_follows(smoke_study: Project) -> None:
    config = smoke_study.changed_config({"methods.delta": {"token_weights": {"lambda_max": 1.3}}})
    trained = ["tiny-delta-s1", "tiny-delta-s2"]
    expected = {f"train {run}" for run in trained} | evaluation_of(trained)
    expected |= {"score"} | pages_of(BENCHMARKS)
    expected |= {"page_rollouts", "figure_training_curves", "study_file"}
    said = smoke_study.run("--dry-run", "--printshellcmds", config=config)
    assert jobs_in(said) == expected | AFTER_SCORES
    changed = "before: <nothing exclusive> now: 'method.token_weights.lambda_max: 1.3'"
    assert said.count(changed) == len(trained)


def test_a_benchmark_and_a_seed_more_are_all_that_is_made(smoke_study: Project) -> None:
    config = smoke_study.changed_config({"benchmarks": [*BENCHMARKS, "chain_5"], "seeds": [1, 2, 7]})
    new = [f"tiny-{method}-s7" for method in ("dapo", "delta", "dapo_query_preserved_reward_balanced")]
    every = [*BENCHMARKS, "chain_5"]
    expected = {f"train {run}" for run in new} | evaluation_of([*new, *RUNS])  # what is sampled is kept
    expected |= {"score"} | pages_of(every) | {"run_sheet", "study_file"}
    expected |= {"draw_problems chain_5", "check_disjoint chain_5", "figure_training_curves", "page_rollouts"}
    assert smoke_study.planned(config) == expected | AFTER_SCORES


def test_figure_code_redraws_figures_and_what_shows_them(smoke_study: Project) -> None:
    with edited(smoke_study.root / "evals/figures/results.py", '"""', '"""An edit. '):
        drawn = {"figure_of_scores scores", "figure_of_scores differences", *OF_METHODS}
        assert smoke_study.planned() == drawn | {"report_html", "track"}


def test_statistics_are_repeated_without_sampling(smoke_study: Project) -> None:
    config = smoke_study.changed_config({"statistics.seed": 9})
    pages = {f"page_responses {name}" for name in ("chain_3", "variables_4")}  # show grades, and no statistics
    assert smoke_study.planned(config) == AFTER_SCORES - pages | {"study_file"}


def test_another_order_of_benchmarks_remakes_what_shows_it(smoke_study: Project) -> None:
    """Columns of tables have the study's order; samples, grades and scores have none."""
    planned = smoke_study.planned(smoke_study.changed_config({"benchmarks": [*reversed(BENCHMARKS)]}))
    assert planned >= {"table_main", "table_audit", "figure_of_methods profiles", "compare", "report_html", "track"}
    assert not [job for job in planned if job.startswith(("train", "sample", "grade", "score"))]
    config = smoke_study.changed_config({"study": "another_name"})
    assert smoke_study.planned(config) == {"study_file", "report_html", "track"}
    config = smoke_study.changed_config({"title": "Another title"})
    assert smoke_study.planned(config) == {"study_file", "report_html", "track"}


def test_threads_and_intervals_change_no_result(smoke_study: Project) -> None:
    changes = {"checkpoint_interval": 3, "training_threads": 2, "rollouts_kept_every": 3}
    config = smoke_study.changed_config({f"execution.{key}": value for key, value in changes.items()})
    assert smoke_study.planned(config) == {"study_file", "report_html", "track"}


@pytest.mark.parametrize(
    ("damaged", "target"),
    [
        ("results/base/tiny/checkpoint/model.safetensors", "results/samples/tiny-base/manifest.json"),
        ("results/samples/tiny-base/chain_3/samples.jsonl.bz2", "results/grades/tiny-base/manifest.json"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(finished_copy: Project, damaged: str, target: str) -> None:
    """A flipped byte stops the stage that reads it, and nothing is made from it."""
    path, logs = finished_copy.root / damaged, finished_copy.root / "results/logs"
    original = path.read_bytes()
    path.write_bytes(original[:-3] + bytes([original[-3] ^ 1]) + original[-2:])
    answer = finished_copy.snakemake(target, "--force")
    path.write_bytes(original)
    complaining = [log for log in logs.rglob("*.log") if "error: " in log.read_text()]
    assert answer.returncode != 0
    assert len(complaining) == 1, answer.stdout + answer.stderr
    complaint = complaining[0].read_text().splitlines()[-1]
    assert complaint.startswith(f"error: {damaged}: ")
    assert "Traceback" not in complaining[0].read_text()
    complaining[0].unlink()
    assert finished_copy.snakemake(target).returncode == 0


def test_bad_configuration_is_refused_in_one_line_before_any_work(project_copy: Project) -> None:
    answer = project_copy.snakemake(config=project_copy.changed_config({"methods.dabo": {}}))
    assert answer.returncode != 0
    (line,) = (line for line in answer.stderr.splitlines() if not line.startswith("Using workflow specific profile"))
    assert line.startswith("error: config/changed.yaml: methods.dabo: ")
    assert "(did you mean dapo?); accepted: grpo_n" in line
    assert not (project_copy.root / "results").exists()


def test_another_directory_is_not_archived_without_the_workflow(project_copy: Project, tmp_path: Path) -> None:
    answer = project_copy.snakemake("--archive", str(tmp_path / "archive.tar.gz"), "--directory", str(tmp_path))
    assert answer.returncode != 0 and not (tmp_path / "archive.tar.gz").exists()
    root = project_copy.root
    assert f"error: --archive: {tmp_path} has no workflow; archive in {root}, without --directory" in answer.stderr


def test_programs_need_a_sandbox(project_copy: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has: a bubblewrap that does not work stands first in the path."""
    fake = tmp_path / "bin/bwrap"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho no namespaces here >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    config = project_copy.changed_config({"benchmarks": ["chain_3", "humaneval_plus"]})
    answer = project_copy.snakemake("--dry-run", config=config)
    assert answer.returncode != 0
    assert "error: benchmark humaneval_plus: programs and verifiers run in a sandbox or not at all" in answer.stderr
    assert "no namespaces here" in answer.stderr


def test_a_study_of_ones_own_is_not_filled_up_from_the_default_study(project_copy: Project) -> None:
    path = project_copy.root / "config/own.yaml"
    path.write_text("seeds: [1]\n")
    answer = project_copy.snakemake("--dry-run", config=path)
    assert answer.returncode != 0
    assert "error: config/own.yaml: lacks study" in answer.stderr
