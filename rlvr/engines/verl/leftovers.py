"""Processes of a run that outlive verl's driver: one that is killed leaves vLLM's engines and their memory behind."""

from __future__ import annotations

from pathlib import Path

import psutil

from rlvr.engines.verl.launch import RUN_VARIABLE

_PATIENCE_SECONDS = 30.0


def end_leftovers(run_file: Path) -> int:
    """Kill every process on this machine that was started for the run of ``run_file``; how many there were.

    To be called by whoever holds the run's lock, while no verl of its own is at work. The caller stays, and so do the
    processes that it was started by.
    """
    own = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
    left = [process for process in psutil.process_iter() if process.pid not in own and _works_for(process, run_file)]
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=_PATIENCE_SECONDS)
    return len(left)


def _works_for(process: psutil.Process, run_file: Path) -> bool:
    """Whether its environment names the run; a process that ends meanwhile, or is another user's, is none of ours."""
    try:
        named: str | None = process.environ().get(RUN_VARIABLE)
    except (psutil.Error, OSError):
        return False
    return named == str(run_file)
