"""``rlvr-bench score|compare|power``: on grades, on samples, on files from anywhere."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from evals.core.files import write_jsonl
from evals.core.record import read_rows
from evals.core.records import Grade
from evals.scores.score import grades_by_problem, measure
from evals.statistics.power import Design, minimum_detectable_effect, problems_needed
from tests.artifacts import grade_row, vouch_for
from tests.commands import rlvr_bench
from tests.statistics.arms import estimate_difference

main = rlvr_bench()

SAMPLES = 8
OUTPUTS = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "outputs"


def write_grades(path: Path, rate: float, key: int, problems: int = 30, manifest: bool = False) -> np.ndarray:
    """Grades of a policy; problem ids carry the name of the directory, as those of a benchmark do."""
    difficulty = np.random.default_rng(len(path.parent.name)).normal(0.0, 0.15, problems)
    verdicts = np.random.default_rng(key).random((problems, SAMPLES)) < np.clip(rate + difficulty, 0, 1)[:, None]
    write_jsonl(
        path,
        [
            grade_row(f"{path.parent.name}-{number:03d}", sample, bool(verdict))
            for number, row in enumerate(verdicts)
            for sample, verdict in enumerate(row)
        ],
    )
    if manifest:
        vouch_for(path, "grades")
    return np.asarray(verdicts)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    assert main([*map(str, arguments), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    return list(found)


def error(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main([*map(str, arguments)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1
    return message


def test_scores_of_a_loose_file_are_those_of_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.jsonl"
    write_grades(path, 0.4, 1)
    (row,) = rows(capsys, "score", path, "--k", "1", "4", "8")
    parsed = read_rows(path, Grade)
    expected = measure(list(grades_by_problem(path, parsed).values()), 0.95)
    assert row["run"] == "mine" and row["verified"] is False
    for key in ("average_at_k", "standard_error", "confidence_interval", "sampling_standard_error", "correct_counts"):
        assert row[key] == pytest.approx(expected[key])
    assert row["pass_at_k"]["1"] == pytest.approx(row["average_at_k"])
    assert row["pass_at_k"]["4"] == pytest.approx(expected["pass_at_k"]["4"])
    assert row["majority_at_k"]["8"] == pytest.approx(expected["majority_at_k"])
    assert row["majority_at_k"]["1"] == pytest.approx(row["average_at_k"])
    assert row["g_pass_at_k"]["8_0.5"] == pytest.approx(expected["g_pass_at_k"]["0.5"])


def test_benchmarks_get_their_mean_and_a_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key, benchmark in enumerate(("easy", "harder")):
        write_grades(tmp_path / "policy" / benchmark / "grades.jsonl", 0.5 - 0.2 * key, key, manifest=True)
    *single, suite = rows(capsys, "score", tmp_path / "policy")
    assert [row["benchmark"] for row in single] == ["easy", "harder"] and all(row["verified"] for row in single)
    assert suite["benchmark"] == "all" and suite["problems"] == 60
    assert suite["average_at_k"] == pytest.approx(np.mean([row["average_at_k"] for row in single]))
    low, high = suite["confidence_interval"]
    assert high - low < min(row["confidence_interval"][1] - row["confidence_interval"][0] for row in single)
    assert main(["score", str(tmp_path / "policy"), "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["average_at_k"]) for row in table] == [row["average_at_k"] for row in [*single, suite]]
    assert float(table[0]["confidence_interval_low"]) == single[0]["confidence_interval"][0]


def test_names_are_those_of_the_directories_however_a_path_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy" / "easy" / "grades.jsonl"
    write_grades(path, 0.4, 1, manifest=True)
    (path.parent / "further").mkdir()
    monkeypatch.chdir(path.parent / "further")
    for said in (path, Path("../grades.jsonl"), Path("..")):
        (row,) = rows(capsys, "score", said)
        assert (row["run"], row["benchmark"]) == ("policy", "easy")


def test_missing_intervals_and_manifests_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "few.jsonl"
    write_jsonl(path, [grade_row(f"p{number}", 0, number < 5) for number in range(30)])
    assert main(["score", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "16.7 [–]" in printed and " 6.9 |" in printed and "handful of problems" in printed
    assert "without a manifest" in printed and str(path) in printed


def test_samples_are_graded_on_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems, samples = tmp_path / "problems.jsonl", tmp_path / "answers.jsonl"
    write_jsonl(problems, [{"id": f"p{n}", "problem": "?", "answer": str(n)} for n in range(4)])
    given = {"tokens": 3, "finish_reason": "stop"}
    texts = {(f"p{n}", sample): f"\\boxed{{{n if sample else 9}}}" for n in range(4) for sample in range(2)}
    write_jsonl(samples, [{"problem_id": p, "sample": s, "text": text, **given} for (p, s), text in texts.items()])
    (row,) = rows(capsys, "score", samples, "--problems", problems, "--workers", "1")
    assert row["average_at_k"] == 0.5 and row["correct_counts"] == [1, 1, 1, 1]
    assert "--problems" in error(capsys, "score", samples, "--workers", "1")


def test_two_checkpoints_agree_with_scipys_paired_t_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_grades(tmp_path / "one" / "bench" / "grades.jsonl", 0.6, 1)
    other = write_grades(tmp_path / "other" / "bench" / "grades.jsonl", 0.45, 2)
    (row,) = rows(capsys, "compare", tmp_path / "one", tmp_path / "other", "--resamples", "200")
    expected = stats.ttest_rel(one.mean(axis=1), other.mean(axis=1))
    assert row["difference"] == pytest.approx(one.mean() - other.mean())
    assert row["p_value"] >= expected.pvalue * (1 - 1e-9)
    low, high = expected.confidence_interval(0.95)
    assert row["confidence_interval"][0] <= low and row["confidence_interval"][1] >= high
    assert row["verdict"] == "better"
    backwards = rows(capsys, "compare", tmp_path / "other", tmp_path / "one", "--resamples", "200")
    assert backwards[0]["difference"] == pytest.approx(-row["difference"]) and backwards[0]["verdict"] == "worse"


def test_seeds_by_pattern_are_a_claim_about_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracies: dict[str, list[np.ndarray]] = {"a": [], "b": []}
    for method, rate in (("a", 0.5), ("b", 0.45)):
        for seed in (1, 2, 3):
            for benchmark in ("short", "rather-long"):
                path = tmp_path / f"{method}-s{seed}" / benchmark / "grades.jsonl"
                verdicts = write_grades(path, rate + 0.04 * seed, seed + ord(method))
                if benchmark == "short":
                    accuracies[method].append(verdicts.mean(axis=1))
    options = ("--resamples", "300", "--permutations", "500")
    found = rows(capsys, "compare", f"{tmp_path}/a-s*", f"{tmp_path}/b-s*", *options)
    assert [row["benchmark"] for row in found] == ["rather-long", "short", "all"]
    assert {row["seeds"] for row in found} == {3} and found[2]["problems"] == 60
    arms = [[np.array(accuracies[method])] for method in ("a", "b")]
    difference = estimate_difference(arms[0], arms[1], samples=([SAMPLES], [SAMPLES]))
    assert found[1]["standard_error"] == pytest.approx(float(difference.standard_error))
    ps = sorted(row["p_value"] for row in found[:2])
    assert sorted(row["p_value_holm"] for row in found[:2]) == pytest.approx(
        [min(1.0, 2 * ps[0]), min(1.0, max(2 * ps[0], ps[1]))]
    )
    listed = ",".join(str(tmp_path / f"a-s{seed}") for seed in (1, 2, 3))
    assert rows(capsys, "compare", listed, f"{tmp_path}/b-s*", *options) == found
    checkpoints = rows(capsys, "compare", tmp_path / "a-s1", tmp_path / "b-s1", *options)
    assert checkpoints[0]["standard_error"] < found[0]["standard_error"] * 2
    within = rows(capsys, "compare", tmp_path / "a-s1", tmp_path / "b-s1", "--resample-samples", *options)
    assert within[0]["confidence_interval"] != checkpoints[0]["confidence_interval"]


def test_sides_that_answered_other_problems_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, benchmark in (("one", "this"), ("other", "that!")):
        write_grades(tmp_path / run / benchmark / "grades.jsonl", 0.5, 1)
    message = error(capsys, "compare", tmp_path / "one", tmp_path / "other")
    assert "no counterpart in B" in message and "this" in message
    write_grades(tmp_path / "one" / "that!" / "grades.jsonl", 0.5, 1)
    twice = tmp_path / "other" / "copy" / "grades.jsonl"
    twice.parent.mkdir()
    twice.write_bytes((tmp_path / "other" / "that!" / "grades.jsonl").read_bytes())
    assert "is there twice" in error(capsys, "compare", tmp_path / "one" / "that!", tmp_path / "other")


def test_benchmarks_that_number_alike_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As two years of AIME do: 30 problems, 0 to 29."""
    expected = {}
    for key, (run, rate) in enumerate((("a", 0.7), ("b", 0.4))):
        for benchmark in ("aime_2024", "aime_2025"):
            path = tmp_path / run / benchmark / "grades.jsonl"
            verdicts = write_grades(path, rate, 2 * key + (benchmark == "aime_2025"))
            path.write_text(path.read_text().replace(f'"{benchmark}-', '"problem-'))
            expected[run, benchmark] = verdicts.mean()
    found = {row["benchmark"]: row for row in rows(capsys, "compare", tmp_path / "a", tmp_path / "b")}
    assert set(found) == {"aime_2024", "aime_2025", "all"}
    for benchmark in ("aime_2024", "aime_2025"):
        assert found[benchmark]["method_average"] == pytest.approx(expected["a", benchmark])
        assert found[benchmark]["against_average"] == pytest.approx(expected["b", benchmark])
    (tmp_path / "b" / "aime_2025").rename(tmp_path / "b" / "AIME25")
    message = error(capsys, "compare", tmp_path / "a", tmp_path / "b")
    assert "aime_2025 has the problem ids of aime_2024" in message and "the same names on both sides" in message


