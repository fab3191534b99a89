"""``rlvr-bench stage score``: grades in, one row a run out, and everything that must stop it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evals.core.comparisons import Claim
from evals.core.errors import UserError
from evals.core.files import sha256_file, write_json, write_jsonl
from evals.core.manifest import verify_outputs
from evals.results import read_results
from evals.scores.comparison import Settings, write_comparisons
from evals.scores.loose_files import Reader
from evals.scores.printed import print_comparison, print_scores
from evals.scores.score import write_scores
from evals.tables.by_seed import by_seed_tables
from evals.tables.costs import Cost
from evals.tables.main import main_tables
from evals.tables.robust import robust_table
from tests.artifacts import grade_row, vouch_for
from tests.stages import status

RUNS: list[dict[str, Any]] = [
    {"run": "tiny-base", "model": "tiny", "method": "base", "seed": None, "title": "Base"},
    {"run": "tiny-dapo-s1", "model": "tiny", "method": "dapo", "seed": 1, "title": "DAPO"},
]


def grade(problem: int, sample: int, correct: bool) -> dict[str, Any]:
    answer = "7" if correct else f"wrong {problem}"
    return grade_row(f"p{problem}", sample, correct, answer=answer, tokens=10 + sample)


def write_grades(
    root: Path, run: str, rows: list[dict[str, Any]], benchmark: str = "chain", kind: str = "completion"
) -> Path:
    directory = root / "grades" / run / benchmark
    write_jsonl(directory / "grades.jsonl", rows)
    vouch_for(directory / "grades.jsonl", "grades", parameters={"kind": kind})
    return directory


def half_right(problems: int = 10, samples: int = 4) -> list[dict[str, Any]]:
    return [grade(problem, sample, sample % 2 == 0) for problem in range(problems) for sample in range(samples)]


def score(root: Path, *directories: Path, disjoint: Path | None = None) -> int:
    write_json(root / "runs.json", RUNS)
    out = root / "scores" / "chain.json"
    return status(write_scores, "chain", directories, root / "runs.json", out, disjoint=disjoint)


def test_scores_hold_every_number_of_the_contract(tmp_path: Path) -> None:
    rows = half_right()
    rows[1] |= {"answer": None, "reason": "no_answer"}
    rows[3] |= {"answer": None, "reason": "truncated", "finish_reason": "length"}
    rows[5] |= {"reason": "timeout"}
    rows[7] |= {"reason": "unparsable"}
    directories = [write_grades(tmp_path, run["run"], rows) for run in RUNS]
    assert score(tmp_path, *directories) == 0
    content = json.loads((tmp_path / "scores" / "chain.json").read_text())
    assert content["samples_per_problem"] == 4
    assert content["problem_ids"] == [f"p{number}" for number in range(10)]
    base, trained = content["scores"]
    assert (base["run"], base["method"], base["seed"]) == ("tiny-base", "base", None)
    assert (trained["model"], trained["method"], trained["seed"]) == ("tiny", "dapo", 1)
    assert trained["average_at_k"] == 0.5
    assert trained["correct_counts"] == [2] * 10
    assert trained["standard_error"] == 0.0
    assert trained["sampling_standard_error"] == pytest.approx((10 * 0.25 / 3) ** 0.5 / 10)
    assert trained["pass_at_k"] == pytest.approx({"1": 0.5, "2": 5 / 6, "4": 1.0})
    assert trained["majority_at_k"] == pytest.approx((2 * 1.0 * 0.5 + 9 * 0.5) / 10)
    assert (trained["truncation_rate"], trained["no_answer_rate"]) == (1 / 40, 2 / 40)
    assert (trained["timeout_rate"], trained["unparsable_rate"]) == (1 / 40, 1 / 40)
    assert (trained["mean_tokens"], trained["total_tokens"]) == (11.5, 460)


def test_the_manifest_names_what_was_read_and_written(tmp_path: Path) -> None:
    directory = write_grades(tmp_path, "tiny-base", half_right())
    assert score(tmp_path, directory) == 0
    manifest = verify_outputs(tmp_path / "scores" / "chain.manifest.json", "scores")
    assert manifest.inputs[(directory / "grades.jsonl").as_posix()] == sha256_file(directory / "grades.jsonl")
    assert manifest.inputs[(tmp_path / "runs.json").as_posix()] == sha256_file(tmp_path / "runs.json")


def test_the_order_of_the_grades_does_not_matter(tmp_path: Path) -> None:
    given = {"tiny-base": half_right(), "tiny-dapo-s1": half_right()[::-1]}
    directories = [write_grades(tmp_path, *each) for each in given.items()]
    assert score(tmp_path, *directories) == 0
    one, other = json.loads((tmp_path / "scores" / "chain.json").read_text())["scores"]
    names = ("run", "method", "seed")
    assert {key: value for key, value in one.items() if key not in names} == {
        key: value for key, value in other.items() if key not in names
    }


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (half_right(9), "run tiny-dapo-s1 lacks 1 problems that tiny-base has: p9"),
        (half_right(11), "run tiny-dapo-s1 has 1 problems that tiny-base lacks: p10"),
        (half_right(10, 3), "run tiny-dapo-s1 has 3 samples per problem where tiny-base has 4"),
        (half_right()[:-1], "problem 'p9' lacks sample 3 of 0..3"),
        ([*half_right(), grade(0, 0, True)], "sample 0 of 'p0' occurs twice"),
        ([grade(0, 0, True) | {"correct": "yes"}], "line 1: correct: is 'yes'; accepted: true or false"),
        ([{"problem_id": "p0"}], "line 1: lacks sample, correct"),
        ([], "holds no grades"),
    ],
)
def test_runs_that_cannot_stand_side_by_side_are_refused(
    rows: list[dict[str, Any]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directories = [write_grades(tmp_path, "tiny-base", half_right()), write_grades(tmp_path, "tiny-dapo-s1", rows)]
    assert score(tmp_path, *directories) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "tiny-dapo-s1" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "scores").exists()


def test_changed_grades_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_grades(tmp_path, "tiny-base", half_right())
    path = directory / "grades.jsonl"
    path.write_text(path.read_text().replace('"correct": false', '"correct": true', 1))
    assert score(tmp_path, directory) == 2
    assert "bytes differ" in capsys.readouterr().err


@pytest.mark.parametrize(("run", "benchmark"), [("tiny-base", "other"), ("tiny-unknown", "chain")])
def test_foreign_grades_refused(run: str, benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score(tmp_path, write_grades(tmp_path, run, half_right(), benchmark)) == 2
    error = capsys.readouterr().err
    assert "grades of other, not of chain" in error or "which lists tiny-base, tiny-dapo-s1" in error


def test_one_sample_of_one_problem_has_no_errors_and_no_interval(tmp_path: Path) -> None:
    assert score(tmp_path, write_grades(tmp_path, "tiny-base", half_right(1, 1))) == 0
    row = json.loads((tmp_path / "scores" / "chain.json").read_text())["scores"][0]
    assert (row["standard_error"], row["sampling_standard_error"], row["confidence_interval"]) == (None, None, None)


@pytest.mark.parametrize("by_topic", [False, True])
def test_topics_and_near_copies_are_clusters_of_errors_tests_and_tables(tmp_path: Path, by_topic: bool) -> None:
    """Twelve templates five times each, solved or not as a whole: twelve pieces of evidence, in every number."""
    read, groups = {}, {f"topic {t}": [f"p{5 * t + n}" for n in range(5)] for t in range(12)}
    clusters = {"topics": groups, "repeated": [["p0", "p59"]]} if by_topic else {"repeated": [*groups.values()]}
    for name, found in {"alone": {"repeated": []}, "clusters": clusters}.items():
        root = tmp_path / name
        write_json(root / "disjoint.json", {"benchmark": "chain", "problems": 60, **found})
        directories = []
        for number, run in enumerate(RUNS):
            solved = [t for t in range(12) if t % 4 > 1 or (number and t % 3 == 0)]
            rows = [grade(p, sample, p // 5 in solved) for p in range(60) for sample in (0, 1)]
            directories.append(write_grades(root, run["run"], rows))
        assert score(root, *directories, disjoint=root / "disjoint.json") == 0
        path = root / "scores/chain.json"
        assert str(root / "disjoint.json") in verify_outputs(path.with_suffix(".manifest.json"), "scores").inputs
        write_comparisons([path], Settings("dapo", claim=Claim.CHECKPOINTS), root / "comparisons.json")
        read[name] = read_results(root / "runs.json", [path], root / "comparisons.json")
    alone, clustered = read["alone"], read["clusters"]
    scores = [results.scores["tiny-dapo-s1", "chain"] for results in (alone, clustered)]
    assert scores[0].average_at_k == scores[1].average_at_k
    of_templates = np.array(scores[1].correct_counts).reshape(12, 5).mean(axis=1) / 2
    assert scores[1].standard_error == pytest.approx(of_templates.std(ddof=1) / 12**0.5)
    assert scores[1].standard_error > 2 * scores[0].standard_error and scores[0].confidence_interval is not None
    assert scores[1].confidence_interval is None, "fewer than eight templates are solved"
    before, after = (results.comparisons["tiny", "dapo", "base", "chain"] for results in (alone, clustered))
    assert before.difference == after.difference
    assert after.standard_error == pytest.approx(before.standard_error * (59 / 11) ** 0.5)
    assert after.p_value > before.p_value and after.minimum_detectable_effect > 2 * before.minimum_detectable_effect
    dapo = next(row for row in clustered.conditions if row.method == "dapo")
    assert clustered.average(dapo).confidence_interval is None
    said = (
        "Problems of one topic are a cluster: 12 of chain."
        if by_topic
        else "Problems that are one another but for numbers are a cluster: 60 of 60 of chain in 12."
    )
    assert clustered.clusters_note == f"{said} Intervals, tests and MDE count a cluster once."
    assert "no topics are declared" in alone.clusters_note
    assert clustered.clusters_note in by_seed_tables(clustered)[0].notes


def test_every_table_says_that_last_statements_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [half_right(), [grade(problem, sample, problem > 1) for problem in range(10) for sample in range(4)]]
    directories = [
        write_grades(tmp_path, run["run"], graded, kind="last_statement")
        for run, graded in zip(RUNS, rows, strict=True)
    ]
    assert score(tmp_path, *directories) == 0
    path = tmp_path / "scores/chain.json"
    assert json.loads(path.read_text())["extraction"] == "last_statement"
    write_comparisons([path], Settings("dapo", claim=Claim.CHECKPOINTS), tmp_path / "comparisons.json")
    results = read_results(tmp_path / "runs.json", [path], tmp_path / "comparisons.json")
    costs = dict.fromkeys(results.conditions, Cost(None, None, None, None, 1.0, None))
    for table in [*main_tables(results, costs, []), *by_seed_tables(results), robust_table(results, {}, {})[0]]:
        assert results.extraction_note in table.notes, table.name
    assert results.extraction_note.startswith("Extraction last_statement: chain.")
    reader = Reader([], None, 1)
    print_scores(directories, reader, [], 0.5, 0.95, "benchmarks", "table")
    print_comparison(str(directories[0]), str(directories[1]), reader, Settings("B"), "table")
    assert capsys.readouterr().out.count(results.extraction_note) == 2

    marked = write_grades(tmp_path, RUNS[0]["run"], rows[0])
    assert score(tmp_path, marked, directories[1]) == 2
    with pytest.raises(UserError, match="another extraction"):
        print_comparison(str(marked), str(directories[1]), reader, Settings("B"), "table")
