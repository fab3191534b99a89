"""What make's targets would run."""

import os
import re
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
        [MAKE, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


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
