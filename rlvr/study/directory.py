"""Who works in a study's directory: one study at a time, and a dead one's lock is no lock.

Snakemake marks a directory as locked by files that survive a kill -9 and name no process. Two facts tell a live study
from a dead one: a lock of ours that the kernel drops with its process, and the Snakemake processes of this machine that
work in the directory (so a plain ``snakemake``, which takes no lock of ours, is seen as well).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from evals.core.errors import UserError


@contextlib.contextmanager
def only_study(directory: Path) -> Iterator[None]:
    """Hold ``directory`` for one study.

    Raises:
        UserError: another study runs there, or the directory cannot be written.
    """
    lock_file = directory / ".snakemake" / "study.lock"
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_file, timeout=0)
        lock.acquire()
    except Timeout:
        raise UserError(busy(directory, find_snakemake(directory))) from None
    except OSError as error:
        raise UserError(f"{lock_file}: cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def is_marked_locked(directory: Path) -> bool:
    """Whether Snakemake, alive or dead, left its lock files in ``directory``."""
    return any((directory / ".snakemake" / "locks").glob("*.lock"))


def find_snakemake(directory: Path) -> psutil.Process | None:
    """A Snakemake process other than this one that works in ``directory`` and executes jobs, or None.

    A process of another user may hide its directory; it counts, for a lock is better kept once too often.
    """
    own = os.getpid()
    for process in psutil.process_iter(["cmdline"]):
        if process.pid == own or not _executes_jobs(process.info["cmdline"] or []):
            continue
        try:
            if os.path.realpath(process.cwd()) == os.path.realpath(directory):
                return process
        except psutil.AccessDenied:
            return process
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return None


def busy(directory: Path, process: psutil.Process | None) -> str:
    """The message that another study works in ``directory``."""
    text = f"another study is running in {directory}"
    if process is None:
        return text
    with contextlib.suppress(psutil.NoSuchProcess):
        started = time.strftime("%H:%M", time.localtime(process.create_time()))
        return f"{text} (process {process.pid}, started {started})"
    return text


def _executes_jobs(command: list[str]) -> bool:
    """Whether a command line is Snakemake's or our launcher's, and no dry run."""
    words = [Path(command[0]).name, *command[1:]] if command else []
    scripts = {Path(word).name for word in words[:2]}
    modules = {word for before, word in itertools.pairwise(words) if before == "-m"}
    is_snakemake = "snakemake" in scripts or bool(modules & {"snakemake", "rlvr.study.launch"})
    return is_snakemake and not {"-n", "--dry-run", "--dryrun"} & set(words)
