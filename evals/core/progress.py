"""The progress of a long job, for whoever watches it."""

import contextlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from evals.core.errors import printable

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

    def report(self, step: int, words: str = "", running: int = 0, **measures: float) -> None:
        """Report that ``step`` steps are done; ``words`` and ``measures`` are shown beside it.

        Steps that are ``running`` count as half done for the time that is left.
        """
        now = time.monotonic()
        pace = (now - self._started) / max(1, step - self.first_step + running / 2)
        content = {"step": step, "steps": self.steps, "unit": self.unit, "parts_left": self.parts_left, "words": words}
        temporary = self.directory / f"progress.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps({**content, "seconds_per_step": pace, **measures}))
            os.replace(temporary, self.directory / "progress.json")
        if now - self._last_line >= _SECONDS_BETWEEN_LINES or step == self.steps:
            self._last_line = now
            words = "  ".join(filter(None, [words, *(f"{name} {value:.3f}" for name, value in measures.items())]))
            left = f"{(self.steps - step) * pace:.0f} s left"
            print(f"{self.title}: {self.unit} {step} of {self.steps}  {words}  {left}", flush=True)


class Steps(NamedTuple):
    """An account of a job: its step in words, the part that is done, and the seconds that are left."""

    words: str
    part: float
    seconds_left: float


def read_steps(outputs: Iterable[str], since: float) -> Steps | None:
    """Read how far the job is that began at the second ``since`` of the epoch and makes ``outputs``.

    None without an account of steps beside them that makes sense: a display must not stop a study.
    """
    for path in dict.fromkeys(Path(output).with_name("progress.json") for output in outputs):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            content = json.loads(path.read_text(encoding="utf-8"))
            step, steps, reward = int(content["step"]), int(content["steps"]), content.get("reward_mean")
            # An earlier attempt's is older. File systems keep coarser times than the clock that stamped the start.
            if (step > 0 or content.get("words")) and step <= steps and path.stat().st_mtime > since - 1.0:
                pace = float(content.get("seconds_per_step", (time.time() - since) / max(1, step)))
                words = f"{content.get('unit', 'step')} {step} of {steps}"
                words += "" if reward is None else f", reward {reward:.2f}"
                words += f", {content['words']}" if content.get("words") else ""
                return Steps(printable(words), step / steps, pace * ((1 + content.get("parts_left", 0)) * steps - step))
    return None
