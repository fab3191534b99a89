"""The shared cases, benchmarks and labelled outputs: read where they lie, never copied."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.core.files import read_jsonl
from evals.grading import Case, GradingPool, Kind, Reason
from evals.grading.workers import WorkerProcesses

DATA = Path(__file__).parents[4] / "shared/data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is absent")

UPSTREAM_FALSE_NEGATIVES = {("qwen-math100-072", 7)}  # gold 10{,}000, answer 10000, labelled wrong
NOT_READ = {  # docs/grading.md, known limits
    "adv-alg-122",  # cis
    "adv-fmt-263",  # 4k+1 for 4n+1: a variable of the question may not be renamed
}
BENCHMARKS = ("aime26", "amc23", "brumo25", "hmmt_feb_2025", "hmmt_feb_2026", "hmmt_nov_2025")


def read(name: str) -> list[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as handle:
        return [json.loads(line) for line in handle]


@pytest.fixture(scope="module")
def pool() -> Iterator[GradingPool]:
    with GradingPool(workers=2, time_limit=10.0) as pool:
        yield pool


def test_core_cases(pool: GradingPool) -> None:
    rows = [
        row
        for row in read("grader_cases.jsonl")
        if not row.keys() & {"policy", "questionable", "contested"} and row["kind"] != "mcq"
    ]
    verdicts = pool.grade(Case(row["pred"], row["gold"], Kind(row["kind"])) for row in rows)
    wrong = [row["id"] for row, verdict in zip(rows, verdicts, strict=True) if verdict.correct != row["expected"]]
    assert len(rows) > 400
    assert wrong == []


def test_cases_of_the_second_review(pool: GradingPool) -> None:
    """No wrong answer is accepted, conventions included; of the right ones hardly any is missed."""
    rows = read("grader_cases_2.jsonl")
    verdicts = pool.grade(Case(row["text"], row["answer"], Kind(row["kind"]), bool(row["truncated"])) for row in rows)
    pairs = zip(rows, verdicts, strict=True)
    wrong = {row["id"]: row["expected"] for row, verdict in pairs if verdict.correct != row["expected"]}
    assert [name for name, expected in wrong.items() if not expected] == []
    assert set(wrong) <= NOT_READ


def test_multiple_choice_cases(pool: GradingPool) -> None:
    rows = [row for row in read("grader_cases.jsonl") if row["kind"] == "mcq"]
    verdicts = pool.grade(Case(row["pred"], row["gold"], Kind.CHOICE) for row in rows)
    assert [verdict.correct for verdict in verdicts] == [row["expected"] for row in rows]


def test_labelled_outputs(pool: GradingPool) -> None:
    rows = read("outputs/qwen25math_math100x8.jsonl")
    labelled = [
        (row["id"], index, Case(text, row["answer"]), bool(label))
        for row in rows
        for index, (text, label) in enumerate(zip(row["completions"], row["upstream_correct"], strict=True))
    ]
    verdicts = pool.grade(case for _, _, case, _ in labelled)
    differing = {
        (name, index)
        for (name, index, _, label), verdict in zip(labelled, verdicts, strict=True)
        if verdict.correct != label
    }
    assert differing == UPSTREAM_FALSE_NEGATIVES


def test_labelled_extractions(pool: GradingPool) -> None:
    rows = read("outputs/llama32-3b_aime2020_8samples_17problems.jsonl")
    cases = [Case(answer or "", row["answer"], Kind.ANSWER) for row in rows for answer in row["extracted"]]
    labels = [label for row in rows for label in row["correct"]]
    assert [verdict.correct for verdict in pool.grade(cases)] == labels


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_golds_match_themselves_and_not_their_neighbours(pool: GradingPool, benchmark: str) -> None:
    """Every gold equals itself, also with \\dfrac; with its last digit changed it is another answer."""
    golds = [row["answer_norm"] for row in read(f"benchmarks/{benchmark}.jsonl")]
    equal = [(rf"\boxed{{{gold.replace(chr(92) + 'frac', chr(92) + 'dfrac')}}}", gold) for gold in golds]
    near = [
        (rf"\boxed{{{re.sub(r'[0-9](?=[^0-9]*$)', lambda digit: str((int(digit[0]) + 1) % 10), gold)}}}", gold)
        for gold in golds
        if re.search(r"\d", gold)
    ]
    assert [pair for pair, verdict in grade(pool, equal) if not verdict] == []
    assert [pair for pair, verdict in grade(pool, near) if verdict] == []


def grade(pool: GradingPool, pairs: list[tuple[str, str]]) -> list[tuple[tuple[str, str], bool]]:
    verdicts = pool.grade(Case(answer, gold) for answer, gold in pairs)
    return [(pair, verdict.correct) for pair, verdict in zip(pairs, verdicts, strict=True)]


# Invented cases: answers and their neighbours, right and wrong, by family (``cases.jsonl``).

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
