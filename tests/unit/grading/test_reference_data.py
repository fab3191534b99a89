"""The shared cases, benchmarks and labelled outputs: read where they lie, never copied."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.grading import Case, GradingPool, Kind

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
    wrong = {
        row["id"]: row["expected"]
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.correct != row["expected"]
    }
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
