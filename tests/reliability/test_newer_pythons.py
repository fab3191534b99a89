"""The commands on files in empty environments of Pythons that are newer than that of a study."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ended
from tests.unit.repository.test_environments import built, commands_on_files

IN_ONE_PROCESS = """
import json, sys
from rlvr.cli import main
for words in json.loads(sys.argv[1]):
    if main(words):
        sys.exit(f"failed: {words}")
"""


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_an_empty_environment_of_a_newer_python_gets_the_commands_on_files(version: str, tmp_path: Path) -> None:
    """Install the wheel by uv and run them; skipped where the Python or the index of packages is out of reach."""
    environment = tmp_path / "environment"
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"  # which uv does not look at
    found = [version, *map(str, sorted(versions.glob(f"{version}.*/bin/python")))][-1]
    for words in (
        ["venv", "--python", found, str(environment)],
        ["pip", "install", "--python", str(environment), str(built(tmp_path))],
    ):
        done = ended([sys.executable, "-m", "uv", *words])
        if re.search(r"No interpreter found|error sending request|Failed to fetch", done.stderr):
            pytest.skip(f"Python {version}: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    shown = ""
    for command in (
        [environment / "bin/rlvr-bench", "--help"],
        [environment / "bin/python", "-c", IN_ONE_PROCESS, json.dumps(commands_on_files(tmp_path)[1:])],
    ):
        run = ended(command, cwd=tmp_path, env=variables, stdin=subprocess.DEVNULL)
        assert run.returncode == 0, run.stderr[-3000:]
        shown += run.stdout
    assert all(title in shown for title in ("Usage: rlvr-bench", "Scores", "Audit of the grades", "A against B"))
