"""Where the seconds of a training step go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """Seconds spent in the parts of one step."""

    PARTS = ("rollout", "reward", "log_probs", "token_weights", "update")

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._seconds = dict.fromkeys(self.PARTS, 0.0)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the seconds of the block to ``part``."""
        started = time.monotonic()
        yield
        self._seconds[part] += time.monotonic() - started

    def metrics(self) -> dict[str, float]:
        """Seconds by part, and of the step so far."""
        parts = {f"seconds_{part}": seconds for part, seconds in self._seconds.items()}
        return {**parts, "seconds_step": time.monotonic() - self._started}
