"""The values that the workflow's rules use: functions of wildcards, options, patterns, the jobs' environment."""

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from rlvr.study.source_files import REPOSITORY


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line where the user has made a mistake: Snakemake would add where its rule stands."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


def given(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make an input or parameter function of a rule: the arguments of ``function`` are the wildcards of their names.

    Text with braces has to come from a function, too: Snakemake reads wildcards into the braces of a plain string.
    """
    names = list(inspect.signature(function).parameters)

    def of_wildcards(wildcards: Any) -> Any:
        with one_line_errors():
            return function(*(getattr(wildcards, name) for name in names))

    return of_wildcards


def words(options: Mapping[str, Any]) -> list[str]:
    """Options of a command: ``{"top_p": 1.0, "runs": ["a", "b"]}`` is ``--top-p 1.0 --runs a b``."""
    found = []
    for key, value in options.items():
        found += [f"--{key.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return found


def pattern(names: Iterable[str]) -> str:
    """The pattern of a wildcard that has one of ``names``; one that matches nothing if there is none."""
    return "|".join(names) or "(?!)"


def files_of(path: str | None) -> list[str]:
    """The files of a local copy, whose changes count; none where nothing is copied."""
    if path is None:
        return []
    return sorted(map(str, [Path(path)] if Path(path).is_file() else Path(path).rglob("*.*")))


def manifests(directories: Iterable[str]) -> list[str]:
    """The manifests of directories."""
    return [f"{directory}/manifest.json" for directory in directories]


def set_job_environment() -> None:
    """Let the jobs' ``python`` be the one that runs this, and let other Pythons, such as vLLM's, find our packages."""
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
