"""Deleting the training state of a study's runs: ``rlvr-bench clean-state``.

State is undeclared, so that Snakemake never deletes it; this command is the way to be rid of it. Finished results
stay. A run that was not finished starts again from its first step.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from evals.core.errors import UserError
from rlvr.study.directory import busy, find_snakemake, only_study


def clean_state(directory: Path) -> tuple[int, int]:
    """Delete every ``results/*/*/state`` under ``directory``; returns how many, and how many bytes they held.

    Raises:
        UserError: a study is running there.
    """
    with only_study(directory):
        process = find_snakemake(directory)
        if process is not None:
            raise UserError(busy(directory, process))
        states = [path for stage in ("base", "runs") for path in (directory / "results" / stage).glob("*/state")]
        size = sum(path.stat().st_size for state in states for path in state.rglob("*") if path.is_file())
        for state in states:
            shutil.rmtree(state)
    return len(states), size
