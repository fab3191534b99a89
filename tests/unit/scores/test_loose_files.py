"""Files that other engines and people write: what is read, and what is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.core.files import write_jsonl
from tests.artifacts import write_rows
from tests.commands import rlvr_bench

main = rlvr_bench()

PROBLEMS, SAMPLES = 12, 4
BOM = b"\xef\xbb\xbf"


def is_correct(problem: int, sample: int) -> bool:
    return (7 * problem + 3 * sample) % 5 < 2


def grades(answer: str = "7") -> list[dict[str, Any]]:
    return [
        {
            "problem_id": f"p{problem}", "sample": sample, "correct": is_correct(problem, sample), "answer": answer,
            "reason": "match" if is_correct(problem, sample) else "mismatch", "tokens": 9, "finish_reason": "stop",
        }
        for problem in range(PROBLEMS) for sample in range(SAMPLES)
    ]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def scored(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["score", *map(str, words), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["scores"]
    return dict(row)


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([*map(str, words)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1
    return message


def test_samples_of_another_engine_may_lack_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = write(tmp_path / "p.jsonl", [{"id": f"p{n}", "answer": "7"} for n in range(PROBLEMS)])
    texts = [
        {"problem_id": f"p{n}", "sample": k, "text": f"\\boxed{{{7 if is_correct(n, k) else 8}}}"}
        for n in range(PROBLEMS)
        for k in range(SAMPLES)
    ]
    samples = write(tmp_path / "s.jsonl", texts)
    for path in (problems, samples):
        path.write_bytes(BOM + path.read_bytes())
    row = scored(capsys, samples, "--problems", problems)
    right = sum(is_correct(n, k) for n in range(PROBLEMS) for k in range(SAMPLES))
    assert row["average_at_k"] == pytest.approx(right / (PROBLEMS * SAMPLES))
    assert row["truncation_rate"] is None and row["mean_tokens"] is None and row["total_tokens"] is None
    assert main(["score", str(samples), "--problems", str(problems)]) == 0
    assert row["no_answer_rate"] == 0.0


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_lines_may_end_as_on_other_systems(end: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "g.jsonl", grades())
    as_usual = scored(capsys, path)
    path.write_bytes(path.read_bytes().replace(b"\n", end))
    assert scored(capsys, path) == as_usual


def test_files_may_be_compressed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, packed, own = (tmp_path / name for name in ("g.jsonl", "g.jsonl.bz2", "run/bench/grades.jsonl.bz2"))
    write_jsonl(packed, grades())
    write_rows(own, "grades", grades())
    as_usual = scored(capsys, write(plain, grades()))
    assert scored(capsys, packed) == as_usual | {"file": str(packed)}
    of_study = {"file": str(own), "run": "run", "benchmark": "bench", "verified": True}
    assert scored(capsys, own.parent) == as_usual | of_study
    own.with_name("manifest.json").unlink()
    own.write_bytes(own.read_bytes()[:-4])
    assert "grades.jsonl.bz2: is cut off" in refused(capsys, "score", own)


def test_any_samples_get_a_second_grader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain math-verify takes the last number of a text for its answer, ours takes a marked one only."""
    problems = write(tmp_path / "p.jsonl", [{"id": 1, "answer": "7"}])
    texts = (r"\boxed{7}", "so it is 7", r"\boxed{8}")
    samples = write(tmp_path / "s.jsonl", [{"problem_id": 1, "sample": n, "text": t} for n, t in enumerate(texts)])
    assert main(["audit", str(samples), "--problems", str(problems), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["audits"]
    assert (row["samples"], row["correct"], row["no_answer"], row["truncated"]) == (3, 1, 1, None)
    assert (row["second"]["compared"], row["second"]["only_ours"], row["second"]["only_second"]) == (3, 0, 1)
    assert row["second"]["disagreements"] == [{"problem_id": 1, "sample": 1, "ours": "no_answer", "second": "match"}]
    assert main(["audit", str(samples), "--problems", str(problems)]) == 0
    assert "where they differ (problem, sample: ours, second): 1 1: no_answer, match." in capsys.readouterr().out
    assert "has no text" in refused(capsys, "audit", write(tmp_path / "g.jsonl", grades()))


def test_ids_are_told_apart_by_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbered = [row | {"problem_id": int(row["problem_id"][1:])} for row in grades()]
    spelled = [row | {"problem_id": str(row["problem_id"])} for row in numbered]
    assert scored(capsys, write(tmp_path / "both.jsonl", numbered + spelled))["problems"] == 2 * PROBLEMS
    one, other = write(tmp_path / "numbers.jsonl", numbered), write(tmp_path / "text.jsonl", spelled)
    assert "no counterpart" in refused(capsys, "compare", one, other)
    assert "accepted: text or a whole number" in refused(
        capsys, "score", write(tmp_path / "null.jsonl", [row | {"problem_id": None} for row in numbered])
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correct": True, "reason": "mismatch"}, "reason: is 'mismatch' where correct is true"),
        ({"correct": False, "reason": "match"}, "reason: is 'match' where correct is false"),
        ({"correct": False, "reason": "wrong"}, "accepted: match, mismatch"),
        ({"sample": [0]}, "sample: is [0]"),
        ({"sample": -1}, "lacks sample 0"),
        ({"tokens": -1}, "tokens: is -1"),
        ({"tokens": float("nan")}, "tokens: is nan"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    first, *others = grades()
    assert message in refused(capsys, "score", write(tmp_path / "g.jsonl", [first | change, *others]))


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"correct":' * 5_000 + b"1" + b"}" * 5_000, b"\xff\xfe[", b""])
def test_what_is_not_parsed_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    assert str(path) in refused(capsys, "score", path)
    samples = write(tmp_path / "s.jsonl", [{"problem_id": "p0", "sample": 0, "text": "7"}])
    for problems in (path, tmp_path):
        assert str(problems) in refused(capsys, "score", samples, "--problems", problems)


_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(line=st.integers(0, 5), key=st.sampled_from([*grades()[0], "text"]), value=_ANY_JSON, cut=st.integers(0, 300))
def test_fuzzed_grades_are_scored_or_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: int, key: str, value: Any, cut: int
) -> None:
    rows = grades()
    rows[line][key] = value
    path = write(tmp_path / "fuzzed.jsonl", rows)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - cut] if cut < 150 else content[:cut] + content[cut + 2 :])
    status = main(["score", str(path)])
    printed = capsys.readouterr()
    assert status in (0, 2)
    assert (printed.err.count("\n") == 1 and printed.err.startswith("error: ")) if status else not printed.err


def test_one_run_under_several_names_is_no_sample_of_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seeds without variance would make any difference certain, and the claim would be about methods."""
    one, other = write(tmp_path / "one.jsonl", grades("7")), write(tmp_path / "other.jsonl", grades("70"))
    copy = write(tmp_path / "copy.jsonl", [row | {"seconds": 1.5} for row in grades("7")])
    assert "is given twice" in refused(capsys, "compare", f"{one},{tmp_path}/../{tmp_path.name}/one.jsonl", other)
    assert "the same grades" in refused(capsys, "compare", other, f"{one},{copy}")
    options = ("--resamples", "100", "--permutations", "100")
    assert main(["compare", f"{one},{other}", str(other), *options]) == 0  # another seed happens to be as good
    silent = [row | {"answer": None, "correct": False, "reason": "no_answer"} for row in grades()]
    collapsed = [write(tmp_path / f"{name}.jsonl", silent) for name in ("c1", "c2")]
    assert main(["compare", f"{collapsed[0]},{collapsed[1]}", str(other), *options]) == 0  # two that never answer


def test_sides_may_have_different_numbers_of_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Accuracies are compared, so every sample twice over changes nothing; a bootstrap of samples needs one number."""
    once, other = write(tmp_path / "once.jsonl", grades()), tmp_path / "other.jsonl"
    write(other, [row | {"correct": row["sample"] == 0, "reason": "match" if row["sample"] == 0 else "mismatch"}
                  for row in grades()])  # fmt: skip
    twice = write(tmp_path / "twice.jsonl", grades() + [row | {"sample": row["sample"] + SAMPLES} for row in grades()])
    found = []
    for side in (once, twice):
        assert main(["compare", str(side), str(other), "--resamples", "200", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert main(["compare", str(twice), str(other), "--resamples", "200"]) == 0
    assert "Samples a problem differ (4, 8)" in capsys.readouterr().out
    assert "--resample-samples" in refused(capsys, "compare", twice, other, "--resample-samples")
    single = write(tmp_path / "single.jsonl", [row for row in grades() if row["sample"] == 0])
    assert "4 or more each" in refused(capsys, "compare", twice, single)
