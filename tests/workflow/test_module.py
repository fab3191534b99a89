"""The workflow as a part of another one, and in the process of a job on another machine."""

import re
import subprocess
import sys
from pathlib import Path

from evals.core.yaml_file import read_yaml
from tests.workflow.conftest import Project, commands_of, jobs_in
from tests.workflow.snakemake_fork import run_in_fork

OTHER = """\
module rlvr:
    snakefile: "{root}/Snakefile"
    config: {content}
use rule * from rlvr as rlvr_*
rule mine:
    input: "results/tables/main.md"
    output: "lines.txt"
    shell: "wc -l < {{input}} > {{output}}"
rule both:
    output: "both.txt"
    shell: "echo one > {{output}}; echo two >> {{output}}"
"""
STUDY = 'dict(yaml.safe_load(open("{root}/config/smoke.yaml")), seeds={{"at_most": 4, "looks": [2, 4], "margin": 2.0}})'


def test_another_workflow_takes_the_rules_as_a_module(project_copy: Project, tmp_path: Path) -> None:
    """Looks included; a prefix of all shell commands would reach the other workflow's."""
    other, root = tmp_path / "other", project_copy.root
    other.mkdir()
    module = OTHER.format(root=root, content=STUDY.format(root=root))
    (other / "Snakefile").write_text(f"import yaml\n{module}")
    words = ["--dry-run", "--cores", "1", "--scheduler", "greedy"]
    planned = run_in_fork(["mine", *words], other, commands_of(project_copy.root))
    assert planned.returncode == 0, planned.stderr
    jobs = jobs_in(planned.stdout + planned.stderr)
    trained = {f"tiny-{name}-s{seed}" for name in ("dapo", "delta") for seed in (1, 2)}
    trained |= {f"tiny-dapo_query_preserved_reward_balanced-s{seed}" for seed in (1, 2)}
    assert {f"rlvr_train {run}" for run in trained} == {job for job in jobs if job.startswith("rlvr_train")}
    assert "mine" in jobs
    command = [sys.executable, "-m", "snakemake", "both", "--cores", "1", "--scheduler", "greedy"]
    ran = subprocess.run(command, cwd=other, env=commands_of(project_copy.root), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (other / "both.txt").read_text() == "one\ntwo\n"


def test_the_process_of_a_job_on_a_cluster_plans_its_job_alone(project_copy: Project) -> None:
    """Studies of config/studies that cannot be read are in nobody's way, and nothing is said of the plan."""
    for path in (project_copy.root / "config/studies").glob("*.yaml"):
        path.write_text("a: [\n")
    target = "results/runs/tiny-dapo-s1/manifest.json"
    words = [target, "--dry-run", "--mode", "remote", "--allowed-rules", "train", "base_model", "base_corpus"]
    answer = project_copy.snakemake(*words, "draw_problems", "--cores", "1")
    assert answer.returncode == 0, answer.stderr
    assert "train tiny-dapo-s1" in jobs_in(answer.stdout + answer.stderr)
    assert "hours" not in answer.stderr and "Stops when certain" not in answer.stderr


def test_a_change_on_the_command_line_alone_is_one_of_the_default_study(project_copy: Project) -> None:
    """Without a file of a study there is nothing else in the configuration, as in another workflow's module."""
    words = ["runs", "--dry-run", "--cores", "1", "--scheduler", "greedy", "--config", "seeds=[1, 2]"]
    planned = run_in_fork(words, project_copy.root, commands_of(project_copy.root))
    assert planned.returncode == 0, planned.stderr
    methods = read_yaml(project_copy.root / "config/config.yaml")["methods"]
    assert re.search(r"^train +(\d+)$", planned.stdout + planned.stderr, re.MULTILINE)[1] == str(2 * len(methods))
