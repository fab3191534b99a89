"""What a person sees of snakemake under the default profile: in a log, on a terminal, and when things go wrong."""

import logging
import os
import pty
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_logger_plugin_rlvr import LogHandler

SNAKEMAKE = [sys.executable, "-m", "snakemake"]
WITHOUT_PLUGIN = ["--workflow-profile", "none", "--cores", "1", "--rerun-triggers", "mtime"]


def snakemake(workflow: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SNAKEMAKE, *arguments],
        cwd=workflow,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_log_has_whole_lines_and_says_what_failed_and_then_where_the_results_are(
    workflow: Path, environment: dict[str, str]
) -> None:
    (workflow / "fail-a").touch()
    bad = snakemake(workflow, environment)
    shown = bad.stderr
    assert bad.returncode == 1
    assert re.search(r"^\d\d:\d\d:\d\d  4 jobs on \d+ cores?: train 2, report 1, all 1$", shown, re.MULTILINE)
    assert re.search(r"failed: train a after \d+ s, exit status 3\n +log: logs/a.log\n +error: no luck with a\n", shown)
    assert re.search(r"finished: train b after \d+ s \(1 of 4(, (roughly|about) [^)]+ left)?\)", shown), (
        "the other goes on"
    )
    assert "At least one job did not complete successfully" in shown
    assert "1 of 4 jobs finished" in shown and "train a: see logs/a.log" in shown and "goes on from here" in shown
    assert "results/report.html" not in shown
    assert "CalledProcessError" not in shown and "Building DAG" not in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", shown)

    (workflow / "fail-a").unlink()
    good = snakemake(workflow, environment).stderr
    assert re.search(r"all 3 jobs finished in \d+ s\n +report: results/report.html\n", good)
    nothing = snakemake(workflow, environment).stderr
    assert "Nothing to be done" in nothing and "report: results/report.html" in nothing


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
    assert re.search(r"all 4 jobs finished in \d+ s\r\n  report: results/report.html\r\n", shown)
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l") >= 0


@pytest.mark.parametrize(
    "said",
    [
        "Terminating processes on user request, this might take some time.",
        "Will exit after finishing currently running jobs (scheduler).",
    ],
)
def test_jobs_that_the_user_interrupts_have_not_failed(
    said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = types.SimpleNamespace(
        printshellcmds=False, nocolor=True, quiet=None, debug_dag=False, verbose=False, show_failed_logs=False,
        stdout=False, dryrun=False,
    )  # fmt: skip
    handler = LogHandler(settings, None)
    job = {"jobid": 1, "rule_name": "train", "wildcards": {"run": "a"}, "threads": 1, "log": [], "shellcmd": "sleep 9"}
    exception = (
        "RuleException:\nCalledProcessError in file x, line 1:\nCommand 'sleep 9' died with <Signals.SIGINT: 2>."
    )
    for message, values in (
        ("", {"event": LogEvent.RUN_INFO, "stats": {"train": 2, "total": 2}}),
        ("", {"event": LogEvent.JOB_INFO, "output": ["results/a"], **job}),
        (said, {}),
        (exception, {"event": LogEvent.ERROR, "exception": "RuleException"}),
        ("", {"event": LogEvent.JOB_ERROR, **job}),
    ):
        record = logging.LogRecord("snakemake", logging.INFO, "", 0, message, None, None)
        record.__dict__.update(values)
        handler.emit(record)
    handler.close()
    shown = capsys.readouterr().err
    assert said in shown and "0 of 2 jobs finished" in shown and "goes on from here" in shown
    assert "failed" not in shown and "RuleException" not in shown


@pytest.mark.parametrize(("given", "means"), [([], ["--quiet", "rules"]), (["-p"], ["-p"])])
def test_a_dry_run_counts_jobs_and_lists_them_where_it_is_asked_to(
    workflow: Path, environment: dict[str, str], given: list[str], means: list[str]
) -> None:
    def stable(text: str) -> list[str]:
        without_times = re.sub(r"\[.*\d\d:\d\d:\d\d \d{4}\]", "", text)
        return sorted(
            line for line in without_times.splitlines() if not re.match(" *(Date|Workflow ID|Command):", line)
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
