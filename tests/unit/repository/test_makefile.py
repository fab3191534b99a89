"""What make's targets would run."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.commands import ended

ROOT = Path(__file__).resolve().parents[3]
MAKE = shutil.which("make") or "make"


def make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    # Without the variables of the make that may be running these tests.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }
    environment |= {} if path is None else {"PATH": path}
    return ended([MAKE, *arguments], cwd=ROOT, env=environment, timeout=600)


def test_help_is_the_default_and_explains_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    shown = make().stdout
    assert [target for target in phony[1].split() if f"make {target} " not in shown] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "CORES=4"], "--cores 4"),
        (["reproduce", "ARGS=-n --until train"], "-n --until train"),
        (["test", "CORES=2", "ARGS=-x"], "--numprocesses 2"),
        (["fuzz", "CORES=2"], "--numprocesses 2"),
        (["smoke"], "--configfile config/smoke.yaml"),
    ],
)
def test_targets_pass_on_what_the_user_says_after_the_environment_is_there(arguments: list[str], words: str) -> None:
    environment, *_, command = make("--dry-run", *arguments).stdout.splitlines()
    assert words in command
    assert environment.endswith(" -s .venv/complete")


def test_a_machine_without_python_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    answer = make("environment", path=str(tmp_path))
    assert answer.returncode != 0
    assert answer.stderr.splitlines()[0].startswith("error: Python 3.11 is needed")


def test_the_profile_resumes_after_a_kill_and_does_not_retrain_for_a_comment() -> None:
    profile = yaml.safe_load((ROOT / "profiles" / "default" / "profile.yaml").read_text())
    assert profile["cores"] == "all" and profile["rerun-incomplete"] is True
    assert set(profile["rerun-triggers"]) == {"mtime", "params", "input"}
    assert profile["scheduler"] == "greedy"  # the other one ends in a traceback where TMPDIR is full


# Continuous integration runs four commands, which the pages name, one beside the others, and fails if one does.

# The tests with the engines are under way before the style is checked, and end after it: each waits for the other.
MAKE_OF_CI = """#!/bin/sh
touch "$1.started"
case $1 in
    lint) while [ ! -e test-engines-short.started ]; do sleep 0.01; done;;
    test-engines-short) while [ ! -e lint.started ]; do sleep 0.01; done;;
esac
echo "output of $1"
[ "$1" != "$FAILS" ]
"""


def run(directory: Path, fails: str, lacks: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``.ci/run`` with a ``make`` that fails in one target, where one program is not to be had."""
    (directory / ".ci").mkdir()
    shutil.copy2(ROOT / ".ci/run", directory / ".ci/run")
    place = directory / "bin"
    place.mkdir()
    scripts = {"make": MAKE_OF_CI, "apt-get": "#!/bin/sh\nexit 100\n", "bwrap": "", "slurmctld": ""}
    for name in scripts.keys() - {lacks}:
        (place / name).write_text(scripts[name])
        (place / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{place}:/usr/bin:/bin", "FAILS": fails, "TMPDIR": str(directory)}
    return ended([directory / ".ci/run"], env=environment, timeout=600)


@pytest.mark.parametrize("fails", ["", "lint", "docs", "test", "test-engines-short"])
def test_everything_is_run_and_shown_whole(tmp_path: Path, fails: str) -> None:
    answer = run(tmp_path, fails)
    assert (answer.returncode == 0) == (fails == "")
    assert answer.stdout.splitlines() == [
        f"output of {name}" for name in ("lint", "docs", "test", "test-engines-short")
    ]
    assert not list(tmp_path.glob("tmp.*"))


def test_slurm_that_cannot_be_installed_is_told_and_ends_nothing(tmp_path: Path) -> None:
    answer = run(tmp_path, fails="", lacks="slurmctld")
    assert answer.returncode == 0
    told, *rest = answer.stdout.splitlines()
    assert told == "Slurm is not there and cannot be installed: its tests are skipped" and len(rest) == 4


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
