"""A model of a running study: finished jobs, running jobs, time left. It has no side effects."""

from __future__ import annotations

import json
import statistics
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

_UNKNOWN = 3.0
"""Seconds of a job whose rule was measured nowhere: nearly all such jobs are short."""
_COSTS_KEPT = ("train", "sample", "grade")


def earlier_seconds(costs: Path) -> dict[str, float]:
    """Mean seconds of a job by rule, as Snakemake measured them in earlier runs of the study, in ``costs``."""
    seconds_by_rule = {}
    for rule in _COSTS_KEPT:
        seconds = [measured for path in costs.glob(f"{rule}/**/*.tsv") if (measured := _measured(path)) is not None]
        if seconds:
            seconds_by_rule[rule] = statistics.fmean(seconds)
    return seconds_by_rule


def _measured(path: Path) -> float | None:
    """The seconds in a benchmark file of Snakemake; None if it makes no sense."""
    try:
        header, row = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[:2])
        return _number(float(row[header.index("s")]))
    except (OSError, ValueError, IndexError):
        return None


@dataclass(frozen=True)
class StepProgress:
    """The progress of one job, from the ``progress.json`` beside its outputs: steps done and planned, at least 1.

    ``seconds_per_step`` is None while the job does not know, ``reward_mean`` (of the last step) without rewards;
    ``unit`` is what a step makes; ``parts_left`` is how often as much as all steps comes after them.
    """

    step: int
    steps: int
    seconds_per_step: float | None = None
    reward_mean: float | None = None
    unit: str = "step"
    parts_left: int = 0


@dataclass(frozen=True)
class RunningJob:
    """One job between its start and its end; times in seconds of the epoch."""

    job_id: int
    rule: str
    wildcards: tuple[str, ...]
    threads: int
    started: float
    outputs: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The rule and its wildcards' values: ``train tiny-dapo-s1``."""
        return " ".join((self.rule, *self.wildcards))

    def read_progress(self) -> StepProgress | None:
        """The job's own account of its progress, or None if it keeps none or none of this attempt."""
        directories = dict.fromkeys(Path(output).parent for output in self.outputs)
        accounts = (read_step_progress(directory / "progress.json", since=self.started) for directory in directories)
        return next((account for account in accounts if account is not None), None)

    def seconds_left(self, now: float, progress: StepProgress | None) -> float | None:
        """Seconds until this job ends, by its own account; None if it gives none."""
        if progress is None or progress.step < 1:
            return None
        measured = progress.seconds_per_step
        pace = (now - self.started) / progress.step if measured is None else measured
        return pace * (progress.steps * (1 + progress.parts_left) - progress.step)


@dataclass(frozen=True)
class FailedJob:
    """A job that ended badly, where it says why, and its command and exit as far as they are known."""

    rule: str
    name: str
    seconds: float
    logs: tuple[str, ...]
    command: str = ""
    exit: str = ""


