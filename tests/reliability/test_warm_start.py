"""Jobs that are forks of a server end, and are ended, as processes of their own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlvr.runs.job import SNAKEMAKE
from rlvr.runs.warm_start import SERVER, ask, start_server

_ASK = "import sys; from rlvr.runs.warm_start import ask; del sys.argv[0]; sys.exit(ask('{module}'))"
_WAITING = """
import os, sys, time
from pathlib import Path
from rlvr.runs.job import STOPPED, termination
with termination() as asked_to_stop:
    print(os.getpid(), flush=True)
    while not asked_to_stop():
        time.sleep(0.05)
    Path(sys.argv[1]).write_text("saved")
sys.exit(STOPPED)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[psutil.Process]:
    with _server() as started:
        yield started


@contextlib.contextmanager
def _server(**variables: str) -> Iterator[psutil.Process]:
    before = psutil.Process().children()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {SNAKEMAKE: str(os.getpid()), SERVER: "", **variables}.items():
            patch.setenv(name, value)
        start_server()
        (started,) = set(psutil.Process().children()) - set(before)
        yield started
    with contextlib.suppress(psutil.NoSuchProcess):
        started.kill()
        started.wait()


def _job(
    script: Path, *words: str, by_server: bool = True, module: str = "torch", **options: object
) -> "subprocess.Popen[str]":
    program = ["-c", _ASK.format(module=module)] if by_server else []
    files = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    command = [sys.executable, *program, str(script), *words]
    return subprocess.Popen(command, text=True, errors="surrogateescape", **files, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise SystemExit", "1 / 0", "os.kill(os.getpid(), 9)"])
def test_a_fork_has_its_own_files_words_environment_directory_and_end(
    server: psutil.Process, tmp_path: Path, end: str
) -> None:
    script = tmp_path / "job.py"
    told = "os.getcwd(), sys.argv[-1], os.environ['OF_THE_JOB'], sys.stdin.read()"
    script.write_text(f"import os, sys\nprint({told}, flush=True)\nprint('error', file=sys.stderr)\n{end}\n")
    ends = []
    for by_server in (True, False):
        job = _job(
            script, "word", by_server=by_server, cwd=tmp_path, env={**os.environ, "OF_THE_JOB": "\N{SNOWMAN}\udcff"}
        )
        printed, errors = job.communicate("typed")
        ends.append((job.returncode, printed, errors.splitlines()[0], errors.splitlines()[-1]))
    assert ends[0] == ends[1]
    assert server.is_running()


def test_a_fork_saves_its_state_when_its_own_process_is_asked_to_stop(server: psutil.Process, tmp_path: Path) -> None:
    script, saved = tmp_path / "job.py", tmp_path / "saved"
    script.write_text(_WAITING)
    job = _job(script, str(saved))
    assert job.stdout is not None
    job.stdout.readline()
    server.terminate()  # as Snakemake's launcher asks all its children
    job.terminate()
    assert job.wait() == 143
    assert saved.read_text() == "saved"
    assert server.is_running()


def test_a_message_that_is_none_leaves_no_file_open(server: psutil.Process) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{os.environ[SERVER]}")
        socket.send_fds(connection, [b"{"], [0, 1, 2])
        assert connection.recv(1) == b""
    before = server.num_fds()
    for _ in range(10):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(f"\0{os.environ[SERVER]}")
            socket.send_fds(connection, [b"{"], [0, 1, 2])
            assert connection.recv(1) == b""
    assert server.num_fds() <= before + 3  # those of the last message, which the server closes after the connection


@pytest.mark.parametrize("killed", ["its own process", "the server"])
def test_a_fork_ends_with_its_own_process_and_with_the_server(
    server: psutil.Process, tmp_path: Path, killed: str
) -> None:
    script, saved = tmp_path / "job.py", tmp_path / "saved"
    script.write_text(_WAITING)
    job = _job(script, str(saved))
    assert job.stdout is not None
    fork = psutil.Process(int(job.stdout.readline()))
    server.kill() if killed == "the server" else job.kill()
    fork.wait()
    assert job.wait() == (-signal.SIGTERM if killed == "the server" else -signal.SIGKILL)
    assert saved.exists() == (killed == "the server")  # which is Snakemake's end too: the state is saved


def test_without_its_server_a_job_starts_by_itself_and_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlvr", "train", "nope.json"]
    job = subprocess.run(command, cwd=tmp_path, env={**os.environ, SERVER: "gone"}, capture_output=True)
    assert job.returncode == 2
    assert b"this job starts without it\nerror: " in job.stderr


def test_a_job_tells_nothing_to_the_server_of_another_user(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The name of a server that has ended is anybody's."""
    monkeypatch.setenv(SERVER, f"rlvr-bench-{os.getpid()}")
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0rlvr-bench-{os.getpid()}")
        listening.listen()
        assert ask() is None
        assert listening.accept()[0].recv(1) == b""
    assert "belongs to another user; this job starts without it" in capfd.readouterr().err


def test_the_server_keeps_what_modules_set_leaves_failures_to_jobs_and_forks_no_threads(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("raise SystemExit(1)\n")
    (tmp_path / "setting.py").write_text("import os\nos.environ['OF_MODULE'] = 'set'\n")
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    script = tmp_path / "job.py"
    script.write_text("import os\nprint(os.environ.get('OF_MODULE'), os.environ['OPENBLAS_NUM_THREADS'])\n")
    with _server(PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path])):
        variables = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}  # as Snakemake sets it by a job's threads
        names = ("failing", "setting", "failing", "threaded")
        said = [_job(script, module=name, env=variables).communicate() for name in names]
    assert [printed for printed, _ in said] == ["None 1\n", "set 1\n", "set 1\n", ""]
    assert [errors for _, errors in said[:3]] == [""] * 3
    assert said[3][1] == "the server of jobs: gave no process; this job starts without it\n"
