"""Run the ordinary snakemake, after making sure that no other study works in the directory.

    python -m rlvr.study.launch -- --cores 4

Everything after ``--`` is Snakemake's. If a killed study left Snakemake's lock behind, it is removed and the study
continues; if the other study is alive, one line names its process, and nothing is touched.

Snakemake marks a directory as locked by files that survive a kill -9 and name no process. Two facts tell a live study
from a dead one: a lock of ours that the kernel drops with its process, and the Snakemake processes of this machine that
work in the directory, so that a plain ``snakemake``, which takes no lock of ours, is seen as well.
"""

import contextlib
import getpass
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from filelock import FileLock, Timeout

from evals.core.errors import UserError

# Options with which Snakemake runs no job and holds no lock.
_ANSWERS = (
    "dryrun", "lint", "unlock", "summary", "detailed_summary", "dag", "rulegraph", "filegraph", "d3dag",
    "list_rules", "list_target_rules", "report",
)  # fmt: skip

_NOTICE_SECONDS = 0.5  # for Snakemake to say that it ends, so that its jobs' ends are no failures
_SNAKEMAKES_JOBS_PER_SECOND = 100


def main(arguments: list[str]) -> None:
    """Run snakemake with ``arguments``; exits with Snakemake's status, or with 1 if it may not run."""
    _give_name_and_cache()
    from snakemake.cli import get_argument_parser
    from snakemake.cli import main as snakemake

    from rlvr.study.study_file import check_config_files  # here: an interrupt is one line before the long imports too

    options = get_argument_parser().parse_args(arguments)
    directory = Path(options.directory or ".").resolve()
    with contextlib.ExitStack() as held:
        try:
            check_config_files(options.configfile or ())
            if not any(getattr(options, name) for name in _ANSWERS):
                held.enter_context(only_study(directory))
                _remove_stale_lock(directory, arguments)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        snakemake(arguments)


