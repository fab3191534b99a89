"""The words of the progress display, the same on a terminal and in a log."""

import contextlib
import os
import re
import shlex
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from snakemake_logger_plugin_rlvr.study import FailedJob, Outlook, StepProgress, Study

_LITTLE_GUESSED = 0.1
_MOST_GUESSED = 0.5
_NONE = "<nothing exclusive>"
_RESULTS = {"report": "results/report.html", "table": "results/tables/main.md", "figures": "results/figures"}


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 20 s``, ``17 min``, ``2 h 5 min``: no more digits than a person wants."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def time_left(outlook: Outlook) -> str:
    """``about 9 min left``; ``roughly`` while part of the work has not been measured, empty while most has not."""
    if outlook.guessed > _MOST_GUESSED:
        return ""
    certainty = "roughly" if outlook.guessed > _LITTLE_GUESSED else "about"
    return f"{certainty} {duration(outlook.seconds_left)} left"


def steps(progress: StepProgress) -> str:
    """``step 23 of 60, reward 0.52``."""
    reward = "" if progress.reward_mean is None else f", reward {progress.reward_mean:.2f}"
    return f"{progress.unit} {progress.step} of {progress.steps}{reward}"


def plan(study: Study) -> str:
    """``316 jobs on 2 cores: train 24, sample 150``."""
    rules = ", ".join(f"{rule} {count}" for rule, count in study.planned.items())
    return f"{_count(study.jobs_total, 'job')} on {_count(study.cores, 'core')}: {rules}"


def changes(of_jobs: Mapping[tuple[str, str, str], int]) -> list[str]:
    """The settings that changed, a line for all jobs of a rule that they make again.

    Args:
        of_jobs: the rule, the settings before and now, as Snakemake writes them -> number of jobs.
    """
    lines = [
        f"  {rule} ({_count(jobs, 'job')}{_kept(before, now)}): {before} -> {now}".replace(_NONE, "the default")
        for (rule, before, now), jobs in of_jobs.items()
    ]
    return ["Settings that changed:", *lines] if lines else []


def _kept(before: str, now: str) -> str:
    """Say that trainings whose contrast alone changed give the same policies; nothing of other changes."""
    keys = re.findall(r"'([\w.]+): ", f"{before}, {now}")
    is_contrast = bool(keys) and all(key.startswith("resolved.contrast.") for key in keys)
    return ", the policies keep their bytes: of contrast alone" if is_contrast else ""


def fault_of_configuration(arguments: Sequence[str]) -> str:
    """What is wrong with Snakemake's configuration files, in a line; empty if they can be read."""
    from snakemake.cli import get_argument_parser

    from evals.core.errors import UserError
    from rlvr.study.study_file import check_config_files

    try:
        check_config_files(get_argument_parser().parse_known_args(list(arguments))[0].configfile or ())
    except UserError as error:
        return f"error: {error}"
    return ""


def failure(job: FailedJob, started_in: Path) -> list[str]:
    """Describe a failure: the job, its log and the log's last line; the command where there is no log."""
    lines = [f"failed: {job.name} after {duration(job.seconds)}{', ' if job.exit else ''}{job.exit}"]
    if not job.logs and job.command:
        lines.append(f"  command: {' '.join(job.command.split())}")
    for log in job.logs:
        lines.append(f"  log: {_from(started_in, log)}")
        with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as content:
            last = deque((line.strip() for line in content if line.strip()), maxlen=1)
            lines += [f"  {''.join(filter(str.isprintable, line))}" for line in last]
    return lines


def ending(study: Study, seconds: float, started_in: Path) -> list[str]:
    """The last lines of a study: where the results are, or what failed and how to continue."""
    finished, total = study.jobs_finished, study.jobs_total
    if total and finished >= total and not study.failed:
        return [f"all {_count(total, 'job')} finished in {duration(seconds)}", *results(started_in)]
    lines = [f"{finished} of {_count(total, 'job')} finished in {duration(seconds)}"]
    if study.failed:
        lines[0] += f", {len(study.failed)} failed:"
        for job in study.failed.values():
            logs = ", ".join(_from(started_in, log) for log in job.logs)
            lines.append(f"  {job.name}{f': see {logs}' if logs else ''}")
    lines.append("the same command goes on from here; what is finished is kept")
    return lines


def results(started_in: Path) -> list[str]:
    """The paths of existing results, relative to the directory where the command was typed."""
    lines = [f"  {label}: {_from(started_in, path)}" for label, path in _RESULTS.items() if Path(path).exists()]
    if Path("results/mlflow.db").exists():
        command = _from(started_in, os.fspath(Path(sys.executable).parent / "rlvr-bench"))
        elsewhere = shlex.join([command, "ui", "--results", _from(started_in, "results")])
        lines.append(f"  MLflow: {'make ui' if Path.cwd() == started_in else elsewhere}")
    return lines


def _from(started_in: Path, path: str) -> str:
    absolute = Path(path).resolve()
    return os.fspath(absolute.relative_to(started_in) if absolute.is_relative_to(started_in) else absolute)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
