"""The source files behind a step of the workflow: a cheap step is repeated when one of them changes."""

import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_INSTALLED = Path(__file__).resolve().parents[1] / "config"
CONFIG = _INSTALLED if _INSTALLED.is_dir() else REPOSITORY / "config"
"""The directory of studies, methods and benchmarks: a wheel carries a copy beside the code."""
_OURS = re.compile(r"(evals|rlvr(_\w+)?)(\.|$)")
"""The names of our modules; rlvr_NAME are packages beside the core."""
_IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]+)|import ([\w.]+))", re.MULTILINE)
VERSIONED = ("evals.core", "evals.generation", "evals.problems", "rlvr.methods", "rlvr.engines", "rlvr.base_model")
"""Packages whose edits repeat nothing: a changed result raises a version number there (CONTRIBUTING.md), and
evals.core reads and writes files."""


def code_of(*modules: str) -> list[str]:
    """The source files of modules and of everything of ours that they import, but for :data:`VERSIONED` packages.

    A JSON file beside a module, whose text names it, is a part of the module.
    """
    files: set[Path] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if path is None:
            raise ValueError(f"{name} is no module of ours")
        if path not in files and not any(f"{name}.".startswith(f"{package}.") for package in VERSIONED):
            files |= {path, *_data_of(path)}
            waiting += _imported(path)
    return sorted(as_input(path) for path in files)


def template_files(page: str) -> list[str]:
    """The files of a page's templates: its own, those of all pages, and its script."""
    names = ("base.html.jinja", "macros.html.jinja", "report.css", f"{page}.html.jinja", f"{page}.js")
    files = [REPOSITORY / "rlvr/report/templates" / name for name in names]
    return [as_input(file) for file in files if file.is_file()]


def as_input(path: Path) -> str:
    """Spell a file of the repository as the input of a job, so that a copied study has the same inputs.

    A study inside the repository is copied with it: there the path is relative to the study's directory, where
    Snakemake works. Elsewhere it is absolute.
    """
    return os.path.relpath(path) if Path.cwd().is_relative_to(REPOSITORY) else str(path)


@cache
def _root(package: str) -> Path:
    """The directory that holds a package: the repository, or where a package beside the core is installed."""
    spec = find_spec(package)
    return REPOSITORY if spec is None or spec.origin is None else Path(spec.origin).parents[1]


@cache
def _file(name: str) -> Path | None:
    path = _root(name.partition(".")[0]).joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _data_of(path: Path) -> list[Path]:
    text = path.read_text(encoding="utf-8")
    return [file for file in path.parent.glob("*.json") if f'"{file.name}"' in text]


@cache
def _imported(path: Path) -> tuple[str, ...]:
    """Our own modules that a file imports, at its top or inside a function."""
    imported: list[str] = []
    for module, names, plain in _IMPORT.findall(path.read_text(encoding="utf-8")):
        name = module or plain
        if _OURS.match(name):
            inner = (word.split(" as ")[0].strip() for word in names.strip("()").split(","))
            imported += [name, *(f"{name}.{word}" for word in inner if word)]
    return tuple(name for name in imported if _file(name) is not None)
