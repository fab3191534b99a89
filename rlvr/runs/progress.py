"""The metrics of a training so far, for whoever watches it.

The file may be lost at any time, so it is written without fsync.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

METRICS_SO_FAR = "metrics_so_far.parquet"
PARAMETERS = "parameters"
"""The attribute of the data frame in that file that holds what the manifest will have under the same name."""


def write_metrics_so_far(directory: Path, parameters: Mapping[str, Any], metrics: pd.DataFrame) -> None:
    """Replace the metrics so far, a row a step, in a run's ``directory``; ``parameters`` are those of its manifest."""
    import pandas as pd

    path = directory / METRICS_SO_FAR
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(Exception):  # whatever is wrong here must not stop the training
        frame = metrics if len(metrics) else pd.DataFrame({"step": []}, dtype=int)
        frame.attrs = {PARAMETERS: dict(parameters)}
        frame.to_parquet(temporary, index=False)
        os.replace(temporary, path)


def remove_metrics_so_far(directory: Path) -> None:
    """Remove the file, and what killed processes left half-written: the training is over."""
    for path in directory.glob(f"{Path(METRICS_SO_FAR).stem}.*"):
        path.unlink(missing_ok=True)