def test_power_works_out_the_third_of_effect_problems_and_samples(capsys: pytest.CaptureFixture[str]) -> None:
    design = ("--effect-sd", "0.15", "--sampling-variance", "0.3")
    (row,) = rows(capsys, "power", *design, "--problems", "30", "--samples", "32")
    expected = minimum_detectable_effect(Design(0.15, 0.3).expected_difference(30, 32), planned=True)
    assert row["worked_out"] == "effect" and row["effect"] == pytest.approx(float(expected))
    (row,) = rows(capsys, "power", *design, "--effect", "0.08", "--samples", "32")
    assert row["problems"] == problems_needed(Design(0.15, 0.3), 0.08, 32) and row["worked_out"] == "problems"
    (row,) = rows(capsys, "power", *design, "--effect", "0.05", "--problems", "30")
    assert row["samples"] is None
    assert main(["power", *design, "--effect", "0.05", "--problems", "30"]) == 0
    assert "none suffices" in capsys.readouterr().out
    (row,) = rows(capsys, "power", "--effect-sd", "0.9", *design[2:], "--problems", "3", "--samples", "1")
    assert row["effect"] is None  # it would be more than 100 points


POWER = ["power", "--effect-sd", "0.1", "--sampling-variance", "0.3", "--problems", "9", "--samples", "8"]


