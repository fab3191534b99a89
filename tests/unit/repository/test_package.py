"""What is released is the same, byte for byte, wherever and whenever it is built."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from evals.core.files import sha256_file

ROOT = Path(__file__).resolve().parents[3]
PACKAGED = ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "rlvr", "evals", "workflow", "config")


def build(place: Path, now: int) -> dict[str, str]:
    """Name -> hash of the wheel and the source archive of a copy whose files were all written at one time."""
    project = place / "project"
    for name in PACKAGED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, project / name)
        else:
            project.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, project / name)
    for path in project.rglob("*"):
        os.utime(path, (now, now))
    # As `python -m build` does: the backend of pyproject.toml, which is in the lock file, makes both.
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(place / "dist")]
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True)
    return {path.name: sha256_file(path) for path in (place / "dist").iterdir()}


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = build(tmp_path / "a", 1_600_000_000), build(tmp_path / "elsewhere" / "b", 1_700_000_000)
    assert sorted(Path(name).suffix for name in first) == [".gz", ".whl"]
    assert first == second
