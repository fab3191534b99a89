"""Continuous integration runs four commands, one beside the others, and fails if one does."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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
