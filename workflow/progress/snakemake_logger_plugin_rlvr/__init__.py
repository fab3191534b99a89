"""Snakemake's output for a person who watches a study: ``snakemake --logger rlvr``, which the default profile sets.

A terminal has a live display; a file or a pipe gets a line for each job that has ended, and one a minute about those
that run. A dry run counts jobs, and lists them with ``--printshellcmds``. All else that Snakemake says is passed on.
"""

import contextlib
import logging
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from rich import console, live, progress_bar, table
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from evals.core.errors import printable
from evals.core.progress import read_steps
from rlvr.study.study_file import fault_of_command

_UNKNOWN_SECONDS, _SECONDS_BETWEEN_LINES = 3.0, 60.0
# What Snakemake says in every run; the display says it better, or it is of no use here.
_ROUTINE = re.compile(
    "Assuming|host: |Building D|Using sh|Select|Elapsed|Conda env|Singul|Updating ch|DAG of|Complete l|None$|$"
)
_INTERRUPTED = re.compile("Terminating processes on user request|Will exit after finishing currently running jobs")
_COMMAND_FAILED = re.compile(r"RuleException:\nCalledProcessError.*(exit status \d+|died with .*?)\.?$", re.DOTALL)
_KILLED = ", killed, most often because memory ran out (fewer --cores or a smaller batch need less)"
# Of jobs of Slurm: messages of its executor, its reasons for jobs that wait, and what its words for ends mean.
_SUBMITTED = re.compile(r"Job (\d+) has been submitted with SLURM jobid (\d+)")
_REFUSED = re.compile(r"sbatch failed\. The error message was '(.*?)'\.\n", re.DOTALL)
_STATUS, _MEMORY_RAN_OUT = re.compile(r"SLURM status is: '(\w+)"), re.compile("oom.kill|memory limit", re.IGNORECASE)
# Reasons that end by themselves, with other jobs, with time or with a mended node; any other one waits for a person.
_PASSES = re.compile(
    "None|Priority|Resources|BeginTime|Dependency$|Licenses|Reservation$|Cleaning|Prolog|BurstBuffer|JobArrayTaskLimit"
    "|Nodes required|ReqNodeNotAvail"
    "|(QOS|Assoc)?(Grp(?!.*Minutes|Wall)|.*RunMinutes|Max(?!.*Per(Job|Node)|MemPerLimit))"
)
_ASKED_FOR = {"Time|Wall": "runtime=MINUTES", "Mem": "mem_mb=MEGABYTES", "C[Pp][Uu]": "cpus_per_task=N", "": "KEY=N"}
_ENDS = {
    "CANCELLED": "by somebody's scancel or by the cluster",
    "TIMEOUT": "its time ran out (more of it: --set-resources {rule}:runtime=MINUTES)",
    "OUT_OF_MEMORY": "its memory ran out (more of it: --set-resources {rule}:mem_mb=MEGABYTES)",
    "NODE_FAIL": "its node failed",
}
_NO_FAULT = (_KILLED, ", died", ", CANCELLED", ", NODE_FAIL")
_RESULTS = ("results/report.html", "results/tables/main.md", "results/tables/phenomena.md", "results/figures")


class Job(NamedTuple):
    """A job that has started, at a second of the epoch."""

    rule: str
    name: str
    threads: int
    started: float
    outputs: tuple[str, ...]


