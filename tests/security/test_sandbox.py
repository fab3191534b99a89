"""Programs that want out of the sandbox, or to be called right without being right."""

import itertools
import json
import os
import runpy
import socket
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from evals.core.errors import UserError
from evals.grading.code import run
from evals.grading.code import sandbox as sandboxes
from evals.grading.code.run import run_tests
from evals.grading.code.sandbox import Limits, Sandbox, start
from evals.grading.verdict import Reason

pytestmark = pytest.mark.usefixtures("sandbox_works")

SQUARE = {
    "kind": "program",
    "entry_point": "f",
    "test": "def check(candidate):\n    for n in range(3, 9):\n        assert candidate(n) == n * n + 77\n",
}
SMALL = Limits(disk=4 * 1024**2, memory=512 * 1024**2)
BUILT_WITH_PYTHON = {"idlelib", "sitecustomize", "test", "xxlimited", "xxlimited_35"}
"""Modules beside the standard library that come with Python itself, with Debian's sitecustomize."""
_marks = itertools.count(16 * 1024**2 + os.getpid())


@pytest.fixture(autouse=True)
def a_slow_machine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that come to an end may take long to: other work can share the processors."""
    monkeypatch.setattr(run, "EXAMINER", replace(run.EXAMINER, cpu=100))
    monkeypatch.setattr(run, "CANDIDATE", replace(run.CANDIDATE, cpu=100))
    monkeypatch.setattr(run, "CASE", replace(run.CASE, cpu=60))


def told(program: str, limits: Limits = SMALL) -> Any:
    """The last line, as JSON, that a program prints in a sandbox."""
    files = {"/program.py": textwrap.dedent(program)}
    sandbox = start("candidate.py", ["script"], limits, files)
    try:
        output, _ = sandbox.process.communicate(timeout=limits.seconds + 600)
    finally:
        sandbox.kill()
    assert sandbox.process.returncode == 0
    return json.loads(output.decode().splitlines()[-1])


def marked(limits: Limits) -> Limits:
    """Limits that no other sandbox of this machine has: they stand on the command line of each of its processes."""
    return replace(limits, file_size=next(_marks))


def processes(limits: Limits) -> list[psutil.Process]:
    """What runs in the sandbox of :func:`marked` limits, bubblewrap's own two processes included."""
    mark = f'"file_size": {limits.file_size},'
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if any(mark in word for word in process.info["cmdline"] or [])]


