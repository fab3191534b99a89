"""The grader against text that wants to run, to hang, to eat memory, or to kill."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from evals.grading import Case, GradingPool, Reason
from evals.grading.pool import examine

SLOW = r"\sum_{k=1}^{10^{12}} \frac{1}{k}"

BOMBS = [
    SLOW,
    r"10^{10^{10}}",
    r"2^{2^{2^{2^{2^{2}}}}}",
    "1000000000!",
    "((10!)!)!",
    r"\binom{10^{9}}{5\cdot 10^{8}}",
    r"\prod_{k=1}^{100000000} k",
    "(" * 50 + "1" + ")" * 50,
    "{" * 50_000 + "}" * 50_000,
    "1" * 50_000,
    "x" * 20_000,
    r"\frac{" * 1_000 + "1",
    r"\left(" * 300,
    "1," * 900 + "1",
    "-" * 900 + "1",
]

PAYLOADS = [
    "__import__('os').system('touch {mark}')",
    "open('{mark}', 'w')",
    "exec(\"open('{mark}', 'w')\")",
    "().__class__.__base__.__subclasses__()",
    "sympify(\"open('{mark}', 'w')\")",
    "{mark}.__globals__",
]
PLACES = ["{}", r"\text{{{}}}", r"\{{{}, 1\}}", "({},2)", "x={}", r"\frac{{{}}}2", "{}+1", "x_{{{}}}", "x<{}", "[{},2)"]


def boxed(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def worker_ids() -> list[int]:
    """Processes forked from the fork server of this process."""
    servers = psutil.Process().children()
    return [
        worker.pid for server in servers for worker in server.children() if "forkserver" in " ".join(server.cmdline())
    ]


def test_bombs_delay_nobody_beyond_their_limits() -> None:
    cases = [case for bomb in BOMBS for case in (Case(boxed(bomb), "42"), Case(boxed(r"\sqrt{1764}"), "42"))]
    limit = 6.0
    start = time.monotonic()
    with GradingPool(workers=2, time_limit=limit) as pool:
        verdicts = pool.grade(cases)
    assert not any(verdict.correct for verdict in verdicts[::2])
    assert all(verdict.correct for verdict in verdicts[1::2])
    assert verdicts[0].reason is Reason.TIMEOUT
    never_started_on = [verdict.reason for verdict in verdicts[2:14:2]]  # powers, factorials, a binomial, a product
    assert never_started_on == [Reason.UNPARSABLE] * 6
    assert time.monotonic() - start < limit * len(BOMBS)


def test_text_is_never_compiled_or_executed(tmp_path: Path) -> None:
    """An audit hook sees every compilation of source text, in whatever library; there is none."""
    mark = tmp_path / "mark"
    program = f"""
import sys
from evals.grading.pool import examine, Undecided
from evals.grading.verdict import Case
from evals.grading import symbolic
compiled = []
symbolic.judge("x+1", "1+x")
sys.addaudithook(lambda event, arguments: compiled.append(arguments) if event == "compile" and arguments[0] else None)
for payload in {[payload.format(mark=mark) for payload in PAYLOADS]!r}:
    for place in {PLACES!r}:
        for gold in ("42", "x+1", r"\\{{1,2\\}}", "x<1", "[1,2)", payload):
            answer = place.format(payload)
            examined = examine(Case(r"\\boxed{{%s}}" % answer, gold))
            if isinstance(examined, Undecided):
                symbolic.judge(examined.answer, examined.gold)
assert not compiled, compiled[0]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
    assert not mark.exists()


def test_numbers_are_not_compiled_either() -> None:
    """SymPy compiles sources of its own, and would compile every literal of an answer that is given to it as text."""
    program = r"""
import sys
from evals.grading import symbolic
compiled = []
sys.addaudithook(lambda event, arguments: compiled.append(str(arguments[0])) if event == "compile" else None)
for answer in ("918273645", "918.273645", "918,273,645", r"\sqrt{918273645}", r"\{918273645, 1\}", "918273645 x",
               r"\frac{918273645}{7}", "918.273645E5", "918273645!", r"x_{918273645}", "[918273645, 3)", "x<918273645"):
    symbolic.judge(answer, "x+1")
    assert not any("918" in source for source in compiled), (answer, compiled)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def kill_busy_workers() -> None:
    """Kill the worker processes as soon as one has computed for a while."""
    before = {pid: psutil.Process(pid).cpu_times().user for pid in worker_ids()}
    while all(psutil.Process(pid).cpu_times().user < spent + 0.5 for pid, spent in before.items()):
        time.sleep(0.05)
    for pid in before:
        os.kill(pid, signal.SIGKILL)


def test_a_killed_worker_costs_one_verdict() -> None:
    with GradingPool(workers=1, time_limit=120.0) as pool:
        assert pool.grade([Case(boxed(r"\sqrt{16}"), "4")])[0].correct
        killer = threading.Thread(target=kill_busy_workers)
        killer.start()
        verdicts = pool.grade(
            [Case(boxed(SLOW), "42"), *(Case(boxed(rf"\sqrt{{{n * n}}}"), str(n)) for n in range(2, 12))]
        )
        killer.join()
    assert verdicts[0].reason is Reason.WORKER_DIED
    assert all(verdict.correct for verdict in verdicts[1:])


def test_idle_workers_may_be_killed() -> None:
    with GradingPool(workers=2, time_limit=60.0) as pool:
        assert pool.grade([Case(boxed(r"\sqrt{16}"), "4")])[0].correct
        for pid in worker_ids():
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
        assert all(
            verdict.correct for verdict in pool.grade(Case(boxed(rf"\sqrt{{{n * n}}}"), str(n)) for n in range(5, 9))
        )


def test_memory_is_bounded() -> None:
    """A worker cannot allocate beyond its limit, and says so."""
    program = """
import resource, sys
from evals.grading import symbolic, workers
limit = 700 * 1024**2
workers.initialise(limit)
assert resource.getrlimit(resource.RLIMIT_AS) == (limit, limit)
symbolic.judge = lambda answer, gold: bytearray(2 * limit)
assert workers.judge("1", "2", 5.0)[0].value == "memory"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


@pytest.mark.parametrize(
    "token",
    [
        "\\",
        "\\\\",
        " ",
        "~",
        "1",
        "1,",
        r"\boxed",
        r"\boxed{1},",
        "Answer: ",
        "answer is ",
        "{",
        "$",
        "<answer>",
        "\nA",
        "\nProblem: ",
        "(about ",
    ],
)
def test_reading_takes_bounded_time(token: str) -> None:
    """No pattern takes more than quadratic time, on text of the length that it is applied to."""
    start = time.process_time()
    repeated = token * (100_000 // len(token)), boxed(token * (1_900 // len(token))), "Answer: " + token * 4_000 + "x"
    for text in repeated:
        for kind in ("completion", "answer", "choice"):
            examine(Case(text, "42", kind))  # type: ignore[arg-type]
    assert time.process_time() - start < 5
