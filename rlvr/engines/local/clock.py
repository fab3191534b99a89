"""The seconds and the memory of a step, on a processor or a GPU."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def time_on(device: torch.device) -> float:
    """Return the time once ``device`` has done what it was asked for: a GPU is only told, and works on alone."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def peak_memory(device: torch.device) -> int:
    """Return the most bytes so far: of a GPU those that torch allocated, else this process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class StepClock:
    """Seconds spent in the parts of one step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = time_on(device)
        self._seconds = dict.fromkeys(("rollout", "reward", "log_probs", "token_weights", "update"), 0.0)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the seconds of the block to ``part``."""
        started = time_on(self._device)
        yield
        self._seconds[part] = self._seconds.get(part, 0.0) + time_on(self._device) - started

    def metrics(self) -> dict[str, float]:
        """Seconds by part, and of the step so far."""
        parts = {f"seconds_{part}": seconds for part, seconds in self._seconds.items()}
        return {**parts, "seconds_step": time_on(self._device) - self._started}