def comes_true(condition: Callable[[], bool], seconds: float = 600.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def started(program: str, limits: Limits) -> Sandbox:
    return start("candidate.py", ["script"], limits, {"/program.py": program}, stdout=subprocess.DEVNULL)


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    path = Path.home() / f".sandbox-test-{os.getpid()}"
    path.write_text("secret")
    (tmp_path / "secret").write_text("secret")
    yield path
    path.unlink()


def test_no_file_of_the_machine_can_be_read(secret: Path, tmp_path: Path) -> None:
    wanted = [str(secret), str(tmp_path / "secret"), "/etc/passwd", "/proc/1/environ", "/sys/kernel", __file__]
    read = told(
        f"""
        import json, os
        found = [path for path in {wanted!r} if os.path.exists(path)]
        homes = [name for name in os.listdir("/") if name in ("home", "etc", "proc", "sys", "var", "mnt", "work")]
        print(json.dumps([found, homes, os.environ.get("HOME"), sorted(os.environ)]))
        """
    )
    assert read[:3] == [[], [], "/tmp"]
    assert not {"HF_TOKEN", "USER", "PYTHONPATH", "PYTEST_CURRENT_TEST"} & set(read[3])


def test_no_network_of_any_kind() -> None:
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as local:
        server.bind(("127.0.0.1", 0))
        server.listen()
        local.bind(f"\0sandbox-test-{os.getpid()}")
        local.listen()
        reached = told(
            f"""
            import json, socket
            reached = []
            addresses = [
                (socket.AF_INET, ("127.0.0.1", {server.getsockname()[1]})),
                (socket.AF_INET, ("8.8.8.8", 53)),
                (socket.AF_INET6, ("::1", {server.getsockname()[1]})),
                (socket.AF_UNIX, "\\0sandbox-test-{os.getpid()}"),
                (40, (2, 1024)),  # the host of a virtual machine
                (socket.AF_NETLINK, (0, 0)),
            ]
            for family, address in addresses:
                try:
                    with socket.socket(family, socket.SOCK_STREAM if family != 16 else socket.SOCK_RAW) as channel:
                        channel.settimeout(2)
                        (channel.bind if family == 16 else channel.connect)(address)
                        reached.append(str(address))
                except (OSError, OverflowError):
                    pass
            print(json.dumps(reached))
            """
        )
    assert reached == []


def test_programs_see_the_standard_library_and_numpy_alone() -> None:
    """Whatever else this machine's Python has, verdicts do not depend on it."""
    found = told(
        """
        import json, os, pkgutil, sys
        import numpy
        names = {module.name for module in pkgutil.iter_modules()} - set(sys.stdlib_module_names)
        packages = [path for path in sys.path if path.endswith("-packages") and os.path.isdir(path)]
        print(json.dumps([sorted(names), [name for path in packages for name in os.listdir(path)]]))
        """
    )
    ours = {path.stem for path in Path(sandboxes.__file__).parent.joinpath("sandboxed").glob("*.py")} - {"__init__"}
    # Modules of Python's own build and the script's directory; nothing that was installed.
    assert {name for name in found[0] if not name.startswith("_")} - ours - {"numpy", *BUILT_WITH_PYTHON} == set()
    assert found[1] == []


def test_every_user_has_as_many_processes() -> None:
    """Four with the program itself: three more can be started, as root and as anybody else."""
    started = told(
        """
        import json, os, time
        children = []
        try:
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    time.sleep(30)
                    os._exit(0)
                children.append(child)
        except OSError:
            pass
        for child in children:
            os.kill(child, 9)
        print(json.dumps(len(children)))
        """,
        replace(SMALL, forks=True),
    )
    assert started == SMALL.processes - 1


def test_no_two_sandboxes_of_root_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two containers processes have the same numbers, and the kernel counts those of a user in both."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    begun = (runpy.run_path(str(sandboxes.__file__))["Limits"]() for _ in range(10))
    assert len({json.loads(limits.inside())["user"] for limits in begun}) == 10


def test_a_program_has_one_process_of_a_few_threads() -> None:
    """Each process would have all the memory and processor time of the limits again."""
    refused, threads = told(
        """
        import ctypes, json, os, subprocess, sys, threading
        refused = []
        command = [sys.executable, "-c", ""]
        for start in (os.fork, lambda: subprocess.run(command), lambda: os.posix_spawn(command[0], command, {})):
            try:
                if start() == 0:
                    os._exit(0)
            except PermissionError:
                refused.append(1)
        refused.append(int(ctypes.CDLL(None).syscall(58) == -1 if os.uname().machine == "x86_64" else 1))
        release, threads = threading.Event(), []
        try:
            for _ in range(20):
                threads.append(threading.Thread(target=release.wait))
                threads[-1].start()
        except RuntimeError:
            pass
        release.set()
        print(json.dumps([refused, len(threads) - 1]))
        """
    )
    assert refused == [1, 1, 1, 1] and threads == SMALL.processes - 1


def test_a_fork_bomb_is_small_and_ends() -> None:
    limits = marked(replace(SMALL, forks=True))

    def forked() -> int:
        return sum("bwrap" not in process.info["cmdline"][0] for process in processes(limits))

    sandbox = started(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n", limits
    )
    try:
        assert comes_true(lambda: forked() > 1)
        most = 0
        for _ in range(20):
            most = max(most, forked())
            time.sleep(0.05)
    finally:
        sandbox.kill()
    assert 1 < most <= limits.processes
    assert comes_true(lambda: not processes(limits)), processes(limits)


def test_a_sandbox_can_be_ended_at_any_moment() -> None:
    """Also while bubblewrap sets it up, when its second process does not yet die with the first."""
    limits = marked(SMALL)
    begin = time.monotonic()
    sandbox = started("import time\ntime.sleep(600)", limits)
    assert comes_true(lambda: len(processes(limits)) == 3)
    duration = time.monotonic() - begin
    (first_inside,) = psutil.Process(sandbox.process.pid).children()
    assert os.getpgid(first_inside.pid) == sandbox.process.pid
    (second_inside,) = first_inside.children()
    assert comes_true(lambda: os.getpgid(second_inside.pid) == second_inside.pid)  # the program can signal neither
    sandbox.kill()
    for moment in range(40):
        sandbox = started("import time\ntime.sleep(600)", limits)
        time.sleep(duration * moment / 40)
        sandbox.kill()
    assert comes_true(lambda: not processes(limits)), processes(limits)


def test_nothing_outlives_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
def f(n):
    return n * n + 77
"""
    limits = marked(replace(run.CANDIDATE, forks=True))
    monkeypatch.setattr(run, "CANDIDATE", limits)
    assert run_tests(program, SQUARE) is Reason.MATCH
    assert comes_true(lambda: not processes(limits)), processes(limits)


def test_the_disk_is_a_few_megabytes_and_nothing_else_can_be_written() -> None:
    written, refused = told(
        """
        import errno, json, os, sys
        total = 0
        try:
            for number in range(1000):
                with open(f"/tmp/{number}", "wb") as file:
                    total += file.write(bytes(1 << 20))
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        places = ["/x", "/dev/x", "/dev/shm/x", "/usr/lib/x", "/inside/x", "/inside/limits.py", "/program.py",
                  os.__file__, os.path.dirname(os.__file__) + "/x", "/packages/numpy/__init__.py", "/root/x"]
        written = []
        for place in places:
            try:
                open(place, "ab").close()
                written.append(place)
            except OSError:
                pass
        print(json.dumps([total, written]))
        """
    )
    assert 1 << 20 <= written <= SMALL.disk
    assert refused == []


@pytest.mark.parametrize("make", ["os.symlink('x', name)", "open(name, 'w').close()", "os.mkdir(name)"])
def test_a_program_that_makes_files_without_end_is_ended(make: str) -> None:
    """An empty file takes nothing of the disk, but a kilobyte of the kernel's memory."""
    program = f"import os\nfor n in range(10**9):\n    name = f'/tmp/{{n}}'\n    {make}\n"
    running = start("candidate.py", ["script"], SMALL, {"/program.py": program})
    try:
        assert running.wait(600) == -9  # and not by a limit on its time, which ends with another status
    finally:
        running.kill()


def test_a_program_may_make_thousands_of_files() -> None:
    count = sandboxes.MOST_FILES - 100
    program = f"import os, time\nfor n in range({count}):\n    os.mkdir(f'/tmp/{{n}}')\ntime.sleep(0.5)\nprint({count})"
    assert told(program) == count


def test_no_program_can_put_a_module_before_ours_or_pythons() -> None:
    places, writable = told(
        """
        import json, os, sys
        writable = []
        for place in map(os.path.abspath, sys.path):
            try:
                os.makedirs(place, exist_ok=True)
                open(os.path.join(place, "json.py"), "w").close()
                writable.append(place)
            except OSError:
                pass
        print(json.dumps([sys.path, writable]))
        """
    )
    assert places[:2] == ["/inside", "/packages"] and writable == []
    ours = {path.stem for path in (Path(run.__file__).parent / "sandboxed").glob("*.py")}
    assert ours and not ours & {*sys.stdlib_module_names, "numpy"}


def test_no_process_outside_can_be_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as victim:
        told(
            f"""
            import json, os, signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            sent = []
            os.kill(0, signal.SIGTERM)  # its own group, in which nobody else is
            for pid in (os.getppid(), 1, {victim.pid}, {os.getpid()}, {os.getppid()}, -1):
                try:
                    os.kill(pid, signal.SIGTERM)
                    sent.append(pid)
                except OSError:
                    pass
            print(json.dumps(sent))
            """
        )
        assert victim.poll() is None
        victim.kill()


def test_privileges_and_uncounted_memory_are_refused() -> None:
    allowed = told(
        """
        import ctypes, json, os, resource
        libc = ctypes.CDLL(None, use_errno=True)
        attempts = {
            "unshare": lambda: libc.unshare(0x10000000),
            "clone": lambda: libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0),
            "memfd": lambda: os.memfd_create("x"),
            "shared memory": lambda: libc.shmget(0, 1 << 30, 0o1600),
            "ptrace": lambda: libc.ptrace(0, 0, 0, 0),
            "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
            "root": lambda: os.setuid(0),
            "more memory": lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)),
            "more processes": lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1 << 20, 1 << 20)),
        }
        allowed = []
        for name, attempt in attempts.items():
            try:
                result = attempt()
                if result is None or result >= 0:
                    allowed.append(name)
            except (OSError, ValueError):
                pass
        try:
            bytearray(1 << 30)
            allowed.append("memory")
        except MemoryError:
            pass
        allowed += ["capabilities"] if os.geteuid() == 0 else []
        print(json.dumps(allowed))
        """
    )
    assert allowed == []


FORGERIES = {
    "printing": 'print(\'{"reason": "match", "raised": null}\', flush=True)\ndef f(n): return 0',
    "every descriptor": """
import os
def f(n):
    for number in range(64):
        try:
            os.write(number, b'{"reason": "match", "raised": null}\\n')
        except OSError:
            pass
    return 0
""",
    "exit at once": "import os\nos._exit(0)",
    "exit in the call": "import sys\ndef f(n): sys.exit(0)",
    "equal to all": "class A(int):\n    def __eq__(self, other): return True\ndef f(n): return A(1)",
    "equal object": "class A:\n    def __eq__(self, other): return True\ndef f(n): return A()",
    "not a number": "def f(n): return float('nan')",
    "broken serialiser": """
import json, values
values.dump = lambda value: '{"reason": "match"}'
json.dumps = lambda value: '{"reason": "match", "raised": null, "value": "match"}'
def f(n): return 0
""",
    "search of memory": """
import gc, sys
def f(n):
    frame = sys._getframe()
    while frame:
        for value in frame.f_locals.values():
            if isinstance(value, dict) and "test" in value:
                return eval(value["test"])
        frame = frame.f_back
    return [item for item in gc.get_objects() if isinstance(item, dict) and "entry_point" in item] or 0
""",
    "the tests' file": "def f(n):\n    return open('/test.json').read()",
    "patched builtins": "import builtins\nbuiltins.AssertionError = builtins.all = None\ndef f(n): return 0",
    "a thousand answers": """
import os
os.write(1, b'{"value": "1"}\\n' * 1000)
def f(n): return 0
""",
    "endless answer": "def f(n):\n    return 'x' * 400_000_000",
    "deep answer": "def f(n):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "an exception": "def f(n): raise AssertionError('match')",
    "no function": "x = 1",
    "no program": "def f(n) return",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_verdict_cannot_be_forged(name: str) -> None:
    assert run_tests(FORGERIES[name], SQUARE) in (Reason.MISMATCH, Reason.MEMORY)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(n):\n    return n * n + 77", Reason.MATCH),
        ("def f(n):\n    return n * n", Reason.MISMATCH),
        ("def f(n):\n    return bytearray(1 << 33)", Reason.MEMORY),
        ("import numpy\ndef f(n):\n    return numpy.int64(n * n + 77)", Reason.MATCH),
        ("print('loading')\ndef f(n):\n    print(n)\n    return n * n + 77", Reason.MATCH),
        ("def f(n):\n    return input()", Reason.MISMATCH),
    ],
)
def test_programs_get_the_verdict_that_they_deserve(program: str, reason: Reason) -> None:
    assert run_tests(program, SQUARE) is reason