def test_power_learns_from_a_pilot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pilots = [tmp_path / name / "bench" / "grades.jsonl" for name in ("one", "other")]
    verdicts = [write_grades(path, 0.5, key) for key, path in enumerate(pilots)]
    (row,) = rows(capsys, "power", "--pilot", *pilots, "--problems", "60", "--samples", "16")
    design = Design.from_accuracies(verdicts[0].mean(axis=1), verdicts[1].mean(axis=1), SAMPLES)
    assert (row["effect_sd"], row["sampling_variance"]) == pytest.approx((design.effect_sd, design.sampling_variance))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["score", "{grades}", "--k", "9"], "accepted: 1..8"),
        (["score", "{grades}", "--confidence", "95"], "--confidence"),
        (["score", "{damaged}"], "bytes differ"),
        (["score", "{words}"], "neither correct"),
        (["compare", "{grades}", "nothing*"], "B: nothing*: names nothing"),
        (["compare", "{grades}", "{grades}", "--resamples", "3"], "--resamples: is 3"),
        (["power", "--effect", "0.05"], "accepted: two"),
        (["power", "--effect", "0.05", "--samples", "8"], "--pilot"),
        (["power", "--effect", "5", "--samples", "8"], "--effect: is 5.0"),
        ([*POWER, "--effect-sd", "-1"], "--effect-sd: is -1.0"),
        ([*POWER, "--effect-sd", "nan"], "--effect-sd: is nan"),
        ([*POWER, "--effect-sd", "5"], "--effect-sd: is 5.0"),
        ([*POWER, "--sampling-variance", "3"], "--sampling-variance: is 3.0"),
        ([*POWER, "--sampling-variance", "inf"], "--sampling-variance: is inf"),
        ([*POWER, "--seeds", "3", "--seed-sd", "nan"], "--seed-sd: is nan"),
        ([*POWER, "--seed-sd", "0.1"], "--seed-sd: is 0.1"),
        ([*POWER, "--alpha", "nan"], "--alpha: is nan"),
        ([*POWER, "--power", "0.04"], "--power: is 0.04"),
        ([*POWER, "--problems", "100000000000"], "--problems: is 100000000000"),
        (["grade", "--memory-limit", "nan"], "memory limit: nan"),
    ],
)
def test_mistakes_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    grades, damaged, words = (tmp_path / run / "bench" / "grades.jsonl" for run in ("good", "damaged", "words"))
    write_grades(grades, 0.5, 1)
    write_grades(damaged, 0.5, 1, manifest=True)
    damaged.write_bytes(damaged.read_bytes().replace(b"true", b"false", 1))
    write_jsonl(words, [{"problem_id": "p", "sample": 0}])
    filled = [argument.format(grades=grades, damaged=damaged, words=words) for argument in arguments]
    assert message in error(capsys, *filled)


