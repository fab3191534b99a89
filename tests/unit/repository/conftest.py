"""A small workflow of its own, for tests of how snakemake is started and shown."""

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SNAKEFILE = """
rule all:
    input: "results/report.html"
rule train:
    output: "results/runs/{run}/manifest.json"
    log: "logs/{run}.log"
    shell: "sh train.sh {wildcards.run} {output} > {log} 2>&1"
rule report:
    input: expand("results/runs/{run}/manifest.json", run=["a", "b"])
    output: "results/report.html"
    log: "logs/report.log"
    shell: "echo done > {output} 2> {log}"
"""
# Waits until the test lets it go, for there is no telling how slow the machine is.
TRAIN = """
echo '{"step": 3, "steps": 6, "reward_mean": 0.5}' > "$(dirname "$2")/progress.json"
while [ -e hold ]; do sleep 0.1; done
if [ -e "fail-$1" ]; then echo "error: no luck with $1"; exit 3; fi
echo '{}' > "$2"
"""


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    """A directory with a Snakefile, the default profile, and trainings that wait while a file ``hold`` exists."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "train.sh").write_text(TRAIN)
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    return tmp_path


@pytest.fixture
def environment(workflow: Path) -> dict[str, str]:
    """The variables under which snakemake finds this tree's packages, installed or not."""
    paths = [str(ROOT), str(ROOT / "workflow" / "progress"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": path,
        "TERM": "xterm-256color",
        "PWD": str(workflow),
    }