def test_a_program_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = marked(run.CANDIDATE)
    monkeypatch.setattr(run, "CANDIDATE", limits)
    monkeypatch.setattr(sandboxes, "WALL_CLOCK", 3.0)
    monkeypatch.setattr(run, "EXAMINER", replace(run.EXAMINER, cpu=1))
    assert run_tests("import time\ndef f(n):\n    time.sleep(600)", SQUARE) is Reason.TIMEOUT
    assert comes_true(lambda: not processes(limits)), processes(limits)
    monkeypatch.setattr(run, "CASE", replace(run.CASE, cpu=1))
    script = {"kind": "stdin", "cases": [{"input": "", "output": "3"}]}
    assert run_tests("import time\nprint(3, flush=True)\ntime.sleep(600)", script) is Reason.TIMEOUT


def test_calls_and_scripts() -> None:
    cases = [{"arguments": [1, [2, "é"]], "expected": [1, [2, "é"]]}]
    calls = {"kind": "calls", "entry_point": "Solution.add", "cases": cases}
    assert run_tests("class Solution:\n    def add(self, a, b): return (a, tuple(b))", calls) is Reason.MATCH
    assert run_tests("class Solution:\n    def add(self, a, b): return (b, a)", calls) is Reason.MISMATCH
    script = {
        "kind": "stdin",
        "preamble": "import sys\n",
        "cases": [{"input": "1 2\n", "output": "3\n"}, {"input": "4 5\n", "output": "9.0\n"}],
    }
    assert run_tests("print(sum(map(int, input().split())))", script) is Reason.MATCH
    assert run_tests("print(3)", script) is Reason.MISMATCH
    assert run_tests("print(3)\nsys.exit(1)", script) is Reason.MISMATCH
    assert run_tests("while True: print('3' * 10000)", script) in (Reason.MISMATCH, Reason.TIMEOUT)
    assert run_tests("raise SystemExit", script) is Reason.MISMATCH
    assert (
        run_tests("from __future__ import annotations\nprint(sum(map(int, input().split())))", script) is Reason.MATCH
    )
    long = {"kind": "stdin", "cases": [{"input": "1" + "0" * 5_000, "output": "2" + "0" * 5_000}]}
    assert run_tests("print(10**5000 + int(input()))", long) is Reason.MATCH
    keys = {"kind": "calls", "entry_point": "f", "cases": [{"arguments": [], "expected": {"1": 2}}]}
    assert run_tests("def f(): return {1: 2}", keys) is Reason.MATCH
    assert run_tests("def f(): return {1: 2, '1': 2}", keys) is Reason.MISMATCH