@pytest.mark.skipif(not OUTPUTS.is_dir(), reason=f"{OUTPUTS} is not here")
def test_golden_values_of_real_model_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = json.loads((OUTPUTS / "reference_metrics.json").read_text())["qwen25math_math100x8"]
    lines = (OUTPUTS / "qwen25math_math100x8.jsonl").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "qwen.jsonl"
    write_jsonl(
        path,
        [
            grade_row(row["id"], sample, correct) | {"answer": answer}
            for row in map(json.loads, lines)
            for sample, (correct, answer) in enumerate(zip(row["upstream_correct"], row["upstream_pred"], strict=True))
        ],
    )
    (row,) = rows(capsys, "score", path, "--k", "1", "2", "4", "8")
    assert row["average_at_k"] == pytest.approx(golden["avg"], abs=1e-12)
    assert row["standard_error"] == pytest.approx(golden["se_question"], abs=1e-12)
    assert row["sampling_standard_error"] == pytest.approx(golden["se_sampling_only"], abs=1e-12)
    assert row["pass_at_k"] == pytest.approx(golden["pass_at"], abs=1e-12)
    assert row["majority_at_k"]["8"] == pytest.approx(golden["maj_at_8_string_votes_expected_ties"], abs=1e-12)


def test_few_problems_are_said_to_have_coarse_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for problems, said in ((12, True), (24, False)):
        file = tmp_path / f"grades-{problems}.jsonl"
        rows = [
            grade_row(str(problem), sample, sample <= problem % 4) for problem in range(problems) for sample in range(4)
        ]
        write_jsonl(file, rows)
        assert main(["score", str(file)]) == 0
        assert ("problems: an end of the interval may lie 4 to 8 SE" in capsys.readouterr().out) is said
