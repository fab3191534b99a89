"""Invented cases: answers and their neighbours, right and wrong, by family (``cases.jsonl``)."""

from pathlib import Path

from evals.core.files import read_jsonl
from evals.grading import Case, GradingPool, Kind, Reason
from evals.grading.workers import WorkerProcesses

CASES = Path(__file__).with_name("cases.jsonl")
ENDLESS = r"\int_0^\infty \frac{\sin(x^{x})}{x^{x^{x}}}dx"


def test_invented_cases() -> None:
    rows = read_jsonl(CASES)
    with GradingPool(workers=1, time_limit=20) as pool:
        verdicts = pool.grade(
            Case(row["text"], row["answer"], Kind(row["kind"]), row.get("truncated", False)) for row in rows
        )
    assert len(rows) > 600
    assert [
        (row["id"], row["text"], verdict.answer, verdict.reason)
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.correct != row["expected"]
    ] == []


def test_thinking_that_the_prompt_opened_counts_for_nothing() -> None:
    def reason(text: str, truncated: bool, kind: Kind = Kind.COMPLETION, gold: str = "7") -> Reason:
        with GradingPool(workers=1) as pool:
            return pool.grade([Case(text, gold, kind, truncated, in_thinking=True)])[0].reason

    assert reason(r"so \boxed{7} hmm let me check", True) is Reason.TRUNCATED
    assert reason(r"so \boxed{7} and that is all", False) is Reason.NO_ANSWER
    assert reason(r"so \boxed{8}</think>It is \boxed{7}.", False) is Reason.MATCH
    assert reason(r"so \boxed{7}</think>It is \boxed{8}", False) is Reason.MISMATCH
    assert reason("the answer is C", True, Kind.CHOICE, "C") is Reason.TRUNCATED
    assert reason("A?</think>the answer is C", False, Kind.CHOICE, "C") is Reason.MATCH


def test_the_limit_is_on_processor_time() -> None:
    """A comparison that computes is ended by its own process, one that waits by nobody for a while."""
    processes = WorkerProcesses(1, 0.5, 2 * 1024**3)
    try:
        outcomes = processes.compare([(ENDLESS, "42"), ("x+1", "1+x")])
    finally:
        processes.close()
    assert outcomes[ENDLESS, "42"] == (Reason.TIMEOUT, 0.5, None)
    assert outcomes["x+1", "1+x"][0] is Reason.MATCH
