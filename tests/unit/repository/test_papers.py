"""The repository's papers agree with one another, and the lint filter hides one finding only."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from rlvr.cli.application import commands

ROOT = Path(__file__).resolve().parents[3]


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert re.search(rf"\b{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text())


def test_the_licence_is_apache_2_in_full() -> None:
    text = (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == "Apache-2.0"
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"] == "Apache-2.0"


def test_results_are_ignored_but_for_their_readme() -> None:
    assert (ROOT / "results" / "README.md").is_file()
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "/results/*" in ignored and "!/results/README.md" in ignored


def is_command(words: list[str]) -> bool:
    """Whether the first of ``words`` name a command of ours."""
    found: Any = typer.main.get_command(commands)
    for word in words:
        if not hasattr(found, "commands"):
            return True
        if word not in found.commands:
            return False
        found = found.commands[word]
    return True


PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]) + sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*/*.md")
)


@pytest.mark.parametrize("page", PAGES)
def test_files_links_and_commands_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    files = re.findall(r"(?<![\w./-])(?:workflow|rlvr|evals|config|docs|benchmarks)/[\w./-]*\w", text)
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    modules = re.findall(r"python -m ((?:rlvr|evals)[\w.]*)", text)
    sources = [f"{module.replace('.', '/')}{ending}" for module in modules for ending in (".py", "/__main__.py")]
    named = re.findall(r"(?:rlvr-bench|python -m rlvr)((?: [a-z][\w-]*)+)", text)
    missing = [name for name in files if not (ROOT / name).exists()]
    missing += [link for link in links if not ((ROOT / page).parent / link).exists()]
    missing += [
        first for first, second in zip(sources[::2], sources[1::2], strict=True)
        if not (ROOT / first).exists() and not (ROOT / second).exists()
    ]  # fmt: skip
    missing += [words for words in named if not is_command(words.split())]
    assert not missing


def test_workflow_lint_accepts_the_shared_environment_and_nothing_else() -> None:
    specification = importlib.util.spec_from_file_location("workflow_lint", ROOT / "workflow" / "lint.py")
    assert specification is not None and specification.loader is not None
    lint = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(lint)
    report = """\
Lints for rule train (line 3, train.smk):
    * Specify a conda environment or container for each rule.:
      This way, the used software for each step is documented.
    * No log directive defined:
      Without a log directive, all output will be printed.

Lints for snakefile Snakefile:
    * Absolute path "/data" in line 4:
      Do not define absolute paths.
"""
    assert lint.findings(report) == [
        "rule train (line 3, train.smk): No log directive defined",
        'snakefile Snakefile: Absolute path "/data" in line 4',
    ]
