"""The progress of a long job, for whoever watches it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

_SECONDS_BETWEEN_LINES = 15.0


@dataclass
class Progress:
    """Reports the steps of one job: a line for the log now and then, and ``progress.json`` for the study's display.

    The file may be lost at any time, so it is written without fsync; a disk that is full stops a job where it saves its
    results, and not here. Steps before ``first_step`` were done by an earlier job; ``unit`` is what a step makes. A job
    that does more than these steps says with ``parts_left`` how often as much is left after them.
    """

    directory: Path
    title: str
    steps: int
    first_step: int = 0
    unit: str = "step"
    parts_left: int = 0

    def __post_init__(self) -> None:
        self._started = self._last_line = time.monotonic()

    def report(self, step: int, **measures: float) -> None:
        """Report that ``step`` steps are done; ``measures`` are shown beside it."""
        now = time.monotonic()
        seconds_per_step = (now - self._started) / max(1, step - self.first_step)
        content = {"step": step, "steps": self.steps, "unit": self.unit, "parts_left": self.parts_left}
        content["seconds_per_step"] = seconds_per_step
        temporary = self.directory / f"progress.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(content | measures))
            os.replace(temporary, self.directory / "progress.json")
        if now - self._last_line >= _SECONDS_BETWEEN_LINES or step == self.steps:
            self._last_line = now
            words = "  ".join(f"{name} {value:.3f}" for name, value in measures.items())
            left = (self.steps - step) * seconds_per_step
            print(f"{self.title}: {self.unit} {step} of {self.steps}  {words}  {left:.0f} s left", flush=True)
