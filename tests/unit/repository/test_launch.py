"""One study to a directory: a living one is named and left alone, a dead one's lock is removed."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import UserError
from rlvr.runs.job import SNAKEMAKE as SNAKEMAKE_VARIABLE
from rlvr.runs.job import STOPPED
from rlvr.study import launch
from tests.commands import ended

LAUNCH = [sys.executable, "-m", "rlvr.study.launch", "--"]
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
PATIENCE_SECONDS = 600  # only a hanging process takes as long
Start = Callable[[list[str]], "subprocess.Popen[str]"]


def heed_interrupts() -> None:
    """Undo what a shell does to the commands that it runs in the background: they ignore interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start(workflow: Path, environment: dict[str, str]) -> Iterator[Start]:
    """Start a command in the workflow's directory, in a process group of its own that is ended with the test."""
    processes: list[subprocess.Popen[str]] = []

    def begin(command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, cwd=workflow, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, preexec_fn=heed_interrupts,
        )  # fmt: skip
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wait_until_training(workflow: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list(workflow.glob("results/runs/*/progress.json")):
        assert time.monotonic() < deadline, "no training started"
        time.sleep(0.05)


@pytest.mark.parametrize("first", [LAUNCH, SNAKEMAKE], ids=["make", "plain snakemake"])
def test_a_second_study_is_refused_and_the_first_goes_on(workflow: Path, start: Start, first: list[str]) -> None:
    (workflow / "hold").touch()
    study = start(first)
    wait_until_training(workflow)
    second = start(LAUNCH)
    answer = second.communicate(timeout=PATIENCE_SECONDS)[0].strip()
    assert second.returncode == 1
    (line,) = (line for line in answer.splitlines() if not line.startswith("Using"))
    assert line.startswith(f"error: {workflow}") and f": process {study.pid} runs another study here; " in line
    if first is LAUNCH:
        dry = start([*LAUNCH, "--dry-run"])
        assert "This was a dry-run" in dry.communicate(timeout=PATIENCE_SECONDS)[0], "asking is allowed"
    (workflow / "hold").unlink()
    study.communicate(timeout=PATIENCE_SECONDS)
    assert study.returncode == 0
    assert (workflow / "results" / "report.html").exists()


def test_a_killed_study_goes_on(workflow: Path, start: Start) -> None:
    (workflow / "hold").touch()
    study = start(LAUNCH)
    wait_until_training(workflow)
    os.killpg(study.pid, signal.SIGKILL)
    study.communicate()
    assert any((workflow / ".snakemake" / "locks").glob("*.lock")), "else this test shows nothing"
    (workflow / "hold").unlink()
    resumed = start(LAUNCH)
    answer = resumed.communicate(timeout=PATIENCE_SECONDS)[0]
    assert resumed.returncode == 0, answer
    assert "an earlier study was killed; continuing it" in answer
    assert not any((workflow / ".snakemake" / "locks").glob("*.lock"))


@pytest.mark.parametrize(
    ("command", "executes"),
    [
        ("python /x/.venv/bin/snakemake --cores 4", True),
        ("/x/.venv/bin/snakemake", True),
        ("python -m snakemake report", True),
        ("python -X dev -m rlvr.study.launch -- --cores 1", True),
        ("python -m snakemake --dry-run", False),
        ("snakemake -n", False),
        ("vim snakemake-notes.md", False),
        ("python -m rlvr.engines.local snakemake", False),
        ("", False),
    ],
)
def test_which_processes_are_studies(command: str, executes: bool) -> None:
    assert launch._runs_jobs(command.split()) is executes


def test_a_study_that_still_plans_counts_as_running(workflow: Path, start: Start) -> None:
    """Snakemake takes its own lock only once it has planned; ours is held from the start."""
    with launch.only_study(workflow):
        second = start(LAUNCH)
        answer = second.communicate(timeout=PATIENCE_SECONDS)[0].strip()
    assert second.returncode == 1
    assert f": process {os.getpid()} runs another study here; " in answer


def test_only_one_holds_the_directory_and_it_is_free_afterwards(tmp_path: Path) -> None:
    with launch.only_study(tmp_path):
        probe = "import sys; from pathlib import Path; from rlvr.study.launch import only_study\n"
        probe += "with only_study(Path(sys.argv[1])): pass"
        other = ended([sys.executable, "-c", probe, str(tmp_path)])
        assert "runs another study here" in other.stderr
    with launch.only_study(tmp_path):
        pass


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / ".snakemake").write_text("a file, where a directory is needed")
    with pytest.raises(UserError, match=r"\.snakemake/study: cannot be locked"), launch.only_study(tmp_path):
        pass


def clean_state(directory: Path) -> str:
    answer = ended([sys.executable, "-m", "rlvr", "clean-state", directory])
    return answer.stdout + answer.stderr


