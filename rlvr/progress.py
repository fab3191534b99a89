"""How far a job is: one line now and then for the log, and a small file that the study's display reads."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

_SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Reports the steps of one training job.

    The file ``progress.json`` in the job's directory is for whoever watches and may be lost at any time; it is
    therefore written without fsync.
    """

    def __init__(self, directory: Path, title: str, steps: int, first_step: int = 0) -> None:
        self._path = directory / "progress.json"
        self._title = title
        self._steps = steps
        self._first_step = first_step
        self._started = self._last_line = time.monotonic()

    def report(self, step: int, **measures: float) -> None:
        """Say that ``step`` steps are done; ``measures`` are shown beside it."""
        now = time.monotonic()
        seconds_per_step = (now - self._started) / max(1, step - self._first_step)
        content = {"step": step, "steps": self._steps, "seconds_per_step": seconds_per_step, **measures}
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        with contextlib.suppress(OSError):  # a full disk stops the run where it saves its state, not where it shows off
            temporary.write_text(json.dumps(content))
            os.replace(temporary, self._path)
        if now - self._last_line >= _SECONDS_BETWEEN_LINES or step == self._steps:
            self._last_line = now
            shown = "  ".join(f"{name} {value:.3f}" for name, value in measures.items())
            left = (self._steps - step) * seconds_per_step
            print(f"{self._title}: step {step} of {self._steps}  {shown}  {left:.0f} s left", flush=True)
