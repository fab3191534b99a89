"""A user's verifier that runs what a response says: how far the response gets."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from evals.grading import Case, GradingPool, Reason, Verdict
from evals.grading.code import verifier as verifiers
from tests.security.test_sandbox import comes_true, marked, processes

pytestmark = pytest.mark.usefixtures("sandbox_works")

PROBLEM = {"id": "p", "problem": "1 + 1", "answer": "2"}
Judge = Callable[..., list[Verdict]]
_STARTS_ALL = """\
import os, time

def verify(problem, response):
    for _ in range(2):
        if os.fork() == 0:
            time.sleep(600)
    return 1
"""
"""Starts as many processes as a sandbox may have, and leaves them."""


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Judge responses in order by what they leave in ``reward``; each is a program."""
    path = tmp_path / "mine.py"
    path.write_text(
        "def verify(problem, response):\n"
        "    names = {'reward': 0}\n"
        "    exec(response, names)\n"
        "    return names['reward']\n"
    )

    def judged(*responses: str, time_limit: float = 60.0) -> list[Verdict]:
        with GradingPool(1, time_limit, verifier=path) as pool:
            return pool.grade(Case(response, "2", problem=PROBLEM) for response in responses)

    return judged


def test_neither_network_nor_files_nor_programs_of_the_machine(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        network, verdict = judge(
            f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)\nreward = 1",
            f"""
import os
wanted = [{str(tmp_path / "secret")!r}, "/etc/passwd", "/proc/self/environ", {__file__!r}]
found = [path for path in wanted if os.path.exists(path)]
for place in ("/x", "/tmp/x", "/inside/x", "/dev/shm/x", "/verifier.py", os.__file__):
    try:
        open(place, "ab").close()
        found.append(place)
    except OSError:
        pass
found += [name for name in os.environ if name in ("HF_TOKEN", "USER", "PYTHONPATH")]
assert not found, found
reward = 1
""",
        )
    assert network.error is not None and "OSError: [Errno 97] Address family not supported" in network.error
    assert verdict.error is None and verdict.correct


def test_time_ends_a_response_and_not_the_ones_after_it(judge: Judge) -> None:
    endless, ignoring, last = judge(
        "while True: pass",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "reward = 1",
        time_limit=1.0,
    )
    assert [endless.reason, ignoring.reason] == [Reason.TIMEOUT] * 2 and endless.reward == ignoring.reward == 0
    assert last.correct


FORGERIES = {
    "another's verdict": """
import os
for number in range(3, 64):
    try:
        os.write(number, b'{"reward": 0.0}\\n' + b'{"reward": 1.0}\\n' * 5)
    except OSError:
        pass
""",
    "the function": "import verifier\nverifier.verify = lambda problem, response: 1",
    "builtins": "import builtins\nbuiltins.exec = lambda code, names: names.update(reward=1)",
    "its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "the limits of others": """
import os, resource
for process in (1, os.getppid(), os.getpid()):
    for kind in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_AS):
        for change in (lambda: resource.prlimit(process, kind, (1, 1)), lambda: os.sched_setaffinity(process, [0]),
                       lambda: os.sched_setscheduler(process, 3, os.sched_param(0)), lambda: os.nice(5),
                       lambda: os.setpriority(os.PRIO_PROCESS, process, 19)):
            try:
                change()
                raise SystemExit("could")
            except OSError:
                pass
""",
    "a deep answer": """
import os
for number in range(3, 64):
    try:
        os.write(number, b"[" * 4000 + b"\\n")
    except OSError:
        pass
""",
    "what it leaves behind": """
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
""",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_response_changes_no_verdict_but_its_own(judge: Judge, name: str) -> None:
    attack, *others = judge(FORGERIES[name], *["reward = 0.25", "reward = 0"] * 3)
    assert [verdict.reward for verdict in others] == [0.25, 0.0] * 3
    assert attack.reward == 0 and {verdict.error for verdict in others} == {None}
    assert "could" not in str(attack.error)
    assert (attack.error == "its sandbox ended") == (name == "its parent")
    assert name != "its parent" or attack.reason is Reason.MISMATCH


def test_a_response_waits_until_the_processes_of_the_one_before_no_longer_count(tmp_path: Path) -> None:
    """They count until bubblewrap has collected them, which a busy machine delays; programs then failed their tests."""
    path = tmp_path / "mine.py"
    path.write_text(_STARTS_ALL)
    case = Case("", "2", problem=PROBLEM)
    with GradingPool(1, 60.0, verifier=path) as pool:
        assert pool.grade([case])[0].correct
        (collector,) = [each for each in psutil.Process().children(recursive=True) if is_first_of_sandbox(each)]
        collector.suspend()
        resumption = threading.Timer(1.0, collector.resume)
        resumption.start()
        try:
            verdicts = pool.grade([case] * 3)
        finally:
            resumption.join()
    assert [(verdict.reward, verdict.error) for verdict in verdicts] == [(1, None)] * 3


def test_a_process_that_the_file_starts_at_its_load_holds_no_verdict_up(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    start = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n"
    path.write_text(start + "def verify(problem, response):\n    return 1\n")
    with GradingPool(1, 60.0, verifier=path) as pool:
        verdicts = pool.grade([Case("", "2", problem=PROBLEM)] * 2)
    assert [(verdict.reward, verdict.error) for verdict in verdicts] == [(1, None)] * 2


def is_first_of_sandbox(process: psutil.Process) -> bool:
    """Return whether a process is the first of its namespace: bubblewrap's, which collects what has ended."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return "\nNSpid:\t" in status and status.partition("\nNSpid:\t")[2].splitlines()[0].endswith("\t1")


def test_nothing_outlives_the_pool(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "_LIMITS", limits := marked(verifiers._LIMITS))
    judge("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)", "reward = 1")
    assert comes_true(lambda: not processes(limits)), processes(limits)
    assert not [each for each in psutil.Process(os.getpid()).children() if "bwrap" in each.name()]