def test_clean_state_deletes_state_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "results" / "runs" / "tiny-dapo-s1"
    (run / "state" / "abc").mkdir(parents=True)
    (run / "state" / "abc" / "model.safetensors").write_bytes(b"12345678")
    (run / "manifest.json").write_text("{}")
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / "model.safetensors").write_bytes(bytes(2**20))
    os.link(run / "checkpoint" / "model.safetensors", run / "state" / "abc" / "tensors.safetensors")
    assert clean_state(tmp_path).startswith("deleted the training state of 1 run (0.0 MiB)")
    assert "holds no results/" in clean_state(tmp_path / "nowhere") and not (tmp_path / "nowhere").exists()
    left = ["checkpoint", "checkpoint/model.safetensors", "manifest.json"]
    assert sorted(path.relative_to(run).as_posix() for path in run.rglob("*")) == left


def test_clean_state_leaves_a_running_study_alone(workflow: Path, start: Start) -> None:
    (workflow / "hold").touch()
    start(SNAKEMAKE)
    wait_until_training(workflow)
    (workflow / "results" / "runs" / "a" / "state").mkdir(parents=True)
    assert "runs another study here" in clean_state(workflow)
    assert (workflow / "results" / "runs" / "a" / "state").is_dir()
    elsewhere = workflow / "elsewhere"
    elsewhere.mkdir()
    launch.require_no_snakemake(elsewhere)


def test_an_interrupt_while_it_plans_is_one_line(workflow: Path, start: Start) -> None:
    (workflow / "Snakefile").write_text("import time\nprint('plans', flush=True)\ntime.sleep(600)\n")
    study = start([sys.executable, "-u", *LAUNCH[1:]])
    assert study.stdout is not None
    while "plans" not in (line := study.stdout.readline()):
        assert line, "ended before it planned"
    study.send_signal(signal.SIGINT)
    assert study.communicate(timeout=PATIENCE_SECONDS)[0] == "interrupted; the same command goes on from here\n"
    assert study.returncode == 130


SNAKEMAKE_WITH_A_JOB = """
import signal, subprocess, sys
from types import SimpleNamespace
from rlvr.study.launch import end_jobs_on_termination
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("snakemake"))
end_jobs_on_termination(SimpleNamespace(local_exec=True))
job = subprocess.Popen(JOB)
job.wait()
print(*told, job.returncode, flush=True)
"""
JOB = """
import signal, subprocess, sys, time
def end(*_):
    print("job", worker.poll(), flush=True)
    worker.kill()
    sys.exit(143)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("job", ['[sys.executable, "job.py"]', '["bash", "-c", f"{sys.executable} job.py; exit $?"]'])
def test_a_termination_reaches_the_jobs(workflow: Path, start: Start, job: str) -> None:
    """They get it, and not what they have started themselves; nor does a shell before one, with which it would die."""
    (workflow / "job.py").write_text(JOB)
    (workflow / "main.py").write_text(SNAKEMAKE_WITH_A_JOB.replace("JOB", job))
    process = start([sys.executable, "main.py"])
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=PATIENCE_SECONDS)[0].splitlines() == ["job None", "snakemake 143"]


SNAKEMAKE_THAT_SELECTS_JOBS = """
import signal, threading
from types import SimpleNamespace
from rlvr.study.launch import end_jobs_on_termination
lock, told = threading.Lock(), threading.Event()
def exit_gracefully(*_):
    with lock:
        told.set()
signal.signal(signal.SIGTERM, exit_gracefully)
end_jobs_on_termination(SimpleNamespace(local_exec=True))
with lock:
    signal.raise_signal(signal.SIGTERM)
told.wait()
print("ends", flush=True)
"""


def test_a_termination_while_snakemake_holds_its_lock_ends_it(workflow: Path, start: Start) -> None:
    """Its own handler would wait for ever for the lock, in the thread that holds it."""
    (workflow / "main.py").write_text(SNAKEMAKE_THAT_SELECTS_JOBS)
    assert start([sys.executable, "main.py"]).communicate(timeout=PATIENCE_SECONDS)[0] == "ends\n"


SNAKEMAKE_WITH_JOBS_ELSEWHERE = """
import signal
from types import SimpleNamespace
from rlvr.study.launch import end_jobs_on_termination
end_jobs_on_termination(SimpleNamespace(local_exec=False, scheduler=SimpleNamespace(_executor=None)))
try:
    signal.raise_signal(signal.SIGTERM)
except KeyboardInterrupt:
    print("cancels its jobs", flush=True)
