"""The audit: rates from the grades, and a second grader that shares nothing with the first."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evals.audit.grade import SecondGrader
from evals.core.files import read_json, read_jsonl, write_jsonl
from evals.core.manifest import verify_outputs
from evals.core.records import Run
from evals.grading.verdict import Kind, Reason
from evals.tables.audit import audit_tables, read_audits
from tests import stages
from tests.artifacts import write_rows

PROBLEMS = [{"id": "p1", "problem": "?", "answer": "7"}, {"id": "p2", "problem": "?", "answer": "1/2"}]
TEXTS = [
    ("p1", r"so \boxed{7}", "stop"),  # both
    ("p1", r"so \boxed{8}", "stop"),  # neither
    ("p1", "so the total is 7", "stop"),  # only the second takes a last number
    ("p1", "so the total is 7", "length"),
    ("p2", r"\boxed{5 \cdot 10^{-1}}", "stop"),  # both
    ("p2", "nothing", "stop"),
    ("p2", r"\boxed{\oplus\ominus}", "stop"),  # not judged by us
    ("p2", r"Answer: \(\sqrt{\frac{1}{4}}\) or so", "stop"),
]


def write_samples(root: Path, kind: str, texts: list[tuple[str, str, str]], **extra: str) -> None:
    """Problems, samples and grades of run ``r`` on benchmark ``b``."""
    write_jsonl(root / "problems.jsonl", PROBLEMS)
    numbers: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for problem, text, finish in texts:
        numbers[problem] = numbers.get(problem, -1) + 1
        identity = {"problem_id": problem, "sample": numbers[problem]}
        rows.append({**identity, "text": text, "tokens": 3, "finish_reason": finish, **extra})
    samples = root / "samples/r/b/samples.jsonl"
    write_rows(samples, "samples", rows)
    stages.grade(samples, root / "problems.jsonl", root / "grades/r/b", kind)


def audit(root: Path) -> int:
    directories = root / "samples/r/b", root / "grades/r/b"
    return stages.status(stages.audit, *directories, root / "problems.jsonl", root / "b.json")


def test_rates_and_disagreements_are_counted(tmp_path: Path) -> None:
    write_samples(tmp_path, "completion", TEXTS)
    assert audit(tmp_path) == 0
    row = read_json(tmp_path / "b.json")["audit"]
    own = {key: row[key] for key in ("samples", "correct", "truncated", "no_answer", "unparsable", "timeouts")}
    assert own == {"samples": 8, "correct": 3, "truncated": 1, "no_answer": 3, "unparsable": 1, "timeouts": 0}
    second = row["second"]
    assert (second["compared"], second["failed"], second["only_ours"], second["only_second"]) == (8, 0, 0, 2)
    assert [(entry["problem_id"], entry["sample"], entry["ours"]) for entry in second["disagreements"]] == [
        ("p1", 2, "no_answer"),
        ("p1", 3, "truncated"),
    ]
    manifest = verify_outputs(tmp_path / "b.manifest.json", "audit")
    assert {Path(name).name for name in manifest.inputs} == {"problems.jsonl", "samples.jsonl", "grades.jsonl.bz2"}


def test_the_table_says_where_the_last_statement_counted(tmp_path: Path) -> None:
    write_samples(tmp_path, "last_statement", TEXTS)
    assert audit(tmp_path) == 0
    content = read_json(tmp_path / "b.json")
    assert (content["extraction"], content["audit"]["correct"]) == ("last_statement", 4)
    run = Run(run="r", model="m", method="base", seed=None, title="R")
    (tmp_path / "grades/r/b/audit.json").write_bytes((tmp_path / "b.json").read_bytes())
    tables = audit_tables(read_audits(tmp_path, ["b"], [run]))
    assert [table.notes[-1].startswith("Extraction last_statement: b.") for table in tables] == [True, True]


def test_withheld_texts_are_not_compared(tmp_path: Path) -> None:
    write_samples(tmp_path, "completion", [("p1", r"\boxed{7}", "stop")], text_sha256="0" * 64)
    assert audit(tmp_path) == 0
    row = read_json(tmp_path / "b.json")["audit"]
    assert row["no_second_because"] == "withheld" and row["second"] is None and row["correct"] == 1


def test_a_share_of_the_easy_texts_and_all_others_are_asked_about(tmp_path: Path) -> None:
    """The same ones each time; the rates of the grades are of all samples."""
    easy = [("p1", rf"{number} apples, so \boxed{{{number % 9}}}", "stop") for number in range(200)]
    hard = [("p2", rf"{number} pears, so \boxed{{\frac{{{number}}}{{2}}}}", "stop") for number in range(1, 5)]
    write_samples(tmp_path, "completion", [*easy, *hard, TEXTS[6]])
    directories = tmp_path / "samples/r/b", tmp_path / "grades/r/b"
    contents = []
    for _ in range(2):
        stages.audit(*directories, tmp_path / "problems.jsonl", tmp_path / "b.json", share=0.125)
        contents.append((tmp_path / "b.json").read_bytes())
    row = read_json(tmp_path / "b.json")["audit"]
    asked = row["second"]["compared"] + row["second"]["failed"]
    assert row["samples"] == 205 and 5 + 10 < asked < 5 + 45  # binomial: 25 +- 4.7
    assert contents[0] == contents[1]
    run = Run(run="r", model="m", method="base", seed=None, title="R")
    (tmp_path / "grades/r/b/audit.json").write_bytes((tmp_path / "b.json").read_bytes())
    tables = audit_tables(read_audits(tmp_path, ["b"], [run]))
    assert "12.5 % of the samples whose answer is a number" in tables[0].notes[0]
    stages.audit(*directories, tmp_path / "problems.jsonl", tmp_path / "b.json", share=1e-9)
    assert read_json(tmp_path / "b.json")["audit"]["second"]["compared"] == 5


def test_grades_of_other_samples_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_samples(tmp_path, "completion", TEXTS)
    samples = tmp_path / "samples/r/b/samples.jsonl"
    write_rows(samples, "samples", [row | {"text": row["text"].replace("8", "9")} for row in read_jsonl(samples)])
    capsys.readouterr()
    assert audit(tmp_path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "are not the grades of" in error
    assert not (tmp_path / "b.json").exists()


def test_the_second_grader_reads_letters_numbers_and_bombs() -> None:
    second = SecondGrader(workers=1)
    try:
        letters = second.opinions(Kind.CHOICE, [("Answer: C", "C"), ("I choose (B)... Answer: B", "C"), ("?!", "C")])
        texts = [("it is 3/4 + 1/4.", "1"), ("2^10", "1024"), ("2 * 3^2 = x", "18"), ("half", "2"), (r"\boxed{2}", "2")]
        numbers = second.opinions(Kind.COMPLETION, texts)
        bomb = second.opinions(Kind.COMPLETION, [(r"\boxed{10^{10^{10}}}", "42"), (r"\boxed{42}", "42")])
    finally:
        second.close()
    assert letters == [Reason.MATCH, Reason.MISMATCH, Reason.NO_ANSWER]
    assert numbers == [Reason.MATCH, Reason.MATCH, Reason.MATCH, Reason.NO_ANSWER, Reason.MATCH]
    assert bomb[0] is not Reason.MATCH and bomb[1] is Reason.MATCH


def test_the_second_grader_compiles_no_text() -> None:
    """An audit hook sees every compilation of source text; plain math-verify compiles every number."""
    program = r"""
import sys
from evals.audit.second_grader import judge_choice, judge_text
compiled = []
sys.addaudithook(lambda event, arguments: compiled.append(str(arguments[0])) if event == "compile" else None)
texts = "1/2 + 1/918273645", "Answer: 2^10 - 918273645", "918273645", "918.273645", "918,273,645", r"\boxed{918273645}"
payloads = "__import__('os').getppid(918273645)", "$x.__class__+918273645$", "(1)(2) - 3*918273645", "918273645 % x"
for text in (*texts, *payloads):
    judge_text(text, "1000", 60.0), judge_text(text, text, 60.0), judge_choice(text, "B", 60.0)
    assert not any("918" in source or "getppid" in source for source in compiled), (text, compiled)
print("ok")
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600)
    assert answer.stdout == "ok\n", answer.stderr
