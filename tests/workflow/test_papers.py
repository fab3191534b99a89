"""The papers' studies are planned on a machine without a GPU, a model or data, and say which hours are not known."""

import os
import re
import subprocess
from pathlib import Path

from tests.workflow.snakemake_fork import run_in_fork

ROOT = Path(__file__).resolve().parents[2]
DELTA = ROOT / "config" / "papers" / "delta.yaml"


def snakemake(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "workflow" / "progress")])}
    return run_in_fork(["--directory", str(directory), "--cores", "4", *arguments], ROOT, environment)


def test_a_paper_is_planned_with_the_gpus_of_its_jobs(tmp_path: Path) -> None:
    profile = ["--profile", str(ROOT / "profiles/gpu")]
    answer = snakemake(tmp_path, "--dry-run", "--printshellcmds", "--configfile", str(DELTA), "--cores", "8", *profile)
    said = answer.stdout + answer.stderr
    assert answer.returncode == 0, said[-2000:]
    assert "hours not known: `rlvr-bench rehearse` measures a step" in said
    assert "not here yet: models." in said  # nobody has these models here
    jobs = re.findall(r"^(?:local)?rule (\w+):$", said, re.MULTILINE)
    assert jobs.count("train") >= 4 and {"import_model", "read_problems", "sample", "grade"} <= set(jobs)
    assert "base_model" not in jobs
    for rule, asked in {"train": "gpu=8, gres=, ray_cluster=0", "sample": "gpu=1"}.items():
        assert re.search(rf"rule {rule}:(?:\n    .*)*resources: .*\b{asked}\b", said)


def test_without_the_models_nothing_is_started(tmp_path: Path) -> None:
    answer = snakemake(tmp_path, "--configfile", str(DELTA))
    assert answer.returncode == 1
    assert re.search(r"error: models\.qwen3_\d+b_base\.path: \S+: no such directory\n", answer.stderr)


def rules_of_the_workflow() -> tuple[set[str], set[str]]:
    """The rules whose jobs have a size, and those that run where Snakemake does."""
    rules = "".join(path.read_text() for path in sorted((ROOT / "workflow/rules").glob("*.smk")))
    head = r"^(?:(?:rule|checkpoint) (\w+):|use rule (\w+) as (\w+) with:.*)\n((?:(?:    .*)?\n)*)"
    found = [(own or changed, of, body) for own, of, changed, body in re.findall(head, rules, re.MULTILINE)]
    jobs = {name: body for name, of, body in found if of or "    output:" in body}
    assert len(jobs) > 30
    here = {name for name, body in jobs.items() if "    localrule: True\n" in body}
    sized = {
        name for name, body in jobs.items() if re.search(r"    resources:\n(        .*\n)*        \*\*size\(", body)
    }
    sized |= {name for name, of, _ in found if of in sized} - here
    assert sized | here == set(jobs) and not sized & here
    # By itself a job is given as many processors as it has threads, which Snakemake cuts to those of its own machine.
    for name in (name for name in sized if (threads := re.search("    threads: (.*)", jobs[name]))):
        assert f", {threads[1]})," in jobs[name] or "DEVICES" in jobs[name], name
    return sized, here


def test_what_needs_a_network_runs_where_snakemake_does() -> None:
    sized, here = rules_of_the_workflow()
    assert {"read_problems", "read_solutions", "import_model", "reach_server", "track"} <= here
    assert {"train", "sample", "grade", "base_model", "candidates"} <= sized


def test_the_profile_of_slurm_gives_each_job_its_own_size(tmp_path: Path) -> None:
    """Not those of the machine where Snakemake runs, which has four processors here."""
    sized, _ = rules_of_the_workflow()
    own = ["--profile", str(ROOT / "profiles/slurm"), "--cores", "10000"]
    own += ["--default-resources", "mem_mb=1", "runtime=1"]
    answer = snakemake(tmp_path, "--dry-run", "--printshellcmds", "--configfile", str(DELTA), *own)
    said = answer.stdout + answer.stderr
    assert answer.returncode == 0, said[-2000:]
    asked = {rule: set[str]() for rule, _ in re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)*)", said, re.MULTILINE)}
    for rule, resources in re.findall(r"^rule (\w+):\n(?:    .*\n)*?    resources: (.*)$", said, re.MULTILINE):
        names = ("mem_mb", "runtime", "gpu", "nodes", "cpus_per_task")
        assert rule not in sized or "cpus_per_task=" in resources, rule
        asked[rule].add(", ".join(sorted(word for word in resources.split(", ") if word.split("=")[0] in names)))
    # Two models, of 8 and 14 billion parameters, whose weights wait in the memory of the node.
    assert asked["train"] == {
        f"cpus_per_task=64, gpu=8, mem_mb={megabytes}, nodes=1, runtime=2880" for megabytes in (192_000, 464_000)
    }
    assert asked["sample"] == {
        f"cpus_per_task=4, gpu=1, mem_mb={megabytes}, runtime=720" for megabytes in (48_000, 72_000)
    }
    assert asked["grade"] == {"cpus_per_task=16, mem_mb=36000, runtime=240"}
    assert all("gpu=0" in words for words in asked["candidates"])  # training has kept them
    assert len(sized & asked.keys()) > 8
    assert not [
        rule
        for rule in sized & asked.keys()
        for words in asked[rule]
        if "mem_mb=1," in words or "runtime=1" in words.split(", ")
    ]
