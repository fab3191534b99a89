import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from evals.core.comparisons import Controls, Look, Verdict
from evals.core.files import write_json
from evals.core.records import ALL_BENCHMARKS, Condition, Score
from evals.results import Results
from evals.statistics.interval import score_interval
from evals.tables.differences import by_look
from evals.tables.notes import controls_note, near_copies_note


def _condition(results: Results, method: str) -> Condition:
    return next(condition for condition in results.conditions if condition.method == method)


def _with_counts(results: Results, counts: dict[tuple[str, str], list[int]]) -> Results:
    scores: dict[tuple[str, str], Score] = dict(results.scores)
    for key, values in counts.items():
        scores[key] = scores[key].model_copy(update={"correct_counts": tuple(values)})
    return dataclasses.replace(results, scores=scores)


def test_average_and_error_equal_a_loop_over_problems_and_seeds(results: Results) -> None:
    condition = _condition(results, "delta")
    average = results.average(condition)
    k = results.samples_per_problem
    seed_means, problem_variance, noise, values = [0.0, 0.0], 0.0, 0.0, []
    for benchmark in results.benchmarks:
        rows = [results.scores[run.run, benchmark].correct_counts for run in condition.runs]
        for seed, row in enumerate(rows):
            seed_means[seed] += sum(row) / (k * len(row)) / 2
        per_problem = [(a + b) / (2 * k) for a, b in zip(*rows, strict=True)]
        mean = sum(per_problem) / len(per_problem)
        values.append(mean)
        spread = sum((value - mean) ** 2 for value in per_problem) / (len(per_problem) - 1)
        problem_variance += spread / len(per_problem) / 4
        noise += sum(c / k * (1 - c / k) / (k - 1) for row in rows for c in row) / (2 * 2 * len(per_problem)) ** 2
    seed_variance = (seed_means[0] - seed_means[1]) ** 2 / 2 / 2
    problem_variance -= min(noise, seed_variance)
    assert average.value == pytest.approx(sum(values) / 2, abs=1e-12)
    assert average.by_seed == pytest.approx(seed_means, abs=1e-12)
    assert average.standard_error == pytest.approx(math.sqrt(problem_variance + seed_variance), abs=1e-12)
    assert average.confidence_interval is not None
    assert average.confidence_interval[0] < average.value < average.confidence_interval[1]


def test_the_base_model_on_one_benchmark_has_the_interval_of_its_score(results: Results) -> None:
    base = _condition(results, "base")
    average = results.average(base, "chain_3")
    score = results.scores["tiny-base", "chain_3"]
    assert average.standard_error == pytest.approx(score.standard_error)
    assert average.confidence_interval == pytest.approx(score_interval(np.array(score.correct_counts), 32))
    assert results.average(base).confidence_interval is not None


def test_one_seed_gives_no_interval_rather_than_one_without_seed_variance(results: Results) -> None:
    alone = dataclasses.replace(results, runs=tuple(run for run in results.runs if run.seed != 2))
    average = alone.average(_condition(alone, "dapo"))
    assert average.standard_error is None and average.confidence_interval is None


def test_intervals_stay_within_zero_and_one_and_lean_to_the_side_with_room(results: Results) -> None:
    condition = _condition(results, "dapo")
    spread = {run.run: [30 + (problem + seed) % 2 for problem in range(11)] for seed, run in enumerate(condition.runs)}
    counts = {(run, "chain_3"): [*row, 4] for run, row in spread.items()}
    average = _with_counts(results, counts).average(condition, "chain_3")
    interval = average.confidence_interval
    assert interval is not None and 0.0 <= interval[0] < average.value < interval[1] <= 1.0
    assert average.value - interval[0] > 1.5 * (interval[1] - average.value)


def test_a_handful_of_failures_gives_no_interval(results: Results) -> None:
    condition = _condition(results, "dapo")
    for row in ([32] * 12, [32] * 11 + [5], [0] * 6 + [1] * 6):
        counts = {(run.run, "chain_3"): row for run in condition.runs}
        assert _with_counts(results, counts).average(condition, "chain_3").confidence_interval is None


def test_seeds_without_spread_leave_the_interval_of_the_problems(results: Results) -> None:
    condition = _condition(results, "dapo")
    row = [2, 30, 5, 8, 16, 31, 9, 1, 20, 12, 14, 7]
    counts = {(run.run, "chain_3"): row for run in condition.runs}
    average = _with_counts(results, counts).average(condition, "chain_3")
    assert average.confidence_interval == pytest.approx(score_interval(np.array(row), 32), abs=1e-3)


