"""What make's targets would run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MAKE = shutil.which("make") or "make"


def make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    # Without the variables of the make that may be running these tests.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }
    environment |= {} if path is None else {"PATH": path}
    return subprocess.run(
        [MAKE, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_is_the_default_and_lists_every_target() -> None:
    shown = make().stdout
    for target in (
        "reproduce",
        "smoke",
        "test",
        "test-engines",
        "test-engines-short",
        "lint",
        "ui",
        "status",
        "clean-state",
        "lock",
        "lock-engines",
        "environment",
    ):
        assert f"make {target} " in shown


def test_the_tests_of_the_engines_run_in_an_environment_of_their_own() -> None:
    planned = make("--dry-run", "test-engines", "ARGS=-m 'not long'").stdout.splitlines()
    assert planned[-2].endswith("workflow/envs/install.py engines")
    assert planned[-1].endswith(".venv-engines/bin/python -m pytest tests/engines --numprocesses 2 -m 'not long'")


def test_the_short_form_leaves_the_long_runs_out() -> None:
    planned = make("--dry-run", "test-engines-short", "ARGS=-x").stdout.splitlines()
    assert planned[-2].endswith("workflow/envs/install.py engines")
    assert planned[-1].endswith(" -m 'not long' --numprocesses 0 -x")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["reproduce"], "-m rlvr.study.launch --"),
        (["reproduce", "CORES=4"], "-m rlvr.study.launch -- --cores 4"),
        (["reproduce", "ARGS=-n --until train"], "-n --until train"),
        (["smoke"], "--configfile config/smoke.yaml"),
        (["test", "CORES=2"], "--numprocesses 2"),
        (["ui"], "-m rlvr ui"),
        (["status"], "-m rlvr status"),
    ],
)
def test_targets_pass_on_what_the_user_says(arguments: list[str], expected: str) -> None:
    planned = make("--dry-run", *arguments).stdout
    assert expected in planned
    assert "workflow/envs/install.py" in planned.splitlines()[1], "the environment comes first"


def test_all_cores_are_taken_unless_the_user_says_otherwise() -> None:
    assert "--cores" not in make("--dry-run", "reproduce").stdout
    profile = yaml.safe_load((ROOT / "profiles" / "default" / "profile.yaml").read_text())
    assert profile["cores"] == "all"


def test_a_machine_without_python_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    answer = make("environment", path=str(tmp_path))
    assert answer.returncode != 0
    assert answer.stderr.splitlines()[0].startswith("error: no python3.11 on the PATH")


def test_the_profile_resumes_after_a_kill_and_does_not_retrain_for_a_comment() -> None:
    profile = yaml.safe_load((ROOT / "profiles" / "default" / "profile.yaml").read_text())
    assert profile["rerun-incomplete"] is True
    assert set(profile["rerun-triggers"]) == {"mtime", "params", "input", "software-env"}


def test_ci_runs_what_a_person_types() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line.startswith("make")]
    assert commands == ["make lint", "make test", "make test-engines-short"]
