"""Logs of other tools and texts of models that nobody would write: read and graded, or refused in one line.

Seconds of it run with the other tests, ``make fuzz`` for hours. What is found becomes an ``@example``.
"""

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evals.core.errors import UserError
from evals.grading import Case, GradingPool, Kind, Reason
from evals.grading.exact import decide
from evals.grading.extraction import extract_answer
from evals.grading.grade_file import grade_lines
from evals.grading.normalisation import normalise
from evals.logs.formats import read_logs
from evals.logs.response import Judging, golds_of, samples_of
from tests.security.hostile import CASES, damaged, many, one_line, places, replaced, values

FILES = Path(__file__).resolve().parents[1] / "unit/logs/files"
LOGS = sorted(path for path in FILES.rglob("*") if path.is_file() and path.name != "README.md")
GRADED = [json.loads(line) for line in (FILES.parents[1] / "grading/cases.jsonl").read_text().splitlines()]


def read(path: Path, columns: dict[str, str]) -> None:
    """Read a log as the commands do, and what they ask of it."""
    try:
        for log in read_logs(path, columns):
            if not Judging().grades_here(log):
                with suppress(UserError):
                    Judging().grades(log)
            with suppress(UserError):
                samples_of(log)
            golds_of(log)
    except UserError as error:
        one_line(error)


@many
@given(st.data(), st.sampled_from(LOGS))
def test_a_damaged_log_is_read_or_refused(tmp_path: Path, data: st.DataObject, log: Path) -> None:
    path = tmp_path / log.name
    path.write_bytes(data.draw(damaged(log.read_bytes())))
    columns = {"problem": "question", "correct": "right"} if log.suffix == ".csv" else {}
    read(path, data.draw(st.sampled_from([{}, columns, {"problem": "problem", "text": "text"}])))


def test_a_parquet_log_whose_column_has_no_name_in_unicode_is_refused(tmp_path: Path) -> None:
    log = FILES / "lighteval/mock-1/2026-11-22/details_sums.parquet"
    path = tmp_path / log.name
    path.write_bytes(log.read_bytes().replace(b"generation_grammar", b"\x80eneration_grammar"))
    with pytest.raises(UserError, match="is no sound parquet file"):
        read_logs(path, {})


def test_a_column_whose_name_has_two_lines_is_named_in_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a\\nb": 1}\n')
    read(path, {"problem": "problem", "text": "text"})


def test_a_problem_without_a_finite_text_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"results": {"AIME24": {"examples": [{"problem": [Infinity], "model_outputs": ["5"]}]}}}')
    (log,) = read_logs(path, {})
    assert len(log.responses) == 1


def documents_of(path: Path) -> list[Any]:
    """The JSON documents of a file: one, or one a line."""
    text = path.read_text()
    return [json.loads(part) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]


DOCUMENTS = {path: documents_of(path) for path in LOGS if path.suffix in (".json", ".jsonl")}


@many
@given(st.data(), st.sampled_from(sorted(DOCUMENTS)), values)
def test_a_log_is_read_or_refused_in_one_line(tmp_path: Path, data: st.DataObject, log: Path, value: Any) -> None:
    documents = DOCUMENTS[log]
    changed = replaced(documents, data.draw(st.sampled_from(places(documents)[1:])), value)
    path = tmp_path / log.name
    path.write_text("\n".join(map(json.dumps, changed)))
    read(path, {})


PARQUET = {path: pd.read_parquet(path) for path in LOGS if path.suffix == ".parquet"}


@settings(many, max_examples=max(20, CASES // 10))
@given(st.data(), st.sampled_from(sorted(PARQUET)))
def test_a_parquet_log_with_another_column_is_read_or_refused(tmp_path: Path, data: st.DataObject, log: Path) -> None:
    frame = PARQUET[log].copy()
    column = data.draw(st.sampled_from(list(frame)))
    value = data.draw(st.sampled_from([None, 1, 0.5, "a", float("nan"), b"a", [1], ["a"], {"a": 1}, {"gold": ["a"]}]))
    frame[column] = [value] * len(frame)
    frame.to_parquet(path := tmp_path / log.name)
    read(path, {})


MATHS = r"\boxed{ \fbox{ } { $ $$ \( \) \[ \] \frac \sqrt \text{ ^ _ \left( \right) \cdot \pi \pm \cup \infty & \\"
SIGNS = r"| < > [ ] \begin{pmatrix} \end{pmatrix} \begin{cases} \end{cases} , ; = ! % i e x A B (A) ² ٣"
NUMBERS = "10 1/2 0.5 -3 1e999 1,000 12_5 2^{10}"
WORDS = "<answer> </answer> <think> </think> Answer: **Answer:** 答案： #### or and not degrees squared"
pieces = st.sampled_from(
    [*f"{MATHS} {SIGNS} {NUMBERS} {WORDS}".split(), "Final answer is", "\n", " ", "\x00", "\ud800", "\u202e", "9" * 400]
)
kept = st.sampled_from([part for case in GRADED for part in (str(case["answer"]), str(case["text"]))])
responses = st.lists(pieces | kept | st.text(max_size=10), max_size=12).map("".join)


@many
@given(responses, responses, st.sampled_from(Kind), st.booleans(), st.booleans())
@example("12_5", "", Kind.ANSWER, False, False)
def test_an_answer_or_a_reason_is_found(text: str, other: str, kind: Kind, truncated: bool, in_thinking: bool) -> None:
    found = extract_answer(text, kind, truncated, in_thinking)
    assert isinstance(found, Reason) or found.strip()
    assert decide(text, text) is not False
    assert decide(text, other) in (True, False, None)
    normalise(text)


@pytest.fixture(scope="module")
def pool() -> Iterator[GradingPool]:
    with GradingPool(workers=1, time_limit=1.0) as pool:
        yield pool


@settings(many, max_examples=max(20, CASES // 50))
@given(st.lists(st.builds(Case, responses, responses | kept, st.sampled_from(Kind), st.booleans()), max_size=20))
def test_every_case_has_a_verdict_and_the_same_one_again(pool: GradingPool, cases: list[Case]) -> None:
    verdicts = pool.grade(cases)
    assert len(verdicts) == len(cases)
    for first, second in zip(verdicts, pool.grade(cases), strict=True):
        assert first.correct == (first.reason is Reason.MATCH)
        if first.reason not in (Reason.TIMEOUT, Reason.MEMORY, Reason.WORKER_DIED):
            assert (first.answer, first.reason) == (second.answer, second.reason)


LINE = {"id": 1, "pred": "\\boxed{2}", "gold": "2", "kind": "completion", "truncated": False, "in_thinking": True}


@settings(many, max_examples=max(20, CASES // 10))
@given(st.sampled_from(places(LINE)), values)
@example(("id",), "\ud800")
@example(("kind",), [])
def test_lines_to_grade_are_answered_or_refused(pool: GradingPool, place: tuple[Any, ...], value: Any) -> None:
    lines = [json.dumps(replaced(LINE, place, value)).encode(), json.dumps(LINE).encode()]
    answers = io.StringIO()
    try:
        grade_lines(lines, answers, pool)
    except UserError as error:
        one_line(error)
        assert not answers.getvalue()
    else:
        assert [set(json.loads(line)) for line in answers.getvalue().splitlines()] == [
            {"id", "correct", "answer", "reason", "seconds"}
        ] * 2
