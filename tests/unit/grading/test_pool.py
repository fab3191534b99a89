"""The pool: one verdict per case, in order, whatever happens to the workers."""

import subprocess
import sys
from pathlib import Path

import pytest

from evals.core.errors import UserError
from evals.grading import Case, GradingPool, Kind, Reason
from evals.grading.pool import Undecided, examine
from evals.grading.workers import limited


def boxed(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def test_importing_and_integer_answers_load_neither_sympy_nor_multiprocessing() -> None:
    program = (
        "import sys\n"
        "from evals.grading import Case, GradingPool\n"
        "with GradingPool() as pool:\n"
        "    assert pool.grade([Case(r'\\boxed{4}', '4'), Case(r'\\boxed{\\frac{1}{2}}', '0.5')])[1].correct\n"
        "assert not {'torch', 'sympy', 'math_verify', 'multiprocessing'} & sys.modules.keys(), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_order_and_count_are_kept_and_equal_comparisons_are_made_once() -> None:
    cases = [
        Case(boxed("2"), "2"),
        Case(boxed(r"\sqrt{16}"), "4"),
        Case("no box", "2"),
        Case(boxed(r"\sqrt{16}"), "5"),
        Case(boxed(r"\sqrt{16}"), "4"),
        Case(boxed("3"), ""),
        Case(boxed("@#"), "x+1"),
    ]
    expected = [
        Reason.MATCH,
        Reason.MATCH,
        Reason.NO_ANSWER,
        Reason.MISMATCH,
        Reason.MATCH,
        Reason.INVALID_GOLD,
        Reason.UNPARSABLE,
    ]
    with GradingPool(workers=1) as pool:
        verdicts = pool.grade(cases)
        assert [verdict.reason for verdict in verdicts] == expected
        assert [verdict.correct for verdict in verdicts] == [reason is Reason.MATCH for reason in expected]
        assert pool._processes is not None
        pool._processes.close()
        pool._processes.compare = lambda pairs: pytest.fail(f"asked again for {pairs}")  # type: ignore[method-assign]
        assert [verdict.reason for verdict in pool.grade(reversed(cases))] == expected[::-1]
        pool._processes = None
    assert pool.grade([]) == []


def test_only_algebra_leaves_the_calling_process() -> None:
    assert isinstance(examine(Case(boxed("x+1"), "1+x")), Undecided)
    for answer, gold in [("42", "42"), ("42", "43"), ("(1,2)", "(2,1)"), (r"\frac{1}{2}", "0.5"), ("3", "1,2")]:
        assert not isinstance(examine(Case(boxed(answer), gold)), Undecided)


def test_verdicts_carry_the_answer_but_not_all_of_a_bomb() -> None:
    with GradingPool(workers=1) as pool:
        verdicts = pool.grade([Case(boxed(" 42 "), "42"), Case(boxed("{" * 50_000 + "}" * 50_000), "42")])
    assert verdicts[0].answer == "42"
    assert verdicts[1].reason is Reason.UNPARSABLE
    assert len(verdicts[1].answer or "") <= 1_000


@pytest.mark.parametrize(("raised", "reason"), [(OverflowError, Reason.WORKER_DIED), (MemoryError, Reason.MEMORY)])
def test_an_error_costs_one_verdict(monkeypatch: pytest.MonkeyPatch, raised: type[Exception], reason: Reason) -> None:
    def refuse(answer: str, gold: str) -> bool:
        raise raised(answer, gold)

    with GradingPool(workers=1) as pool, monkeypatch.context() as patched:
        patched.setattr("evals.grading.pool.decide_quantities", refuse)
        verdicts = pool.grade([Case(boxed("42"), "42"), Case(boxed("(1,2)"), "(1,2)"), Case(boxed("7"), "8")])
    assert [verdict.reason for verdict in verdicts] == [Reason.MATCH, reason, Reason.MISMATCH]
    assert [verdict.error for verdict in verdicts] == [None, raised.__name__, None]


@pytest.mark.parametrize(("raised", "reason"), [(ValueError, Reason.UNPARSABLE), (AssertionError, Reason.WORKER_DIED)])
def test_what_algebra_raises_is_no_judgement(raised: type[Exception], reason: Reason) -> None:
    def refuse() -> Reason:
        raise raised

    assert limited(refuse, 5.0).reason is reason


@pytest.mark.parametrize(
    "answer", ["1e" + "9" * 19, "\ud800", "5\x00", "9" * 1_900 + "^\\circ 30'", "10^{-" + "9" * 19 + "}"]
)
def test_hostile_numbers_are_judged_in_the_grader_itself(answer: str) -> None:
    for gold in ("5", r"5\text{ ft }6\text{ in}", "(1,2)", "204_5", "3:4"):
        assert getattr(examine(Case(boxed(answer), gold)), "error", None) is None
        assert getattr(examine(Case(boxed(gold), answer)), "error", None) is None


def test_choices_and_their_alias() -> None:
    with GradingPool() as pool:
        verdicts = pool.grade(
            [Case("I think it is\nAnswer: C", "(C) 42", Kind.CHOICE), Case("Answer: D", "C", Kind("mcq"))]
        )
    assert [verdict.correct for verdict in verdicts] == [True, False]


@pytest.mark.parametrize(
    "limits", [{"workers": 0}, {"time_limit": 0.0}, {"time_limit": float("nan")}, {"memory_limit": 1_000_000}]
)
def test_limits_out_of_range_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(UserError, match="accepted"):
        GradingPool(**limits)  # type: ignore[arg-type]


def test_workers_that_cannot_come_up_are_an_error_and_no_verdict(tmp_path: Path) -> None:
    """A script without a guard starts itself again in each worker, which Python refuses."""
    script = tmp_path / "script.py"
    script.write_text(
        "from evals.grading import Case, GradingPool\n"
        'cases = [Case("\\\\boxed{\\\\sqrt{%d}+x}" % (n * n), f"{n}+x") for n in range(1, 4)]\n'
        "with GradingPool(workers=1) as pool:\n"
        "    print(pool.grade(cases))\n"
    )
    answer = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode != 0 and not answer.stdout
    assert answer.stderr.splitlines()[-1].startswith("evals.core.errors.UserError: grading: no worker process comes up")
