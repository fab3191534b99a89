"""The progress of a training job and its metrics so far, for whoever watches it.

Both files may be lost at any time, so they are written without fsync; a disk that is full stops a training where it
saves its state, and not here.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

METRICS_SO_FAR = "metrics_so_far.parquet"
PARAMETERS = "parameters"
"""The attribute of the data frame in that file that holds what the manifest will have under the same name."""

_SECONDS_BETWEEN_LINES = 15.0


@dataclass
class Progress:
    """Reports the steps of one job: a line for the log now and then, and ``progress.json`` for the study's display."""

    directory: Path
    title: str
    steps: int
    first_step: int = 0

    def __post_init__(self) -> None:
        self._started = self._last_line = time.monotonic()

    def report(self, step: int, **measures: float) -> None:
        """Report that ``step`` steps are done; ``measures`` are shown beside it."""
        now = time.monotonic()
        seconds_per_step = (now - self._started) / max(1, step - self.first_step)
        content = {"step": step, "steps": self.steps, "seconds_per_step": seconds_per_step, **measures}
        temporary = self.directory / f"progress.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(content))
            os.replace(temporary, self.directory / "progress.json")
        if now - self._last_line >= _SECONDS_BETWEEN_LINES or step == self.steps:
            self._last_line = now
            words = "  ".join(f"{name} {value:.3f}" for name, value in measures.items())
            left = (self.steps - step) * seconds_per_step
            print(f"{self.title}: step {step} of {self.steps}  {words}  {left:.0f} s left", flush=True)


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