def _give_name_and_cache() -> None:
    """Give Snakemake what it fails without, as in containers: a user's name, and a place for its cache."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = str(os.getuid())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        os.environ["XDG_CACHE_HOME"] = os.path.abspath(".cache")


def _end_at_once(number: int, _frame: FrameType | None) -> None:
    """Leave a study that is only planned; Snakemake would show where it was."""
    os.write(2, b"interrupted; the same command goes on from here\n")
    os._exit(128 + number)


def end_jobs_on_termination(workflow: Any) -> None:
    """Pass a SIGTERM of this process, which runs Snakemake, on to its jobs: trainings then save their state and end.

    Snakemake itself starts no further job, but waits for those that run, however long. From here on an interrupt does
    the same, so that it never meets Snakemake's own code half-way; jobs of other machines, such as Slurm's, Snakemake
    ends by an interrupt alone.
    """
    noted = signal.getsignal(signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        if callable(noted):
            noted(number, frame)
        time.sleep(_NOTICE_SECONDS)
        _end_jobs()

    def begin(number: int, frame: FrameType | None) -> None:
        if not workflow.local_exec:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one would meet it while it ends its jobs
            raise KeyboardInterrupt
        # In a thread: Snakemake's handler waits for the scheduler's lock, which the interrupted code may hold.
        threading.Thread(target=end, args=(number, frame), daemon=True).start()

    signal.signal(signal.SIGTERM, begin)
    # By name: the launcher's own is that of another module, __main__.
    if getattr(signal.getsignal(signal.SIGINT), "__name__", "") == _end_at_once.__name__:
        signal.signal(signal.SIGINT, begin)


def lift_job_rate(workflow: Any) -> None:
    """Take away Snakemake's own limit of 100 jobs a second; another one, asked for by an option, stays.

    Snakemake 9.27 renews the limit by a timer whenever it looks at the jobs that are ready, and looks at them whenever
    a timer ends or a job does. So timers multiply: after some hundred jobs it looks at files all the time.
    """
    limiter = workflow.scheduler.job_rate_limiter
    if limiter is not None and limiter.max_jobs == _SNAKEMAKES_JOBS_PER_SECOND:
        workflow.scheduler.job_rate_limiter = None


def measure_inputs_once(workflow: Any) -> None:
    """Let Snakemake look at the inputs of a job that is ready once, and not whenever another job has ended.

    They are made and do not change, and hundreds of jobs that are ready have thousands of them.
    """
    scheduler = workflow.scheduler
    measure = scheduler.update_input_sizes

    async def measure_new(jobs: Collection[Any]) -> None:
        def unknown() -> list[Any]:
            return [job for job in jobs if any(path not in scheduler._input_sizes for path in job.input)]

        if new := unknown():
            await measure(new)
            if unknown():  # of very many sizes it keeps those alone that it was asked for last
                await measure(jobs)

    scheduler.update_input_sizes = measure_new


def _end_jobs() -> None:
    """End each job once, until Snakemake itself has ended: it may be about to start some that it chose before."""
    told = set[psutil.Process]()
    while True:
        for job in set(psutil.Process().children()) - told:
            told.add(job)
            with contextlib.suppress(psutil.Error):
                job.terminate()
        time.sleep(_NOTICE_SECONDS)


@contextlib.contextmanager
def only_study(directory: Path) -> Iterator[None]:
    """Hold ``directory`` for one study; another that runs there is a :class:`UserError`."""
    lock_file = directory / ".snakemake" / "study.lock"
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_file, timeout=0)
        lock.acquire()
    except Timeout:
        raise UserError(_busy(directory, find_snakemake(directory))) from None
    except OSError as error:
        raise UserError(f"{lock_file}: cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def clean_state(directory: Path) -> tuple[int, int]:
    """Delete every ``results/*/*/state`` under ``directory``, where no study may run; returns their number and bytes.

    State is undeclared, so that Snakemake never deletes it; this is the way to delete it. Finished results stay. A run
    that was not finished starts again from its first step.
    """
    with only_study(directory):
        _require_no_snakemake(directory)
        states = [path for stage in ("base", "runs") for path in (directory / "results" / stage).glob("*/state")]
        size = sum(path.stat().st_size for state in states for path in state.rglob("*") if path.is_file())
        for state in states:
            shutil.rmtree(state)
    return len(states), size


def find_snakemake(directory: Path) -> psutil.Process | None:
    """Find a Snakemake process other than this one that works in ``directory`` and executes jobs.

    A process of another user may hide its directory; it counts, for a lock is better kept once too often.
    """
    for process in psutil.process_iter(["cmdline"]):
        if process.pid == os.getpid() or not _executes_jobs(process.info["cmdline"] or []):
            continue
        try:
            if os.path.realpath(process.cwd()) == os.path.realpath(directory):
                return process
        except psutil.AccessDenied:
            return process
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return None


def _remove_stale_lock(directory: Path, arguments: list[str]) -> None:
    """Let Snakemake remove the lock files of a study that is dead; one that is alive is a :class:`UserError`."""
    if not any((directory / ".snakemake" / "locks").glob("*.lock")):
        return
    _require_no_snakemake(directory)
    print("an earlier study was killed; continuing it", file=sys.stderr)
    unlock = [sys.executable, "-m", "snakemake", "--unlock", *arguments]
    answer = subprocess.run(unlock, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if answer.returncode != 0:
        raise UserError(f"{directory}: snakemake --unlock failed: {' '.join(answer.stdout.split())}")


def _require_no_snakemake(directory: Path) -> None:
    if (process := find_snakemake(directory)) is not None:
        raise UserError(_busy(directory, process))


def _busy(directory: Path, process: psutil.Process | None) -> str:
    """Say that another study works in ``directory``, and since when."""
    text = f"another study is running in {directory}"
    with contextlib.suppress(psutil.NoSuchProcess):
        if process is not None:
            started = time.strftime("%H:%M", time.localtime(process.create_time()))
            return f"{text} (process {process.pid}, started {started})"
    return text


def _executes_jobs(command: list[str]) -> bool:
    """Tell a command line of Snakemake or of this launcher that is no dry run."""
    words = [Path(command[0]).name, *command[1:]] if command else []
    scripts = {Path(word).name for word in words[:2]}
    modules = {word for before, word in itertools.pairwise(words) if before == "-m"}
    is_snakemake = "snakemake" in scripts or bool(modules & {"snakemake", "rlvr.study.launch"})
    return is_snakemake and not {"-n", "--dry-run", "--dryrun"} & set(words)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background of a shell
        signal.signal(signal.SIGINT, _end_at_once)
    rest = sys.argv[1:]
    main(rest[1:] if rest[:1] == ["--"] else rest)
