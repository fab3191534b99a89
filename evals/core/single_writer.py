"""One process at a time in a directory: a job that a killed study left running must not write over its successor's."""

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from evals.core.errors import UserError
from evals.core.files import write_text

_POLL_SECONDS = 2.0


@contextmanager
def single_writer(directory: Path, work: str, wait_seconds: float = math.inf) -> Iterator[None]:
    """Hold a lock in ``directory``, which the operating system frees when the process dies, however it dies.

    Another process that holds it is waited for, and named; if it still holds it after ``wait_seconds``, that is a
    :class:`UserError`. ``work`` says what the owner does, as a verb in the third person.
    """
    owner_path = directory / "owner"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / "lock")
        deadline = time.monotonic() + wait_seconds
        announced = False
        while True:
            try:
                lock.acquire(timeout=_POLL_SECONDS)
                break
            except Timeout:
                owner = owner_path.read_text() if owner_path.exists() else "unknown"
                if time.monotonic() > deadline:
                    raise UserError(f"{directory}: process {owner} {work}; stop it, or wait until it is done") from None
                if not announced:
                    print(f"{directory}: waiting for process {owner}, which {work}", flush=True)
                    announced = True
    except OSError as error:
        raise UserError(f"{directory}: cannot be locked: {error.strerror or error}") from error
    try:
        write_text(owner_path, str(os.getpid()))
        yield
    finally:
        lock.release()


def is_held(directory: Path) -> bool:
    """Return whether a process is known to hold the lock in ``directory``, which is left as it is."""
    try:
        with open(directory / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
