"""A stage that follows its code lists all of it: an edited module must not leave yesterday's numbers standing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
FILES_AND_ERRORS = {
    path.relative_to(REPOSITORY).as_posix()
    for path in (REPOSITORY / "evals/command_line.py", *(REPOSITORY / "evals/core").glob("*.py"))
}
"""How files are read and written and errors told: not what stands in them."""


def rules_with_code() -> dict[str, tuple[list[str], list[str]]]:
    """Rule -> names given to ``modules()``, and modules that its shell command runs."""
    found = {}
    for path in sorted((REPOSITORY / "workflow/rules").glob("*.smk")):
        for name, body in re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", path.read_text(), re.MULTILINE | re.DOTALL):
            if listed := re.search(r"code=modules\(([^)]*)\)", body):
                found[name] = (re.findall(r'"([\w.]+)"', listed[1]), re.findall(r"python -m ([\w.]+)", body))
    return found


def source(module: str) -> Path | None:
    """The file of one of our modules or packages."""
    path = REPOSITORY.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported(path: Path) -> Iterator[Path]:
    """Our own files that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            file = source(name) if name.partition(".")[0] in ("evals", "rlvr") else None
            if file is not None:
                yield file


def reached(start: Path) -> set[Path]:
    """A file and everything of ours that it imports, directly or not."""
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += imported(path)
    return seen


def test_the_rules_are_found() -> None:
    assert {"score", "compare", "table_main", "report_html", "track"} <= set(rules_with_code())


@pytest.mark.parametrize("rule", sorted(rules_with_code()))
def test_every_module_that_a_command_runs_is_an_input(rule: str) -> None:
    names, commands = rules_with_code()[rule]
    listed: set[Path] = set()
    for name in names:
        path = REPOSITORY.joinpath(*name.split("."))
        listed |= set(path.glob("*.py")) if path.is_dir() else {path.with_suffix(".py")}
    # The last command makes what is shown; the report's other one says what is current at that moment, no number.
    # A rule may name the one module that holds its subcommand.
    starts = [source(name) for name in names if name.startswith(f"{commands[-1]}.")]
    starts = starts or [REPOSITORY.joinpath(*commands[-1].split("."), "__main__.py")]
    needed = set().union(*(reached(start) for start in starts if start))
    missing = {path.relative_to(REPOSITORY).as_posix() for path in needed - listed} - FILES_AND_ERRORS
    assert not missing