class Study:
    """The jobs of a Snakemake run, by rule: ``planned`` up to the next ``look``, ``ended``, and what these took.

    One thread enters events; another one reads, and copies before it counts.
    """

    def __init__(self, cores: int = 1) -> None:
        self.cores, self.planned, self.ended, self.look = cores, Counter[str](), Counter[str](), dict[str, Any]()
        self.nodes = 0  # of a cluster: how many jobs it is given at a time
        self.running, self.failed = dict[int, Job](), dict[int, tuple[Job, str]]()
        self.seconds = dict[str, float]()

    def outlook(self, now: float) -> list[str]:
        """Jobs and, once most are of measured rules, the time left of what is planned; what later looks may add."""
        jobs, failed = list(self.running.values()), [job for job, _ in list(self.failed.values())]
        planned, ended = Counter(self.planned), Counter(self.ended)
        left = {job: steps.seconds_left for job in jobs if (steps := read_steps(job.outputs, job.started))}
        known = {job.rule: (now - job.started + rest) * job.threads for job, rest in left.items()}
        known |= {rule: self.seconds[rule] / count for rule, count in ended.items()}
        for job in jobs:  # one that takes longer than usual is taken to need a tenth of its time more
            took, usual = now - job.started, known.get(job.rule, _UNKNOWN_SECONDS) / job.threads
            left.setdefault(job, max(usual - took, took / 10))
        waiting = planned - ended - Counter(job.rule for job in (*jobs, *failed))
        ahead = sum(count * known.get(rule, _UNKNOWN_SECONDS) for rule, count in waiting.items())
        ahead += sum(rest * job.threads for job, rest in left.items())
        unknown = sum(count for rule, count in (planned - ended).items() if rule not in known) / max(planned.total(), 1)
        seconds = duration(max(ahead / self.cores, *left.values(), 0.0))
        words = f"{ended.total()} of {planned.total()} jobs{f', {len(failed)} failed' * bool(failed)}"
        words += f", {'about' if unknown <= 0.1 else 'roughly'} {seconds} left" if unknown <= 0.5 else ""
        if not self.look.get("seeds"):
            return [words]
        words += f" to the look after {self.look['seeds']} seeds"
        more = Counter(self.look["possible"]) - Counter(self.look["planned"])
        seconds = duration(sum(count * known.get(rule, 0.0) for rule, count in more.items()) / self.cores)
        time_of_all = f", {seconds}," if "train" in known else ""
        return [words, *[f"then up to {more['train']} training runs{time_of_all} if nothing is certain"] * bool(more)]


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 20 s``, ``2 h 5 min``: no more digits than a person wants."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


