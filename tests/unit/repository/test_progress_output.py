"""What a person sees of snakemake under the default profile: in a log, on a terminal, and when things go wrong."""

import io
import logging
import os
import pty
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from snakemake.logging import DefaultFormatter
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_logger_plugin_rlvr import LogHandler

from tests.commands import ended

SNAKEMAKE = [sys.executable, "-m", "snakemake"]
WITHOUT_PLUGIN = ["--workflow-profile", "none", "--cores", "1", "--rerun-triggers", "mtime"]


def snakemake(workflow: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return ended([*SNAKEMAKE, *arguments], cwd=workflow, env=environment, timeout=600)


def test_a_log_says_what_failed_and_where_results_are(workflow: Path, environment: dict[str, str]) -> None:
    (workflow / "fail-a").touch()
    bad = snakemake(workflow, environment)
    shown = bad.stderr
    assert bad.returncode == 1
    assert re.search(
        r"^\d\d:\d\d:\d\d  4 jobs on \d+ cores?, among them train 2, report 1, all 1$", shown, re.MULTILINE
    )
    why = r"exit status 3: error: no luck with a \(log: logs/a.log\)\n"
    assert re.search(rf"failed: train a after \d+ s, {why}", shown)
    assert re.search(r"finished: train b after \d+ s \(1 of 4 jobs[^)]*\)", shown), "the other goes on"
    assert "At least one job did not complete successfully" in shown
    assert re.search(rf"  1 of 4 jobs finished in \d+ s\n  failed: train a, {why}mend what failed", shown)
    assert "results/report.html" not in shown
    assert "CalledProcessError" not in shown and "Building DAG" not in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", shown)

    (workflow / "fail-a").unlink()
    good = snakemake(workflow, environment).stderr
    assert re.search(r"3 of 3 jobs finished in \d+ s\n  results/report.html\n", good)
    assert "Nothing to be done" in snakemake(workflow, environment).stderr


def test_a_terminal_has_a_bar_and_gets_its_cursor_back(workflow: Path, environment: dict[str, str]) -> None:
    (workflow / "hold").touch()
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        SNAKEMAKE, cwd=workflow, env={**environment, "COLUMNS": "120"}, stdout=end, stderr=end, close_fds=True
    )
    os.close(end)
    seen = b""
    while b"step 3 of 6, reward 0.50" not in seen:
        seen += os.read(terminal, 65536)
    (workflow / "hold").unlink()
    while True:
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # the other end is closed: Linux says EIO
            break
    os.close(terminal)
    assert process.wait(timeout=600) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert "0 of 4 jobs" in shown and "train a" in shown
    assert re.search(r"4 of 4 jobs finished in \d+ s\r\n  results/report.html\r\n", shown)
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l") >= 0


JOB = {"jobid": 1, "rule_name": "train", "wildcards": {"run": "a"}, "threads": 1, "log": [], "shellcmd": "sleep 9"}
STARTED = {"event": LogEvent.JOB_INFO, "output": ["results/a"], **JOB}
KILLED = "killed, most often because memory ran out (fewer --cores or a smaller batch need less)"
FAILED = "RuleException:\nCalledProcessError in file x, line 1:\nCommand 'sleep 9' {}."


class Shown:
    """A handler without a terminal, and what it has shown so far."""

    def __init__(self) -> None:
        self._shown = 0
        names = ("printshellcmds", "nocolor", "quiet", "debug_dag", "verbose", "show_failed_logs", "stdout", "dryrun")
        self.handler = LogHandler(types.SimpleNamespace(**dict.fromkeys(names, False)), None)
        self.handler.setFormatter(DefaultFormatter())  # as Snakemake does
        self._stream = self.handler._console.file = io.StringIO()

    def __call__(self, message: str = "", **values: Any) -> str:
        """Send a record; returns what is shown of it, without the time of day."""
        record = logging.LogRecord("snakemake", logging.INFO, "", 0, message, None, None)
        record.__dict__.update(values)
        self.handler.emit(record)
        return self.new()

    def new(self) -> str:
        """What was shown since this was last asked, without the time of day."""
        before, self._shown = self._shown, len(self._stream.getvalue())
        return re.sub(r"^\d\d:\d\d:\d\d  ", "", self._stream.getvalue()[before:])


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    shown = Shown()
    yield shown
    shown.handler.close()


