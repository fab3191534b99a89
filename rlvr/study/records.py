"""The results of which Snakemake has no record, as in a copy without .snakemake: it would reuse them unseen.

Each job notes what it made its outputs with (:meth:`rlvr.stages.stage.Stage.write_note`), and the notes are copied with
the results.
"""

from __future__ import annotations

import os
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from evals.core.errors import UserError
from rlvr.stages.stage import JOBS, Stage
from rlvr.study.jobs import inputs, settings_by_key

if TYPE_CHECKING:
    from rlvr.study.plan import Plan

_RECORDS = (".snakemake/metadata", ".snakemake/incomplete")
"""Where Snakemake's records lie; of what it was interrupted at it knows that it is to be made again."""
_SHOWN = 100


def checked_inputs(plan: Plan, workflow: Any) -> Callable[[Stage], list[str]]:
    """Make the function of a stage's inputs, which lets Snakemake make again what was made with other settings.

    Args:
        plan: of the study.
        workflow: Snakemake's; in a job's own process, and where files are only dated anew, nothing is checked.
    """

    @cache
    def recorded() -> set[str]:
        return {name for directory in _RECORDS for name in _names(directory)}

    def checked(stage: Stage) -> list[str]:
        output, is_asked = stage.paths()[0], workflow.is_main_process and not workflow.touch
        if is_asked and output not in workflow.dag.forcefiles and (otherwise := made_otherwise(stage, recorded)):
            print(
                f"{output}: was made {otherwise}; no record of it is in .snakemake, so it is made again",
                file=sys.stderr,
            )
            workflow.dag.forcefiles.add(output)
        return inputs(stage, plan.missing, workflow.dryrun and plan.may_lack_models)

    return checked


def made_otherwise(stage: Stage, recorded: Callable[[], set[str]]) -> str:
    """Say with what else the outputs of a stage were made than it has now, where there is no record of them.

    Outputs of which nothing says it are a :class:`UserError`.
    """
    output = stage.paths()[0]
    if not os.path.exists(output) or urlsafe_b64encode(output.encode()).decode() in recorded():
        return ""
    origin = stage.made_with()
    if origin is None:
        cures = f"copy .snakemake or {JOBS} with it, delete it, or, if this study made it,"
        raise UserError(f"{output}: nothing says what it was made with; {cures} snakemake --touch --force {output}")
    before, now = set(_lines(origin)), set(_lines(stage.origin()))
    differences = {"with": before - now, "without": now - before}
    return " and ".join(f"{word} {_first(lines)}" for word, lines in differences.items() if lines)


def _lines(origin: Mapping[str, Any]) -> Iterator[str]:
    for _, line in settings_by_key(origin["settings"]):
        yield line
    for path in origin["inputs"]:
        yield f"the input {path}"


def _first(lines: set[str]) -> str:
    """The first of what differs, shortened, and how many more there are."""
    first, more = min(lines), f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"{first[:_SHOWN]}{'...' if len(first) > _SHOWN else ''}{more}"


def _names(directory: str) -> Iterator[str]:
    """The names of Snakemake's records: a long one is divided into directories, which begin with ``@``."""
    for divided, _, files in os.walk(directory):
        before = divided.removeprefix(directory).replace("/@", "")
        yield from (before + file for file in files)
