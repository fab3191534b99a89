"""Snakemake's output for a person who watches a study: ``snakemake --logger rlvr``, which the default profile sets.

On a terminal a live display, elsewhere plain lines. Everything that Snakemake says by itself (errors, warnings,
messages of unknown kinds) is passed on in Snakemake's own format. A dry run shows how many jobs of each rule there are
and why, with ``--printshellcmds`` every job; ``--verbose``, ``--quiet`` and ``--debug-dag`` look as they do without it.
Snakemake finds it by its name, as a top-level package.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter, get_event, show_logs
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_rlvr import wording
from snakemake_logger_plugin_rlvr.plain import PlainDisplay
from snakemake_logger_plugin_rlvr.study import FailedJob, RunningJob, Study, earlier_seconds

if TYPE_CHECKING:
    from snakemake_logger_plugin_rlvr.live import LiveDisplay

    Display = PlainDisplay | LiveDisplay

# What Snakemake says about its own doings in every run; the display says it better or it is of no use here.
_ROUTINE = (
    "Assuming unrestricted shared filesystem usage",
    "host: ",
    "Building DAG of jobs",
    "Using shell: ",
    "Select jobs to execute",
    "Elapsed time: ",
    "Conda environments: ignored",
    "Singularity containers: ignored",
)
# Said when the user interrupts (Ctrl-C, SIGTERM); the jobs that end after it did not fail.
_INTERRUPTED = ("Terminating processes on user request", "Will exit after finishing currently running jobs")
# Of a configuration file that is no YAML Snakemake names no line, of a missing one lines of its own code.
_UNREADABLE = ("Config file ", "in load_configfile")
# A failed command is announced twice, first by this exception, which quotes the command whole.
_COMMAND_FAILED = "RuleException:\nCalledProcessError"
_CHANGED = re.compile(r"Params have changed.*: before: (.*?) now: (.*?) *$", re.DOTALL)
"""The reason of a job whose settings changed."""
_EXIT = re.compile(r"(exit status \d+|died with \S.*?)\.?$")
_SHOWN_BY_DISPLAY = {
    LogEvent.RUN_INFO,
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.PROGRESS,
    LogEvent.JOB_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.JOB_FINISHED,
    LogEvent.JOB_ERROR,
}


class LogHandler(LogHandlerBase):
    """Feeds a :class:`Study` with Snakemake's events and shows it."""

    writes_to_stream = True  # instead of Snakemake's output; its log file stays as it is
    writes_to_file = False
    has_filter = True  # every record is seen, for the display counts jobs even where nothing is printed
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Choose between Snakemake's own output and a display."""
        settings = self.common_settings
        self._stream = sys.stdout if settings.stdout else sys.stderr
        self._started_in = Path.cwd()
        self._began = time.time()
        self._study = Study()
        self._display: Display | None = None
        self._has_plan = False
        self._nothing_to_do = False
        self._interrupted = False
        self._exits: list[str] = []
        self._changes: Counter[tuple[str, str, str]] = Counter()
        self._as_usual = bool(settings.dryrun or settings.verbose or settings.debug_dag or settings.quiet)
        quiet: Collection[Quietness] | None = settings.quiet
        if settings.dryrun and not (quiet or settings.verbose or settings.debug_dag or settings.printshellcmds):
            quiet = {Quietness.RULES}  # thousands of lines, of which nobody reads more than the table of counts
        self._snakemake = ColorizingTextHandler(
            nocolor=settings.nocolor,
            stream=self._stream,
            formatter=DefaultFormatter(quiet, settings.show_failed_logs),
            filter=DefaultFilter(quiet, settings.debug_dag, settings.verbose, settings.dryrun, settings.printshellcmds),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        try:
            if isinstance(record.msg, str) and any(text in record.msg for text in _UNREADABLE):
                record.msg = wording.fault_of_configuration(sys.argv[1:]) or record.msg
            if self._as_usual:
                self._snakemake.handle(record)
                self._note_change(record)
            else:
                self._show(record)
        except Exception:
            # As every logging handler: an exception here would end the thread that delivers all further messages,
            # Snakemake's errors among them. handleError prints it with its traceback.
            self.handleError(record)

    def close(self) -> None:
        """Remove the display and say how the study ended."""
        if self._display is not None:
            self._display.close()
            for text in self._exits:
                self._display.message(text, is_error=True)
            if self._has_plan:
                seconds = time.time() - self._began
                self._display.lines(wording.ending(self._study, seconds, self._started_in))
            elif self._nothing_to_do:
                self._display.lines(wording.results(self._started_in))
            self._display = None
        for line in wording.changes(self._changes):
            print(line, file=self._stream)
        self._changes.clear()  # Snakemake closes a handler twice
        super().close()

    def _note_change(self, record: logging.LogRecord) -> None:
        """Remember which settings of a planned job changed."""
        if self.common_settings.dryrun and get_event(record) == LogEvent.JOB_INFO:
            changed = _CHANGED.search(str(record.__dict__.get("reason")))
            if changed is not None:
                self._changes[record.__dict__["rule_name"], changed[1], changed[2]] += 1

    def _show(self, record: logging.LogRecord) -> None:
        if self._display is None:
            self._display = self._open_display()
        event = get_event(record)
        if event in _SHOWN_BY_DISPLAY:
            self._account(event, record.__dict__, record.created, self._display)
        elif self._snakemake.filter(record):
            text = self._snakemake.format(record)
            self._nothing_to_do |= text == NOTHING_TO_BE_DONE_MSG
            self._interrupted |= text.startswith(_INTERRUPTED)
            is_routine = event is None and record.levelno <= logging.INFO and text.startswith(_ROUTINE)
            if event == LogEvent.ERROR and text.startswith(_COMMAND_FAILED):
                self._exits.append(text)
            elif text not in ("", "None") and not is_routine:
                self._display.message(text, is_error=record.levelno >= logging.ERROR)

    def _account(self, event: LogEvent, values: dict[str, Any], now: float, display: Display) -> None:
        """Enter one event into the study and the display."""
        study = self._study
        if event == LogEvent.RESOURCES_INFO and values.get("cores"):
            study.cores = values["cores"]
        elif event == LogEvent.RUN_INFO:
            study.earlier = earlier_seconds(Path("results/costs"))
            study.planned = {rule: count for rule, count in values["stats"].items() if rule != "total"}
            self._has_plan = True
            display.planned()
        elif event == LogEvent.PROGRESS:
            study.jobs_known = values["total"]
        elif event == LogEvent.JOB_INFO:
            wildcards = tuple(
                str(value) for value in values["wildcards"].values() if value
            )  # the main study's folder is ""
            job = RunningJob(
                values["jobid"],
                values["rule_name"],
                wildcards,
                values["threads"],
                now,
                outputs=tuple(values["output"]),
                logs=tuple(values["log"]),
            )
            study.start(job)
            display.started(job)
        elif event == LogEvent.JOB_FINISHED:
            finished = study.finish(values["job_id"], now)
            if finished is not None:
                display.finished(finished, now)
        elif event == LogEvent.JOB_ERROR and self._interrupted:
            self._exits.clear()
            study.fail(values["jobid"], None)
        elif event == LogEvent.JOB_ERROR:
            failure = self._failed_job(values, now)
            study.fail(values["jobid"], failure)
            display.lines(wording.failure(failure, self._started_in), is_failure=True)
            if self.common_settings.show_failed_logs:
                display.lines(show_logs(failure.logs))

    def _failed_job(self, values: dict[str, Any], now: float) -> FailedJob:
        """A JOB_ERROR event, joined with the exception that told its exit."""
        job = self._study.running.get(values["jobid"])
        command = (values["shellcmd"] or "").strip()
        told = next((text for text in self._exits if command and command in text), "")
        exit_status = _EXIT.search(told)
        if exit_status is not None:
            self._exits.remove(told)
        name, rule = job.name if job else values["rule_name"], values["rule_name"]
        seconds = max(now - job.started, 0.0) if job else 0.0
        return FailedJob(
            rule, name, seconds, tuple(values["log"]), command, exit_status.group(1) if exit_status else ""
        )

    def _open_display(self) -> Display:
        if not self._stream.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
            return PlainDisplay(self._stream, self._study)
        # Imported here: a dry run and every job's own snakemake process load this module, and need no terminal.
        from snakemake_logger_plugin_rlvr.live import LiveDisplay

        return LiveDisplay(self._stream, self._study, no_color=self.common_settings.nocolor)