@pytest.mark.parametrize(
    "said",
    [
        "Terminating processes on user request, this might take some time.",
        "Will exit after finishing currently running jobs (scheduler).",
    ],
)
def test_jobs_that_the_user_interrupts_have_not_failed(said: str, show: Shown) -> None:
    show(event=LogEvent.RUN_INFO, stats={"train": 2, "total": 2})
    show(**STARTED)
    assert show(said) == f"{said}\n"
    assert show(FAILED.format("died with <Signals.SIGINT: 2>"), event=LogEvent.ERROR) == ""
    assert show(event=LogEvent.JOB_ERROR, **JOB) == ""
    show.handler.close()
    shown = show.new()
    assert "0 of 2 jobs finished" in shown and "goes on from here" in shown and "failed" not in shown


@pytest.mark.parametrize(
    ("end", "means", "mended"),
    [
        ("returned non-zero exit status 2", "exit status 2", True),
        ("died with <Signals.SIGKILL: 9>", KILLED, False),
        ("returned non-zero exit status 137", KILLED, False),
        ("died with <Signals.SIGHUP: 1>", "died with <Signals.SIGHUP: 1>", False),
    ],
)
def test_a_failure_is_one_line(end: str, means: str, mended: bool, show: Shown, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n\x1b[31merror: the disk is full\x1b[0m\n\n")
    show(event=LogEvent.RUN_INFO, stats={"train": 2, "total": 2})
    show(**STARTED)
    show(FAILED.format(end), event=LogEvent.ERROR)
    line = show(event=LogEvent.JOB_ERROR, **{**JOB, "log": ["train.log"]})
    assert re.sub(r"\d+ s", "N s", line) == (
        f"failed: train a after N s, {means}: [31merror: the disk is full[0m (log: train.log)\n"
    )
    show.handler.close()
    assert ("mend what failed" in show.new()) is mended  # a repetition of what a machine ended may go well
    show(**STARTED)  # it is tried again
    assert "(1 of 2 jobs, about 0 s left)" in show(event=LogEvent.JOB_FINISHED, job_id=1)


@pytest.mark.parametrize(
    ("status", "log", "means"),
    [
        ("CANCELLED", "", "CANCELLED: by somebody's scancel"),
        ("TIMEOUT", "", "TIMEOUT: its time ran out (more of it: --set-resources train:runtime=MINUTES)"),
        ("OUT_OF_MEMORY", "", "OUT_OF_MEMORY: its memory ran out (more of it: --set-resources train:mem_mb=MEGABYTES)"),
        ("CANCELLED", "slurmstepd: error: Exceeded job memory limit", "OUT_OF_MEMORY: its memory ran out"),
    ],
)
def test_slurms_word_is_told_with_a_remedy(status: str, log: str, means: str, show: Shown, tmp_path: Path) -> None:
    (tmp_path / "slurm_logs").mkdir()
    (tmp_path / "slurm_logs/7.log").write_text(log)
    (tmp_path / "train.log").write_text("error: no worker process comes up\n")
    show(event=LogEvent.RESOURCES_INFO, nodes=16)
    assert show(event=LogEvent.RUN_INFO, stats={"train": 1, "total": 1}) == "1 job, 16 at a time, among them train 1\n"
    show(**STARTED)
    message = f"SLURM-job '7' failed, SLURM status is: '{status}'. Detailed failure reason unavailable"
    failed = {**JOB, "log": ["train.log", "slurm_logs/7.log"], "rule_msg": message}
    line = show(event=LogEvent.JOB_ERROR, **failed)
    assert f"s, {means}" in line and line.endswith(": error: no worker process comes up (log: train.log)\n")


def test_the_log_of_an_earlier_attempt_is_not_told(show: Shown, tmp_path: Path) -> None:
    (tmp_path / "slurm_logs").mkdir()
    (tmp_path / "train.log").write_text("stopped after step 4\n")
    os.utime(tmp_path / "train.log", (0, 0))
    show(event=LogEvent.RUN_INFO, stats={"train": 1, "total": 1})
    show(**STARTED)
    (tmp_path / "slurm_logs/7.log").write_text("srun: error: node1: python: not found\n")
    line = show(event=LogEvent.JOB_ERROR, **{**JOB, "log": ["train.log", "slurm_logs/7.log"]})
    assert line.endswith(": srun: error: node1: python: not found (log: slurm_logs/7.log)\n")


def test_what_sbatch_refuses_is_told_in_its_words(show: Shown, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 4 of 4\n")  # of an earlier attempt
    show(event=LogEvent.RUN_INFO, stats={"train": 1, "total": 1})
    show(**STARTED)
    message = (
        "SLURM sbatch failed. The error message was 'sbatch: error: Memory\nsbatch: error: Node'.\n    sbatch call:\n"
    )
    line = show(event=LogEvent.JOB_ERROR, **{**JOB, "log": ["train.log"], "rule_msg": message})
    assert line.endswith(", not submitted: sbatch: error: Memory sbatch: error: Node\n")


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("PartitionConfig", "ask for another amount (--set-resources train:KEY=N)"),
        ("PartitionTimeLimit", "ask for another amount (--set-resources train:runtime=MINUTES)"),
        ("AssocMaxWallDurationPerJobLimit", "ask for another amount (--set-resources train:runtime=MINUTES)"),
        ("MaxMemPerLimit", "ask for another amount (--set-resources train:mem_mb=MEGABYTES)"),
        ("QOSMaxMemoryPerNode", "ask for another amount (--set-resources train:mem_mb=MEGABYTES)"),
        ("ReservationDeleted", "ask for another amount"),
        ("QOSMinCpuNotSatisfied", "ask for another amount (--set-resources train:cpus_per_task=N)"),
        ("AssocGrpCPUMinutesLimit", "ask for another amount"),
        ("DependencyNeverSatisfied", "ask for another amount"),
        ("JobHeldUser", "let it go on: scontrol release 35"),
        ("job requeued in held state", "let it go on: scontrol release 35"),
    ],
)
def test_a_job_that_waits_for_a_person_is_told_once(
    reason: str, cure: str, show: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\necho "$@" > asked; echo "34 Resources"; echo "35 {reason}"\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    show(event=LogEvent.RUN_INFO, stats={"train": 3, "total": 3})
    for number in (1, 2, 3):
        show(**{**STARTED, "jobid": number, "wildcards": {"run": "abc"[number - 1]}})
        assert show(f"Job {number} has been submitted with SLURM jobid {33 + number} (log: x).") == ""
    show.handler._ask_slurm()
    told = show.new()
    assert told.startswith(f"train b does not start by itself, Slurm says: {reason}; {cure}")
    assert told.count("\n") == 1
    rows = [words for _, words in show.handler._rows(time.time())]
    assert rows[1].startswith("train a: waits in the queue (Resources), ") and "waits" not in rows[3]
    assert "--jobs=34,35,36" in (tmp_path / "asked").read_text()
    show.handler._ask_slurm()
    assert show.new() == ""


def test_jobs_that_wait_for_others_are_not_told(show: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ["None", "Priority", "Resources", "BeginTime", "Dependency", "Reservation", "ReqNodeNotAvail, Unavail:n1"]
    reasons += ["Nodes required for job are DOWN, DRAINED or reserved", "AssocGrpCpuLimit", "QOSMaxCpuPerUserLimit"]
    reasons += ["QOSGrpCPURunMinutesLimit", "MaxGRESPerAccount", "AssocMaxJobsLimit", "JobArrayTaskLimit", "Licenses"]
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\n" + "".join(f'echo "{n} {reason}"\n' for n, reason in enumerate(reasons)))
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    show(event=LogEvent.RUN_INFO, stats={"train": len(reasons), "total": len(reasons)})
    for number in range(len(reasons)):
        show(**{**STARTED, "jobid": number})
        show(f"Job {number} has been submitted with SLURM jobid {number} (log: x).")
    show.handler._ask_slurm()
    assert show.new() == "" and len(show.handler._waiting) == len(reasons)


def test_jobs_that_a_look_adds_are_counted_at_once(show: Shown) -> None:
    """Snakemake tells a new total when the next job ends, which may be a training run of an hour."""

    def look(seeds: int | None, runs: int, possible: int) -> dict[str, Any]:
        planned, later = {"train": runs, "sample": runs}, {"train": possible, "sample": 9}
        return {"seeds": seeds, "planned": planned, "possible": later}

    assert show("Stops when certain: ...", look=look(2, 1, 6)) == "Stops when certain: ...\n"
    assert show(event=LogEvent.RUN_INFO, stats={"train": 1, "total": 1}) == "1 job on 1 core, among them train 1\n"
    show(**STARTED)
    assert show(event=LogEvent.JOB_FINISHED, job_id=1).endswith(
        "(1 of 1 jobs, about 0 s left to the look after 2 seeds)\n"
    )
    show("Stops when certain: ...", look=look(4, 3, 5))
    words, later = show.handler._study.outlook(0.0)
    assert words.startswith("1 of 5 jobs") and words.endswith("to the look after 4 seeds")
    assert later.startswith("then up to 2 training runs")
    show(event=LogEvent.PROGRESS, done=1, total=7)
    show("All looks are taken", look=look(None, 3, 3))
    assert show.handler._study.outlook(0.0) == ["1 of 7 jobs"]
    added = show.handler._study.planned[""]  # of rules that Snakemake does not tell: each is counted where it starts
    for number in range(added):
        show(**{**STARTED, "jobid": 7 + number, "rule_name": "figure"})
        show(event=LogEvent.JOB_FINISHED, job_id=7 + number)
        assert show.handler._study.planned[""] == added - number - 1
    assert show.handler._study.outlook(0.0)[0].startswith(f"{1 + added} of 7 jobs")


@pytest.mark.parametrize(("given", "means"), [([], ["--quiet", "rules"]), (["-p"], ["-p"])])
def test_a_dry_run_counts(workflow: Path, environment: dict[str, str], given: list[str], means: list[str]) -> None:
    def stable(text: str) -> list[str]:
        without_times = re.sub(r"\[.*\d\d:\d\d:\d\d \d{4}\]", "", text)
        return sorted(
            line for line in without_times.splitlines() if not re.match(" *(Date|Workflow ID|Command):|$", line)
        )

    environment = {**environment, "PYTHONHASHSEED": "0"}  # Snakemake lists the reasons of a job in a set's order
    plain = snakemake(workflow, environment, "--dry-run", *means, *WITHOUT_PLUGIN)
    ours = snakemake(workflow, environment, "--dry-run", *given)
    assert stable(ours.stdout) == stable(plain.stdout)
    assert "This was a dry-run" in ours.stdout and re.search(r"^train +2$", ours.stdout, re.MULTILINE)
    assert ("rule train:" in ours.stdout) is bool(given)


def test_errors_of_the_workflow_are_passed_on(workflow: Path, environment: dict[str, str]) -> None:
    (workflow / "Broken").write_text("raise WorkflowError('config/x.yaml: lambda_maxx is unknown')\n")
    broken = snakemake(workflow, environment, "--snakefile", "Broken")
    assert broken.returncode == 1
    assert "config/x.yaml: lambda_maxx is unknown" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_a_configuration_that_is_no_yaml_is_told_with_its_line(workflow: Path, environment: dict[str, str]) -> None:
    """Snakemake reads it before our code is loaded, and names neither file nor line."""
    (workflow / "faulty.yaml").write_text("study: mine\nseeds: [1, 2\nmethods: {}\n")
    refused = snakemake(workflow, environment, "--dry-run", "--configfile", "faulty.yaml")
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert "\nerror: faulty.yaml: is not valid YAML in line 3 (" in f"\n{refused.stdout}{refused.stderr}"


def test_a_target_that_follows_a_configuration_file_is_told_apart(workflow: Path, environment: dict[str, str]) -> None:
    """Snakemake takes it for a second file, and shows lines of its own code."""
    (workflow / "mine.yaml").write_text("study: mine\n")
    refused = snakemake(workflow, environment, "--configfile", "mine.yaml", "all")
    shown = refused.stdout + refused.stderr
    assert refused.returncode == 1 and "Traceback" not in shown
    assert "error: all: no such file; --configfile takes every word after it" in shown


def test_an_unknown_target_is_answered_with_those_that_there_are(workflow: Path, environment: dict[str, str]) -> None:
    with open(workflow / "Snakefile", "a") as snakefile:
        snakefile.write("from rlvr.study.rule_values import name_targets\nname_targets(workflow.rules, logger)\n")
    refused = snakemake(workflow, environment, "al")
    assert refused.returncode == 1 and "error: target: is 'al'; accepted: all\n" in refused.stdout + refused.stderr
