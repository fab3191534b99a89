"""The metrics of a training that is under way, for whoever watches it.

Like ``progress.json`` beside it the file may be lost at any time, so it is written without fsync; the finished training
leaves ``metrics.parquet`` instead.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pandas as pd

METRICS_SO_FAR = "metrics_so_far.parquet"


def write_metrics_so_far(directory: Path, metrics: pd.DataFrame) -> None:
    """Replace the file in a run's ``directory``; ``metrics`` has a row a step, and none before the first."""
    path = directory / METRICS_SO_FAR
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(OSError):  # a full disk stops the run where it saves its state, not where it shows off
        (metrics if len(metrics) else pd.DataFrame({"step": []}, dtype=int)).to_parquet(temporary, index=False)
        os.replace(temporary, path)


def remove_metrics_so_far(directory: Path) -> None:
    """Take the file away: the training is over."""
    (directory / METRICS_SO_FAR).unlink(missing_ok=True)