def test_the_note_on_the_controls_says_what_the_study_found_of_each(results: Results) -> None:
    def note(positive: Verdict, negative: Verdict) -> str:
        rows = dict(results.comparisons)
        for method, verdict in (("grpo", positive), ("delta", negative)):
            key = ("tiny", method, "dapo", ALL_BENCHMARKS)
            rows[key] = rows[key].model_copy(update={"verdict": verdict, "difference": -0.031, "p_value_holm": 0.5})
        controls = Controls(positive="grpo", negative="delta")
        return controls_note(dataclasses.replace(results, comparisons=rows, controls=controls))

    assert note(Verdict.WORSE, Verdict.NOT_DISTINGUISHABLE) == (
        "Controls: this run of the study saw the harm of GRPO (worse, -3.1 pp, p after Holm 0.500) and did not flag "
        "DelTA, which changes nothing (not distinguishable, -3.1 pp, p after Holm 0.500)."
    )
    for positive, negative, found in (
        (Verdict.NOT_DISTINGUISHABLE, Verdict.NOT_DISTINGUISHABLE, ("DID NOT SEE", "did not flag")),
        (Verdict.BETTER, Verdict.BETTER, ("DID NOT SEE", "FLAGGED")),
        (Verdict.WORSE, Verdict.WORSE, ("saw", "FLAGGED")),
    ):
        words = note(positive, negative)
        assert all(each in words for each in found) and words.endswith("; its other verdicts are in doubt.")
    assert controls_note(results) == ""


def test_the_caption_counts_problems_that_were_trained_on_with_other_numbers(results: Results, tmp_path: Path) -> None:
    first, second = results.benchmarks[:2]
    for name, copies in ((first, {"a": "train, line 1", "b": "train, line 3"}), (second, {})):
        write_json(tmp_path / name / "disjoint.json", {"problems": 9, "near_copies": copies})
    note, read = near_copies_note(results, tmp_path)
    assert note == [f"Training problems but for their numbers, in disjoint.json: 2 of 9 problems of {first}."]
    assert read == [tmp_path / name / "disjoint.json" for name in (first, second)]
    assert near_copies_note(results, tmp_path / "none") == ([], [])


def test_the_note_says_what_training_on_random_rewards_gained(results: Results) -> None:
    """A method as good as the reference without a signal puts every gain in doubt."""
    rows = dict(results.comparisons)
    key = ("tiny", "delta", "dapo", ALL_BENCHMARKS)
    controls = Controls(positive="grpo", negative="grpo", random_rewards="delta")
    for verdict, words in ((Verdict.WORSE, " is worse than DAPO"), (Verdict.BETTER, " is NOT worse than DAPO")):
        rows[key] = rows[key].model_copy(update={"verdict": verdict})
        note = controls_note(dataclasses.replace(results, comparisons=rows, controls=controls))
        assert "DelTA, whose rewards are drawn by chance, gained +" in note and words in note
        assert note.endswith("rewards were learned from.") == (verdict is Verdict.BETTER)


def test_decisions_say_how_near_they_were(results: Results) -> None:
    def look(method: str, seeds: int, interval: tuple[float, float], verdict: Verdict | None) -> Look:
        levels = {"level": 0.001, "level_alone": 0.01}
        known = {"model": "tiny", "method": method, "seeds": seeds, "difference": sum(interval) / 2, **levels}
        return Look(interval=interval, verdict=verdict, **known)

    key = "tiny", "delta", "dapo", ALL_BENCHMARKS
    changed = {"median_unbiased": -0.05, "undecided": 0.29, "verdict": Verdict.WORSE}
    of_delta = results.comparisons[key].model_copy(update=changed)
    looks = (
        look("delta", 1, (-0.20, 0.10), None),
        look("grpo", 1, (-0.015, 0.017), Verdict.EQUIVALENT),
        look("delta", 2, (-0.13425, -0.00025), Verdict.WORSE),
    )
    stopped = dataclasses.replace(
        results,
        looks=looks,
        margin=0.02,
        level=0.025,
        all_decided=0.18,
        comparisons={**results.comparisons, key: of_delta},
    )
    table = by_look(stopped)
    rows = {row[0]: row for row in table.rows}
    assert rows["DelTA"][1:3] == ("-5.0 [-20.0, +10.0] goes on", "-6.7 [-13.4, 0.0] worse by 0.03")
    assert rows["GRPO"][1] == "+0.1 [-1.5, +1.7] equivalent by 0.30"
    assert rows["DelTA"][-2:] == ("-5.0", "29.0")
    said = " ".join(table.notes)
    assert "probability of 97.5 %" in said and "probability of 18 %, and leave 0.3 of them not decided" in said
    assert "Nearest to its border was the decision on DelTA, by 0.03 points after 2 seeds." in said