def test_a_sandbox_that_does_not_begin_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its empty output is not the program's: a limit on namespaces or processes may be reached at any time."""
    script = {"kind": "stdin", "cases": [{"input": "", "output": "3"}]}
    command = sandboxes._command
    for broken in ("candidate.py", "examiner.py"):

        def with_failure(disk: int, broken: str = broken) -> list[str]:
            frame = sys._getframe(1)
            return ["false"] if frame.f_locals["script"] == broken else command(disk)

        monkeypatch.setattr(sandboxes, "_command", with_failure)
        for tests in (SQUARE, script) if broken == "candidate.py" else (SQUARE,):
            with pytest.raises(UserError, match="did not begin"):
                run_tests("print(3)\ndef f(n): return n * n + 77", tests)


def test_root_of_a_rootless_container_has_a_sandbox() -> None:
    """Such as of Podman: its root is somebody else outside, and most numbers are no users there."""
    container = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*container, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine makes no user namespaces")
    script = {"kind": "stdin", "cases": [{"input": "", "output": "3"}]}
    program = f"from evals.grading.code.run import run_tests\nprint(run_tests('print(3)', {script}))"
    answer = subprocess.run([*container, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.stdout == "match\n", answer.stderr


def test_what_the_machine_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(UserError, match="Resource temporarily unavailable"):
        run_tests("print(3)", {"kind": "stdin", "cases": [{"input": "", "output": "3"}]})


def test_processor_time_decides_and_not_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CASE", replace(run.CASE, cpu=1))
    script = {"kind": "stdin", "cases": [{"input": "", "output": "3"}] * 2}
    assert run_tests("import time\ntime.sleep(3)\nprint(3)", script) is Reason.MATCH
    assert run_tests("while True: pass", script) is Reason.TIMEOUT


def test_output_is_read_no_further_than_the_first_difference() -> None:
    """Comparing is the grader's own work, which no limit of a sandbox bounds."""
    tracemalloc.start()
    begun = time.process_time()
    assert not run.same_output("1\n" * 8_000_000, "1\n2\n")
    assert not run.same_output("1 " * 8_000_000, "1\n2\n")
    seconds, peak = time.process_time() - begun, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 2 and peak < 100 * 2**20


def test_tests_that_call_nothing_find_nothing_right() -> None:
    for test in ("def check(candidate): pass", "x =", "raise ValueError"):
        assert run_tests("def f(n): return 1", {**SQUARE, "test": test}) is Reason.INVALID_GOLD


def test_no_text_is_compiled_in_our_own_process() -> None:
    program = f"""
import sys
from evals.grading.code.run import run_tests
compiled = []
sys.addaudithook(lambda event, arguments: compiled.append(str(arguments)) if event in ("compile", "exec") else None)
run_tests("marked_program = 1", {SQUARE!r} | {{"preamble": "marked_preamble = 1"}})
assert not [source for source in compiled if "marked" in source or "candidate" in source], compiled
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
