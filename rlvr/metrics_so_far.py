"""The metrics of a training that is under way, for whoever watches it.

Like ``progress.json`` beside it the file may be lost at any time, so it is written without fsync; the finished training
leaves ``metrics.parquet`` instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

METRICS_SO_FAR = "metrics_so_far.parquet"
PARAMETERS = "parameters"
"""Attribute of the data frame: what the manifest will have under the same name."""


def write_metrics_so_far(directory: Path, parameters: Mapping[str, Any], metrics: pd.DataFrame) -> None:
    """Replace the file in a run's ``directory``.

    Args:
        directory: of the run.
        parameters: that determine the run, as in its manifest.
        metrics: a row a step, none before the first.
    """
    path = directory / METRICS_SO_FAR
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    # Whatever is wrong with it stops the run where it saves its state, and not where it shows off.
    with contextlib.suppress(Exception):
        shown = metrics if len(metrics) else pd.DataFrame({"step": []}, dtype=int)
        shown.attrs = {PARAMETERS: dict(parameters)}
        shown.to_parquet(temporary, index=False)
        os.replace(temporary, path)


def remove_metrics_so_far(directory: Path) -> None:
    """Take the file away, and what killed processes left half-written: the training is over."""
    for path in directory.glob(f"{Path(METRICS_SO_FAR).stem}.*"):
        path.unlink(missing_ok=True)
