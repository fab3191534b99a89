"""The process of a job: its log, its errors in one line, its end when it is asked to stop or its Snakemake dies.

Beside it the metrics of a run so far, for whoever watches it: a file that may be lost at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from evals.core.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

STOPPED = 143
"""The exit status of a run that was stopped: 128 + SIGTERM, as a shell reports it."""
SNAKEMAKE = "RLVR_BENCH_SNAKEMAKE"
"""The environment variable that tells a job the process of its Snakemake."""
_SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG of linux/prctl.h


class Interrupted(Exception):
    """The training was asked to stop, and its state is saved."""


@contextmanager
def exit_if_interrupted() -> Iterator[None]:
    """End the process with one line and the status :data:`STOPPED` when a run was asked to stop."""
    try:
        yield
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        raise SystemExit(STOPPED) from None


def save_when_due(
    step: int, steps: int, interval: int, asked_to_stop: Callable[[], bool], save: Callable[[], None], name: str
) -> None:
    """Save the state after every ``interval`` steps, after the last one, and where the training is asked to stop.

    Raises:
        Interrupted: the training, ``name`` for people, was asked to stop.
    """
    stop = asked_to_stop()  # once: what comes while the state is saved waits for the next step
    if stop or step == steps or step % interval == 0:
        save()
    if stop:
        raise Interrupted(f"{name}: stopped after step {step}; its state is saved")


def end_with_snakemake() -> None:
    """Let Linux send this process a SIGTERM when its Snakemake dies, if it is the job of one.

    A job that went on would publish its files after the next Snakemake has begun the same job, and perhaps given it up.
    """
    number = os.environ.get(SNAKEMAKE)
    if number is None or sys.platform != "linux" or "APPTAINER_CONTAINER" in os.environ:  # which may hide the process
        return
    if os.getppid() == int(number):
        end_with_parent(signal.SIGTERM)
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:  # it died before the request
        raise SystemExit(STOPPED) from None


def end_with_parent(sent: signal.Signals) -> None:
    """Let Linux send this process a signal when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, sent)


@contextmanager
def termination() -> Iterator[Callable[[], bool]]:
    """Note a SIGTERM instead of dying from it; yields a function that says whether one has come."""
    received = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal received
        received = True

    previous = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: received
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def job(log: str) -> Iterator[None]:
    """Write what the block and its processes print to the file ``log``; errors as :func:`end_in_one_line`."""
    end_with_snakemake()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    sys.stdout.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    with end_in_one_line():
        yield


@contextmanager
def end_in_one_line() -> Iterator[None]:
    """End the process with one line after a user's mistake, and after a SIGTERM once the state is saved."""
    try:
        with exit_if_interrupted():
            yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


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
