"""Continuous integration runs four commands, which the pages name, one beside the others, and fails if one does."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
# The tests with the engines are under way before the style is checked, and end after it: each waits for the other.
MAKE = """#!/bin/sh
touch "$1.started"
case $1 in
    lint) while [ ! -e test-engines-short.started ]; do sleep 0.01; done;;
    test-engines-short) while [ ! -e lint.started ]; do sleep 0.01; done;;
esac
echo "output of $1"
[ "$1" != "$FAILS" ]
"""


def run(directory: Path, fails: str) -> subprocess.CompletedProcess[str]:
    """Run ``.ci/run`` with a ``make`` that fails in one target."""
    (directory / ".ci").mkdir()
    shutil.copy2(ROOT / ".ci/run", directory / ".ci/run")
    make = directory / "bin/make"
    make.parent.mkdir()
    make.write_text(MAKE)
    make.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{make.parent}:{os.environ['PATH']}",
        "FAILS": fails,
        "TMPDIR": str(directory),
    }
    return subprocess.run(
        [directory / ".ci/run"], env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.parametrize("fails", ["", "lint", "docs", "test", "test-engines-short"])
def test_everything_is_run_and_shown_whole(tmp_path: Path, fails: str) -> None:
    answer = run(tmp_path, fails)
    assert (answer.returncode == 0) == (fails == "")
    assert answer.stdout.splitlines() == [
        f"output of {name}" for name in ("lint", "docs", "test", "test-engines-short")
    ]
    assert not list(tmp_path.glob("tmp.*"))


def test_the_pages_name_what_is_run_and_workflows_run_it_too() -> None:
    run, readme, contributing = ((ROOT / name).read_text() for name in (".ci/run", "README.md", "CONTRIBUTING.md"))
    targets = {*re.findall(r"^make ([\w-]+)", run, re.MULTILINE), *re.findall(r"for command in (.*);", run)[0].split()}
    assert targets == {"lint", "docs", "test", "test-engines-short"}
    assert all(f"make {name}" in contributing for name in targets)
    assert all(f"make {name}" in readme for name in ("smoke", "reproduce", "test"))
    jobs = {path.stem: yaml.safe_load(path.read_text())["jobs"] for path in (ROOT / ".github/workflows").glob("*.yml")}
    steps = {name: [step.get("run") for job in of.values() for step in job["steps"]] for name, of in jobs.items()}
    assert ".ci/run" in steps["ci"] and "make docs" in steps["pages"] and set(steps) >= {"conform", "submissions"}
    used = re.findall(r"uses: (.*)", "".join(path.read_text() for path in (ROOT / ".github").rglob("*.yml")))
    assert used and all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v[\d.]+", action) for action in used)