"""


def test_a_termination_interrupts_snakemake_where_its_jobs_are_elsewhere(workflow: Path, start: Start) -> None:
    (workflow / "main.py").write_text(SNAKEMAKE_WITH_JOBS_ELSEWHERE)
    assert start([sys.executable, "main.py"]).communicate(timeout=PATIENCE_SECONDS)[0] == "cancels its jobs\n"


SNAKEMAKE_INTERRUPTED_TWICE = """
import os, signal, subprocess, sys
from types import SimpleNamespace
from rlvr.study import launch
signal.signal(signal.SIGINT, launch._end_at_once)
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"starts no further job\\n"))  # two threads write
launch.end_jobs_on_termination(SimpleNamespace(local_exec=True))
job = [sys.executable, "-c", "import time; time.sleep(600)"]
running = subprocess.Popen(job)
signal.raise_signal(signal.SIGINT)
signal.raise_signal(signal.SIGINT)
print(running.wait(), flush=True)
print(subprocess.Popen(job).wait(), flush=True)  # one that it had chosen before
"""


def test_interrupts_end_the_jobs_and_never_meet_snakemakes_own_code(workflow: Path, start: Start) -> None:
    (workflow / "main.py").write_text(SNAKEMAKE_INTERRUPTED_TWICE)
    output = start([sys.executable, "main.py"]).communicate(timeout=PATIENCE_SECONDS)[0]
    assert sorted(output.splitlines()) == [*[str(-signal.SIGTERM)] * 2, *["starts no further job"] * 2]


SNAKEMAKE_OF_A_TRAINING = """
import subprocess, sys, time
from rlvr.study.machine import set_job_environment
set_job_environment()
subprocess.Popen([sys.executable, "training.py"])
time.sleep(600)
"""
TRAINING = """
import os, time
from rlvr.runs.job import end_with_snakemake, termination
end_with_snakemake()
with termination() as asked_to_stop:
    print(os.getpid(), flush=True)
    while not asked_to_stop():
        time.sleep(0.01)
    print("stops", flush=True)
"""


def test_a_job_ends_with_its_snakemake(workflow: Path, start: Start) -> None:
    (workflow / "training.py").write_text(TRAINING)
    (workflow / "main.py").write_text(SNAKEMAKE_OF_A_TRAINING)
    process = start([sys.executable, "main.py"])
    assert process.stdout is not None and process.stdout.readline().strip().isdigit()
    process.kill()
    assert process.communicate(timeout=PATIENCE_SECONDS)[0] == "stops\n"


SNAKEMAKE_WITH_A_PATH_TO_QUOTE = """
import subprocess, sys
sys.executable = sys.argv[1]
from rlvr.study.machine import set_job_environment
set_job_environment()
set_job_environment()  # as where another workflow takes the rules twice
command = f"{sys.executable} -c 'print(7)'; printenv PATH"
print(subprocess.run(command, shell=True, capture_output=True, text=True).stdout)
"""


def test_scripts_start_where_the_path_of_python_has_to_be_quoted(workflow: Path, start: Start) -> None:
    """Snakemake does not quote it."""
    place = workflow / "it's a clone" / "python"
    place.parent.mkdir()
    place.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    place.chmod(0o755)
    (workflow / "main.py").write_text(SNAKEMAKE_WITH_A_PATH_TO_QUOTE)
    seven, path = (
        start([sys.executable, "main.py", str(place)]).communicate(timeout=PATIENCE_SECONDS)[0].split("\n")[:2]
    )
    assert seven == "7" and "" not in path.split(":")


def test_a_job_whose_snakemake_has_died_before_does_not_begin(environment: dict[str, str]) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    command = [sys.executable, "-m", "rlvr", "--version"]
    job = subprocess.run(command, env=environment | {SNAKEMAKE_VARIABLE: str(dead.pid)}, check=False)
    assert job.returncode == STOPPED


MANY_JOBS = """
from rlvr.study.launch import lift_job_rate
rounds = []
onstart:
    lift_job_rate(workflow)
    select = workflow.scheduler.job_selector
    workflow.scheduler.job_selector = lambda jobs: rounds.append(jobs) or select(jobs)
onsuccess:
    print("rounds", len(rounds), workflow.scheduler.job_rate_limiter, flush=True)
rule all:
    input: expand("{number}.txt", number=range(8))
rule one:
    output: touch("{number}.txt")
    shell: "sleep 0.4"
"""


@pytest.mark.parametrize(("asked", "kept"), [((), False), (("--max-jobs-per-timespan", "7/1s"), True)])
def test_the_scheduler_looks_when_jobs_end(workflow: Path, start: Start, asked: tuple[str, ...], kept: bool) -> None:
    """Snakemake alone looks more often every second, the more jobs have ended."""
    (workflow / "Snakefile").write_text(MANY_JOBS)
    process = start([sys.executable, "-m", "snakemake", "--cores", "1", *asked])
    lines = process.communicate(timeout=PATIENCE_SECONDS)[0].splitlines()
    assert process.returncode == 0, lines
    (told,) = (line.split() for line in lines if line.startswith("rounds"))
    assert (told[2] != "None") == kept
    assert (int(told[1]) > 12) == kept


def test_what_sacct_says_of_a_scancel_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the executor for Slurm waits for ever, where a cluster has a database of accounts."""
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm")
    answers = iter([({"4": "CANCELLED by 1000", "5": "RUNNING"}, 0.1), (None, None)])

    async def ask(*given: Any) -> Any:
        return next(answers)

    monkeypatch.setattr(plugin, "query_job_status", ask)
    launch.read_ends_of_slurm()
    assert "query_job_status" in plugin.Executor.check_active_jobs.__code__.co_names
    assert asyncio.run(plugin.query_job_status("sacct", None)) == ({"4": "CANCELLED", "5": "RUNNING"}, 0.1)
    assert asyncio.run(plugin.query_job_status("sacct", None)) == (None, None)
