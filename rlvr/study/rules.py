"""The values that the workflow's rules use: functions of wildcards, options, patterns, the jobs' environment."""

import contextlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError
from rlvr.runs.termination import SNAKEMAKE
from rlvr.study.source_files import REPOSITORY


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line where the user has made a mistake: Snakemake would add where its rule stands."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


def name_targets(rules: Iterable[Any], log: logging.Logger) -> None:
    """Let Snakemake's complaint about an unknown target name those that there are.

    Args:
        rules: Snakemake's rules.
        log: where Snakemake writes its messages.
    """
    names = ", ".join(rule.name for rule in rules if not rule.output and not rule.has_wildcards())

    def explain(record: logging.LogRecord) -> bool:
        unknown = re.match(r"MissingRuleException:\nNo rule to produce (\w+) ", str(record.msg))
        if unknown:
            record.msg = f"error: {InvalidInput('target', '', f'is {unknown[1]!r}', names)}"
        return True

    log.addFilter(explain)


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
    """Let jobs know this process and find this ``python``, and let other Pythons, such as vLLM's, find our packages."""
    os.environ[SNAKEMAKE] = str(os.getpid())
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
