"""Run the ordinary snakemake where no other study works: ``python -m rlvr.study.launch -- --cores 4``."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from evals.core.errors import UserError
from evals.core.single_writer import single_writer

HELD_BY = ".snakemake/study"
"""The directory of the lock of a study's directory, and of the file ``owner``, the first that a start writes."""


def main(arguments: list[str]) -> None:
    """Run snakemake with ``arguments``; exits with Snakemake's status, or with 1 if it may not run."""
    _give_name_and_cache()
    from snakemake import cli  # here: an interrupt is one line before the long imports too

    from rlvr.study.rule_values import one_line_errors
    from rlvr.study.study_file import fault_of_command

    options = cli.get_argument_parser().parse_args(arguments)
    directory = Path(options.directory or ".").resolve()
    if fault := fault_of_command(arguments):
        sys.exit(fault)
    with one_line_errors(), contextlib.nullcontext() if options.dryrun else only_study(directory):
        if locks := [] if options.dryrun else list((directory / ".snakemake/locks").glob("*.lock")):
            require_no_snakemake(directory)
            print("an earlier study was killed; continuing it", file=sys.stderr)
            for lock in locks:
                lock.unlink()
        cli.main(arguments)


def _give_name_and_cache() -> None:
    """Give Snakemake what it fails without, as in containers: a user's name, and a place for its cache."""
    os.environ.setdefault("USER", str(os.getuid()))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not os.access(next(path for path in (cache, *cache.parents) if path.exists()), os.W_OK | os.X_OK):
        os.environ["XDG_CACHE_HOME"] = os.path.abspath(".cache")


def only_study(directory: Path) -> contextlib.AbstractContextManager[None]:
    """Hold ``directory``, or refuse it. The kernel drops this lock with its process; Snakemake's survives a kill."""
    return single_writer(directory / HELD_BY, "runs another study here", wait_seconds=0.0)


def require_no_snakemake(directory: Path) -> None:
    """Refuse a ``directory`` where another Snakemake of this machine runs jobs, or one that hides where it works."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        is_here = os.path.realpath(process.info["cwd"] or directory) == os.path.realpath(directory)
        if is_here and _runs_jobs(process.info["cmdline"] or []) and process.pid != os.getpid():
            raise UserError(f"{directory}: process {process.pid} runs another study here; stop it, or wait for it")


def _runs_jobs(command: list[str]) -> bool:
    modules = {word for before, word in pairwise(command) if before == "-m"} | {Path(word).name for word in command[:2]}
    return bool(modules & {"snakemake", "rlvr.study.launch"}) and not {"-n", "--dry-run", "--dryrun"} & {*command}


def end_jobs_on_termination(workflow: Any) -> None:
    """Pass a SIGTERM of this process, which runs Snakemake, on to its jobs, which save their state and end.

    Snakemake alone waits for them, however long. An interrupt does the same, so that it never meets Snakemake's code
    half-way. Jobs of other machines Snakemake ends by an interrupt alone.
    """
    noted: Any = signal.getsignal(signal.SIGTERM)

    def end(*received: Any) -> None:
        noted(*received)
        ended = set[psutil.Process]()
        while True:  # until Snakemake has ended: it may be about to start jobs that it chose before
            time.sleep(0.5)  # in which it says that it ends, so that its jobs' ends are no failures
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    jobs = child.children() if child.name() in ("sh", "bash") else []
                    for job in set(jobs or [child]) - ended:
                        ended.add(job)
                        job.terminate()

    def begin(*received: Any) -> None:
        if not workflow.local_exec:
            for again in (signal.SIGINT, signal.SIGTERM):  # it would meet it while it ends its jobs; timeout sends two
                signal.signal(again, signal.SIG_IGN)
            # While the executor asks for its jobs' states it knows of none, and would cancel none.
            if name := getattr(workflow.scheduler._executor, "run_uuid", None):
                atexit.register(subprocess.run, ["scancel", "--name", name], check=False)
            raise KeyboardInterrupt
        # In a thread: Snakemake's handler waits for the scheduler's lock, which the interrupted code may hold.
        threading.Thread(target=end, args=received, daemon=True).start()

    signal.signal(signal.SIGTERM, begin)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, begin)


def lift_job_rate(workflow: Any) -> None:
    """Take away Snakemake's own limit of 100 jobs a second; another one, asked for by an option, stays.

    Each look of Snakemake 9.27 at the ready jobs starts a timer of a second, which ends in another look: they multiply.
    """
    limiter = workflow.scheduler.job_rate_limiter
    if limiter is not None and (limiter.max_jobs, limiter.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None


def read_ends_of_slurm() -> None:
    """Let the executor for Slurm 2.8.0 see that a job has ended where sacct has more than a word for it.

    It knows CANCELLED and waits for ever for what is "CANCELLED by 1000", as sacct words a scancel.
    """
    executor: Any = sys.modules.get("snakemake_executor_plugin_slurm")
    ask: Any = getattr(executor, "query_job_status", None)
    if ask is None:
        return

    async def ask_for_words(*given: Any) -> Any:
        states, seconds = await ask(*given)
        return states and {job: state.partition(" ")[0] for job, state in states.items()}, seconds

    executor.query_job_status = ask_for_words


def _end_at_once(number: int, _frame: Any) -> None:
    """Leave a study that is only planned; Snakemake would show where it was."""
    os.write(2, b"interrupted; the same command goes on from here\n")
    os._exit(128 + number)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # no shell's background job
        signal.signal(signal.SIGINT, _end_at_once)
    main(sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:])