@dataclass
class Study:
    """The jobs of one Snakemake run, counted by rule.

    Time left weighs a job by the measured seconds of its rule's finished jobs, times its threads: 24 trainings of a
    minute and 300 gradings of a second are not 324 equal parts. A rule that has not been measured in this run has its
    seconds in an ``earlier`` one; of another one nothing is known: its jobs count as short, and as guessed by number.

    One thread enters events, another draws: events are entered under a lock, and a display reads a :meth:`snapshot`.
    """

    cores: int = 1
    planned: dict[str, int] = field(default_factory=dict)
    jobs_known: int = 0
    running: dict[int, RunningJob] = field(default_factory=dict)
    finished: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[int, FailedJob] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    earlier: Mapping[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def snapshot(self) -> Study:
        """A copy that no event changes."""
        with self._lock:
            finished = {rule: list(seconds) for rule, seconds in self.finished.items()}
            running, failed, threads = dict(self.running), dict(self.failed), dict(self.threads)
            return replace(self, running=running, finished=finished, failed=failed, threads=threads)

    def start(self, job: RunningJob) -> None:
        """A job starts, perhaps again after a failed attempt."""
        with self._lock:
            self.failed.pop(job.job_id, None)
            self.running[job.job_id] = job
            self.threads[job.rule] = job.threads

    def finish(self, job_id: int, now: float) -> RunningJob | None:
        """A job ended well; returns it, or None if it never started here."""
        with self._lock:
            job = self.running.pop(job_id, None)
            if job is not None:
                self.finished.setdefault(job.rule, []).append(max(now - job.started, 0.0))
            return job

    def fail(self, job_id: int, failure: FailedJob | None) -> None:
        """A job ended badly; without a failure, because the user ended the study."""
        with self._lock:
            self.running.pop(job_id, None)
            if failure is not None:
                self.failed[job_id] = failure

    @property
    def jobs_total(self) -> int:
        """Jobs of this run; a checkpoint adds some to those of the plan."""
        return max(sum(self.planned.values()), self.jobs_known)

    @property
    def jobs_finished(self) -> int:
        """Jobs of this run that ended well."""
        return sum(len(seconds) for seconds in self.finished.values())

    def progress_of_running(self) -> dict[int, StepProgress | None]:
        """Every running job's own account of its progress, by job id."""
        return {job_id: job.read_progress() for job_id, job in self.running.items()}

    def outlook(self, now: float, progress: Mapping[int, StepProgress | None]) -> Outlook:
        """Estimate the work done and the time left.

        The time left is the longer of two: all remaining core-seconds spread over the cores, and the longest of the
        running jobs.
        """
        seconds_left = {job_id: job.seconds_left(now, progress.get(job_id)) for job_id, job in self.running.items()}
        known = {**self.earlier, **self._measured_seconds(now, seconds_left)}
        done = sum(sum(seconds) * self.threads.get(rule, 1) for rule, seconds in self.finished.items())
        left = longest = guessed = 0.0
        for job_id, job in self.running.items():
            elapsed = max(now - job.started, 0.0)
            told = seconds_left[job_id]
            remaining = max(known.get(job.rule, _UNKNOWN) - elapsed, 0.0) if told is None else told
            done += elapsed * job.threads
            left += remaining * job.threads
            guessed += 0.0 if job.rule in known else remaining * job.threads
            longest = max(longest, remaining)
        for rule, jobs in self._waiting().items():
            seconds = max(jobs, 0) * known.get(rule, _UNKNOWN) * self.threads.get(rule, 1)
            left += seconds
            guessed += 0.0 if rule in known else seconds
        whole, unknown = done + left, sum(jobs for rule, jobs in self._unfinished().items() if rule not in known)
        return Outlook(
            fraction=done / whole if whole > 0.0 else 0.0,
            seconds_left=max(left / max(self.cores, 1), longest),
            guessed=max(guessed / whole if whole > 0.0 else 0.0, unknown / max(self.jobs_total, 1)),
        )

    def _measured_seconds(self, now: float, seconds_left: Mapping[int, float | None]) -> dict[str, float]:
        """Seconds of a job by rule: of finished jobs, otherwise of running ones by their own account."""
        expected: dict[str, list[float]] = {}
        for job_id, job in self.running.items():
            if (told := seconds_left[job_id]) is not None:
                expected.setdefault(job.rule, []).append(now - job.started + told)
        return {rule: statistics.fmean(seconds) for rule, seconds in {**expected, **self.finished}.items()}

    def _unfinished(self) -> dict[str, int]:
        """Jobs that have not ended, by rule."""
        return {rule: max(count - len(self.finished.get(rule, ())), 0) for rule, count in self.planned.items()}

    def _waiting(self) -> dict[str, int]:
        """Jobs that have not started, by rule; negative where there are more than were planned."""
        begun = Counter({rule: len(seconds) for rule, seconds in self.finished.items()})
        begun.update(job.rule for job in self.running.values())
        begun.update(job.rule for job in self.failed.values())
        return {rule: count - begun[rule] for rule, count in self.planned.items()}


@dataclass(frozen=True)
class Outlook:
    """The share of the work that is done, the time left, and the share of the work that was measured nowhere here."""

    fraction: float
    seconds_left: float
    guessed: float = 0.0


def read_step_progress(path: Path, since: float) -> StepProgress | None:
    """Read a ``progress.json``; None if there is none, it is older than ``since`` or it makes no sense.

    A display must not stop a study: the file may vanish or be half understood at any moment, and then has no news.
    """
    try:
        # File systems keep coarser times than the clock that stamped the start.
        if path.stat().st_mtime < since - 1.0:
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        step, steps = content["step"], content["steps"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if type(step) is not int or type(steps) is not int or not 0 <= step <= steps or steps < 1:
        return None
    measured = _number(content.get("seconds_per_step")), _number(content.get("reward_mean"))
    parts_left = int(_number(content.get("parts_left")) or 0)
    return StepProgress(step, steps, *measured, unit=str(content.get("unit", "step")), parts_left=parts_left)


def _number(value: object) -> float | None:
    """``value`` as a float if it is a finite, non-negative number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < float("inf"):
        return float(value)
    return None
