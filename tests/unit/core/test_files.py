"""Text that no file can hold must not stop a study: half a surrogate pair, as damaged bytes can decode to."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from evals.core.files import read_json, read_jsonl, write_json, write_jsonl, write_text
from evals.grading import Case, GradingPool, Kind, Reason

_ANY_TEXT = st.text(st.characters(exclude_categories=()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(_ANY_TEXT)
@example("\ud800 x\udfff")
@example("\ud83d\ude00")
def test_json_lines_hold_any_text(tmp_path: Path, text: str) -> None:
    pair = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # two halves side by side are one
    write_jsonl(tmp_path / "x.jsonl", [{"text": text}, {"text": text}])
    write_json(tmp_path / "x.json", {"text": text})
    assert read_jsonl(tmp_path / "x.jsonl") == [{"text": pair}] * 2
    assert read_json(tmp_path / "x.json") == {"text": pair}


def test_plain_text_shows_a_question_mark(tmp_path: Path) -> None:
    write_text(tmp_path / "x.md", "a\ud800b\U0001f600")
    assert (tmp_path / "x.md").read_text(encoding="utf-8") == "a?b\U0001f600"


def test_answers_with_half_a_pair_are_graded() -> None:
    cases = [
        Case("\ud800 so \\boxed{7}\udfff", "7"),
        Case("\\boxed{7\ud800}", "7"),
        Case("\\boxed{x+\ud83d}", "x+1"),
        Case("Answer: \udc00", "B", Kind.CHOICE),
        Case("\\boxed{\\sqrt{4}}", "2\ud800"),
    ]
    with GradingPool(workers=1) as pool:
        verdicts = pool.grade(cases)
    assert [verdict.correct for verdict in verdicts] == [True, False, False, False, False]
    assert verdicts[3].reason is Reason.NO_ANSWER
    for verdict in verdicts:
        (verdict.answer or "").encode("utf-8")
