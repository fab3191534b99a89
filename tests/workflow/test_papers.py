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
    jobs = re.findall(r"^rule (\w+):$", said, re.MULTILINE)
    assert jobs.count("train") >= 4 and {"import_model", "read_training_set", "sample", "grade"} <= set(jobs)
    assert "base_model" not in jobs
    for rule, asked in {"train": "gpu=8, gres=, ray_cluster=0", "sample": "gpu=1"}.items():
        assert re.search(rf"rule {rule}:(?:\n    .*)*resources: .*\b{asked}\b", said)


def test_without_the_models_nothing_is_started(tmp_path: Path) -> None:
    answer = snakemake(tmp_path, "--configfile", str(DELTA))
    assert answer.returncode == 1
    assert re.search(r"error: models\.qwen3_\d+b_base\.path: \S+: no such directory\n", answer.stderr)


def test_the_profile_of_slurm_is_read(tmp_path: Path) -> None:
    """Its executor is a plug-in that the user installs; without it Snakemake says so, and has read the profile."""
    own = ["--profile", str(ROOT / "profiles/slurm")]
    answer = snakemake(tmp_path, "--dry-run", "--printshellcmds", "--configfile", str(DELTA), *own)
    said = answer.stdout + answer.stderr
    if answer.returncode != 0:
        assert "invalid choice: 'slurm'" in said or "slurm" in said.splitlines()[-1]
    else:
        assert re.search(r"rule train:(?:\n    .*)*resources: .*\bgpu=8, gres=, ray_cluster=0\b", said)