class LogHandler(LogHandlerBase):
    """Feeds a :class:`Study` with Snakemake's events and shows it."""

    writes_to_stream = True  # in Snakemake's place, whose filter and format it keeps
    writes_to_file = has_filter = has_formatter = needs_rulegraph = False

    def __post_init__(self) -> None:
        """Choose between Snakemake's own output and a display."""
        asked, stream = self.common_settings, sys.stdout if self.common_settings.stdout else sys.stderr
        is_live = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._console = console.Console(file=stream, force_terminal=is_live, no_color=asked.nocolor, highlight=False)
        self._study, self._began, self._is_closed = Study(), time.time(), Event()
        self._live = live.Live(console=self._console, get_renderable=self._table, refresh_per_second=2, transient=True)
        self._exits, self._is_interrupted = dict[str, str](), False
        self._of_slurm, self._waiting, self._told = dict[int, str](), dict[str, str](), set[str]()
        self._typed_in = os.path.realpath(os.environ.get("PWD", os.curdir))
        self._is_detailed = asked.verbose or asked.debug_dag or asked.quiet or asked.show_failed_logs

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if re.search("^Config file |in load_configfile", str(record.msg), re.MULTILINE):
                record.msg = fault_of_command(sys.argv[1:]) or record.msg  # which names the line
            is_job = getattr(record, "event", None) == LogEvent.JOB_INFO
            if not (self._is_detailed or self.common_settings.dryrun):
                self._enter(record, record.__dict__, record.created)
            elif self._is_detailed or self.common_settings.printshellcmds or not is_job:
                self._say("\n" * is_job + str(self.format(record) or ""))
        except Exception:  # it would end the thread that delivers all further messages, errors among them
            self.handleError(record)

    def close(self) -> None:
        """Remove the display and say how the study ended; Snakemake closes a handler twice."""
        if self._study.planned and not self._is_closed.is_set():
            self._is_closed.set()
            self._live.stop()
            failures = [f"  failed: {job.name}{why}" for job, why in self._study.failed.values()]
            ended, total = self._study.ended.total(), self._study.planned.total()
            words = f"{ended} of {total} jobs finished in {duration(time.time() - self._began)}"
            more = [f"  {os.path.relpath(path, self._typed_in)}" for path in _RESULTS if Path(path).exists()]
            faults = [why for _, why in self._study.failed.values() if not why.startswith(_NO_FAULT)]
            first = "mend what failed, which a repetition alone does not; then " if faults else ""
            more = more if ended == total else [f"{first}the same command goes on from here; what has finished is kept"]
            self._say("\n".join([words, *failures, *more]))
        super().close()

    def _say(self, text: str, style: str = "") -> None:
        stamp = "" if self._console.is_terminal or self.common_settings.dryrun else time.strftime("%H:%M:%S  ")
        text = "\n".join(map(printable, text.expandtabs().split("\n")))
        self._console.print(f"{stamp}{text}", style=style, markup=False, soft_wrap=True)

    def _enter(self, record: logging.LogRecord, values: dict[str, Any], now: float) -> None:
        """Enter one event into the study, and say it where it is worth a line."""
        study, event = self._study, values.get("event")
        if "look" in values:
            before, study.look = study.look or values["look"], values["look"]
            study.planned += Counter(study.look["planned"]) - Counter(before["planned"])
        if event == LogEvent.RUN_INFO:
            study.planned = Counter({rule: count for rule, count in values["stats"].items() if rule != "total"})
            rules = ", ".join(f"{rule} {count}" for rule, count in study.planned.most_common(6))
            jobs, cores = study.planned.total(), study.cores
            place = f", {study.nodes} at a time" if study.nodes else f" on {cores} core{'s' * (cores != 1)}"
            self._say(f"{jobs} job{'s' * (jobs != 1)}{place}, among them {rules}")
            if self._console.is_terminal:
                self._live.start()
            Thread(target=self._report, daemon=True).start()
        elif event == LogEvent.RESOURCES_INFO:
            study.nodes = values.get("nodes") or study.nodes
            study.cores = study.nodes or values.get("cores") or study.cores
        elif event == LogEvent.PROGRESS:
            study.planned[""] += values["total"] - study.planned.total()  # what a checkpoint added
        elif event == LogEvent.JOB_INFO:
            rule, names = values["rule_name"], [str(value) for value in values["wildcards"].values() if value]
            threads = 1 if study.nodes else values["threads"]
            begun = Job(rule, " ".join([rule, *names]), threads, now, tuple(values["output"]))
            study.running[values["jobid"]] = begun
            study.failed.pop(values["jobid"], None)  # it is tried again
            if study.ended[rule] + sum(job.rule == rule for job in study.running.values()) > study.planned[rule]:
                study.planned.update({rule: 1, "": -min(study.planned[""], 1)})  # one that a checkpoint added
        elif event == LogEvent.JOB_FINISHED and (job := study.running.pop(values["job_id"], None)):
            study.seconds[job.rule] = study.seconds.get(job.rule, 0.0) + (now - job.started) * job.threads
            study.ended[job.rule] += 1
            if job.outputs and not self._console.is_terminal:
                self._say(f"finished: {job.name} after {duration(now - job.started)} ({study.outlook(now)[0]})")
        elif event == LogEvent.JOB_ERROR and (job := study.running.pop(values["jobid"])) and not self._is_interrupted:
            study.failed[values["jobid"]] = job, (why := self._why(values, job.started))
            self._say(f"failed: {job.name} after {duration(now - job.started)}{why}", "bold red")
        elif event not in (LogEvent.JOB_STARTED, LogEvent.WORKFLOW_STARTED, LogEvent.JOB_FINISHED, LogEvent.JOB_ERROR):
            text = str(self.format(record))
            self._is_interrupted |= _INTERRUPTED.match(text) is not None
            if submitted := _SUBMITTED.match(text):
                self._of_slurm[int(submitted[1])] = submitted[2]
            elif failed := _COMMAND_FAILED.match(text):
                self._exits[text] = failed[1]  # JOB_ERROR follows, which names the job
            elif event is not None or record.levelno > logging.INFO or not _ROUTINE.match(text):
                self._say(text, "red" if record.levelno >= logging.ERROR else "")

    def _why(self, values: dict[str, Any], started: float) -> str:
        """Say how a job's command ended, with the last line of its log, if that is no earlier attempt's, or another."""
        command, of_slurm = (values["shellcmd"] or "").strip(), values.get("rule_msg") or ""
        if refused := _REFUSED.search(of_slurm):
            return f", not submitted: {' '.join(refused[1].split())}"
        end = ["", *(f", {end}" for text, end in self._exits.items() if command in text)][-1]
        end = _KILLED if "SIGKILL" in end or end.endswith(" 137") else end
        logs = dict[str, str]()
        for log in sorted(values["log"], key=lambda log: os.path.exists(log) and os.path.getmtime(log) < started):
            with contextlib.suppress(OSError):
                logs[log] = Path(log).read_text(errors="replace")
        if status := _STATUS.search(of_slurm):  # not every cluster has one for memory
            ran_out = any("slurm_logs" in log and _MEMORY_RAN_OUT.search(text) for log, text in logs.items())
            name = "OUT_OF_MEMORY" if ran_out else status[1]
            end = f", {name}: {_ENDS[name].format(rule=values['rule_name'])}" if name in _ENDS else end
        for log, text in logs.items():
            last = ["empty", *filter(str.strip, text.splitlines())][-1].strip()
            return f"{end}: {''.join(filter(str.isprintable, last))} (log: {os.path.relpath(log, self._typed_in)})"
        return f"{end}: {' '.join(command.split())}"

    def _rows(self, now: float) -> list[tuple[float | None, str]]:
        """How far the study and every running job are: the part that is done, if it is known, and words."""
        words, *later = self._study.outlook(now)
        part = self._study.ended.total() / max(self._study.planned.total(), 1)
        rows = [(part, f"{words}, {duration(now - self._began)} so far"), *((None, line) for line in later)]
        for number, job in list(self._study.running.items()):
            steps, took = read_steps(job.outputs, job.started), duration(now - job.started)
            words = f"{steps.words}, {took}, {duration(steps.seconds_left)} left" if steps else took
            if reason := self._waiting.get(self._of_slurm.get(number, "")):
                words = f"waits in the queue ({reason}), {took}"
            rows.append((steps.part if steps else None, f"{job.name}: {words}"))
        return rows

    def _table(self) -> table.Table:
        grid = table.Table.grid(padding=(0, 2))
        for part, words in self._rows(time.time())[: self._console.height - 1]:
            grid.add_row("" if part is None else progress_bar.ProgressBar(1.0, part, width=20), words)
        return grid

    def _report(self) -> None:
        while not self._is_closed.wait(_SECONDS_BETWEEN_LINES):
            self._ask_slurm()
            if not self._console.is_terminal:
                self._say("; ".join(words for _, words in self._rows(time.time())))

    def _ask_slurm(self) -> None:
        """Ask which jobs wait, and why; a job that never starts by Slurm's reason is told of once."""
        running, of_slurm = self._study.running.copy(), self._of_slurm
        jobs = {of_slurm[number]: job for number, job in running.items() if number in of_slurm}
        words = ["squeue", "--noheader", "--states=PENDING", "--format=%i %r", f"--jobs={','.join(jobs)}"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout if jobs else ""
            self._waiting = dict(line.split(maxsplit=1) for line in said.splitlines() if len(line.split()) > 1)
        for number, reason in self._waiting.items():
            if not _PASSES.match(reason) and number in jobs and number not in self._told:
                self._told.add(number)
                job, other = jobs[number], next(words for of, words in _ASKED_FOR.items() if re.search(of, reason))
                cure = f"ask for another amount (--set-resources {job.rule}:{other}), slurm_partition or slurm_account"
                cure = f"let it go on: scontrol release {number}" if re.search("H[eo]ld|held", reason) else cure
                told = f"{job.name} does not start by itself, Slurm says: {reason}; {cure} (scontrol show job {number})"
                self._say(told, "red")
