"""A copy of the project in which the smoke study has been run, and a way to ask Snakemake what it would do next."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.snakemake_fork import run_in_fork

REPOSITORY = Path(__file__).resolve().parents[2]
COPIED = ("Snakefile", "workflow", "rlvr", "evals", "config", "profiles", "pyproject.toml")
JOB = re.compile(r"^(?:local)?rule (\w+):\n((?:    .*\n)*)", re.MULTILINE)
_WILDCARDS = re.compile(r"^    wildcards: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Project:
    """A working copy of the project with its results."""

    root: Path

    def snakemake(self, *arguments: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run snakemake in the copy, on the copy's own code."""
        # Targets come first: --configfile takes all that follow it.
        words = [*arguments, "--configfile", str(config or self.root / "config/smoke.yaml")]
        return run_in_fork(words, self.root, _environment(self.root))

    def run(self, *arguments: str, config: Path | None = None) -> str:
        """Run snakemake to its end; returns what it said."""
        answer = self.snakemake(*arguments, config=config)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout + answer.stderr

    def planned(self, config: Path | None = None, *targets: str) -> set[str]:
        """The jobs that would run."""
        return jobs_in(self.run(*targets, "--dry-run", "--printshellcmds", config=config)) - set(targets)

    def changed_config(self, change: Mapping[str, Any]) -> Path:
        """The smoke study with the values under dotted keys replaced, as a new file."""
        study = yaml.safe_load((self.root / "config/smoke.yaml").read_text())
        for dotted, value in change.items():
            *parents, key = dotted.split(".")
            place = study
            for parent in parents:
                place = place[parent]
            place[key] = value
        path = self.root / "config/changed.yaml"
        path.write_text(yaml.safe_dump(study, sort_keys=False))
        return path


def jobs_in(said: str) -> set[str]:
    """The jobs that a dry run tells of: ``rule`` or ``rule wildcard wildcard``; without the target rule."""
    jobs = set()
    for rule, body in JOB.findall(said):
        wildcards = _WILDCARDS.search(body)
        values = [part.split("=")[1] for part in wildcards[1].split(", ")] if wildcards else []
        jobs.add(" ".join([rule, *filter(None, values)]))  # the scope of the study at hand is empty
    return jobs - {"all"}


def commands_of(root: Path, *programs: Path) -> dict[str, str]:
    """The variables under which a shell finds this Python, the copy's code, and ``programs`` first."""
    path = [*map(str, programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**_environment(root), "PATH": os.pathsep.join(path)}


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "workflow/progress")])}


@pytest.fixture
def project_copy(tmp_path: Path) -> Project:
    """The project without results."""
    return copy_project(tmp_path / "project")


def copy_project(root: Path) -> Project:
    """Copy what a study needs of the project to ``root``."""
    root.mkdir()
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, root / name)
    return Project(root)


@pytest.fixture(scope="session")
def smoke_study(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project after ``snakemake --configfile config/smoke.yaml``; a test leaves it as it found it."""
    return _smoke_study(tmp_path_factory.getbasetemp() / "smoke")


@functools.cache  # the tests of a package beside the core have a fixture of their own, of the same study
def _smoke_study(directory: Path) -> Project:
    project = copy_project(directory)
    project.run()
    return project


@pytest.fixture
def finished_copy(smoke_study: Project, tmp_path: Path) -> Project:
    """A copy of the finished smoke study: another study in it takes over the base model and the shared runs."""
    return Project(Path(shutil.copytree(smoke_study.root, tmp_path / "project")))
