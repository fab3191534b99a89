"""The progress display of a log file or a pipe: whole lines, no control characters."""

import threading
import time
from collections.abc import Iterable
from typing import TextIO

from snakemake_logger_plugin_rlvr import wording
from snakemake_logger_plugin_rlvr.study import RunningJob, Study


class PlainDisplay:
    """Prints a line when a job starts and ends, and one line now and then about the jobs that count their steps."""

    def __init__(self, stream: TextIO, study: Study, seconds_between_reports: float = 20.0) -> None:
        self._stream = stream
        self._study = study
        self._seconds_between_reports = seconds_between_reports
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reporter: threading.Thread | None = None

    def planned(self) -> None:
        self.lines([wording.plan(self._study)])
        if self._reporter is None:
            self._reporter = threading.Thread(target=self._report_periodically, name="progress", daemon=True)
            self._reporter.start()

    def started(self, job: RunningJob) -> None:
        if job.outputs:  # one without outputs only names what others make
            self.lines([f"started: {job.name}"])

    def finished(self, job: RunningJob, now: float) -> None:
        if job.outputs:
            study = self._study.snapshot()
            left = wording.time_left(study.outlook(now, study.progress_of_running()))
            took = wording.duration(now - job.started)
            finished = f"{study.jobs_finished} of {study.jobs_total}{', ' if left else ''}{left}"
            self.lines([f"finished: {job.name} after {took} ({finished})"])

    def message(self, text: str, is_error: bool) -> None:
        with self._lock:
            print(text, file=self._stream, flush=True)

    def lines(self, lines: Iterable[str], is_failure: bool = False) -> None:
        """Print lines, the first of them with the time of day."""
        stamp = time.strftime("%H:%M:%S  ")
        with self._lock:
            for number, line in enumerate(lines):
                self._stream.write(f"{stamp if number == 0 else ' ' * len(stamp)}{line}\n")
            self._stream.flush()

    def close(self) -> None:
        self._closed.set()
        if self._reporter is not None:
            self._reporter.join()

    def report(self) -> None:
        """Print one line about the running jobs that count their steps, if there are any."""
        accounts = ((job, job.read_progress()) for job in self._study.snapshot().running.values())
        running = [f"{job.name} {wording.steps(progress)}" for job, progress in accounts if progress is not None]
        if running:
            self.lines([f"running: {'; '.join(running)}"])

    def _report_periodically(self) -> None:
        while not self._closed.wait(self._seconds_between_reports):
            self.report()
