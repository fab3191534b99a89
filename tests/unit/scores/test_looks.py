"""One look at a study that stops when it is certain: its verdicts, and what the comparisons make of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evals.core.comparisons import Comparison, Comparisons, Falls, Look, Looks, Verdict
from evals.core.files import write_json
from evals.core.manifest import write_output_manifest
from evals.core.records import ALL_BENCHMARKS
from evals.scores.comparison import BenchmarkCounts, Settings, compare
from evals.scores.looks import judge, write_look
from evals.statistics.sequential import StoppingRule, nominal_levels

PROBLEMS, SAMPLES = 60, 8


def row(interval: tuple[float, float] | None) -> Comparison:
    difference = 0.0 if interval is None else sum(interval) / 2
    return Comparison(
        model="tiny", method="mine", against="dapo", benchmark=ALL_BENCHMARKS, method_average=0.5, against_average=0.5,
        difference=difference, standard_error=0.01, confidence_interval=interval, p_value=0.5, p_value_holm=0.5,
        minimum_detectable_effect=0.03, seeds=4, against_seeds=4, problems=60, verdict=Verdict.NOT_DISTINGUISHABLE,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.001, 0.03), Verdict.BETTER),
        ((0.025, 0.03), Verdict.BETTER),
        ((0.001, 0.019), Verdict.EQUIVALENT),  # a difference, but of less than would matter
        ((-0.019, 0.019), Verdict.EQUIVALENT),
        ((-0.02, 0.01), None),
        ((-0.001, 0.03), None),
        ((-0.03, -0.001), Verdict.WORSE),
        (None, None),
    ],
)
def test_nothing_is_decided_too_early(interval: tuple[float, float] | None, expected: Verdict | None) -> None:
    assert judge(row(interval), 0.02, 0.001, 0.01).verdict == expected


def test_decisions_are_written_after_those_of_the_look_before(tmp_path: Path) -> None:
    for seeds, interval in ((4, (-0.05, 0.05)), (6, (-0.01, 0.01))):
        content = Comparisons(
            reference_method="dapo", confidence=0.999, bootstrap_resamples=100, permutations=100,
            comparisons=(row(interval).model_copy(update={"seeds": seeds}),),
        ).to_json()  # fmt: skip
        directory = tmp_path / f"looks/{seeds}"
        write_json(directory / "comparisons.json", content)
        write_output_manifest("comparisons", directory / "comparisons", [".json"], [], {})
    first, second = (tmp_path / f"looks/{seeds}/decisions.json" for seeds in (4, 6))
    write_look(first.with_name("comparisons.json"), (), 0.02, 0.001, 0.01, first)
    write_look(second.with_name("comparisons.json"), (first,), 0.02, 0.002, 0.02, second)
    looks = Looks.read(second)
    assert [(look.seeds, look.verdict) for look in looks.looks] == [(4, None), (6, Verdict.EQUIVALENT)]
    assert looks.last()["tiny", "mine"].level == 0.002


def counts(seeds: dict[str, int]) -> BenchmarkCounts:
    generator = np.random.default_rng(0)
    runs = {f"tiny-{method}-s{seed}": ("tiny", method) for method, n in seeds.items() for seed in range(1, n + 1)}
    rate = {"dapo": 0.5, "mine": 0.6, "other": 0.5}
    drawn = {run: generator.binomial(SAMPLES, rate[method], PROBLEMS).tolist() for run, (_, method) in runs.items()}
    return BenchmarkCounts(Path("worded.json"), "worded", dict.fromkeys(runs, SAMPLES), runs, drawn)


def look(method: str, seeds: int, verdict: Verdict | None) -> Look:
    return Look(
        model="tiny", method=method, seeds=seeds, level=0.001, level_alone=0.015, difference=0.1, interval=None,
        verdict=verdict,
    )  # fmt: skip


def test_a_stopped_method_is_compared_with_all_seeds_of_the_reference_and_keeps_its_decision() -> None:
    looks = (look("mine", 4, Verdict.BETTER), look("other", 4, None), look("other", 6, None))
    settings = Settings("dapo", bootstrap_resamples=500, permutations=500, looks=looks)
    benchmarks = [counts({"dapo": 6, "mine": 4, "other": 6})]
    rows = {row.method: row for row in compare(benchmarks, settings).comparisons if row.benchmark == ALL_BENCHMARKS}
    assert (rows["mine"].seeds, rows["mine"].against_seeds, rows["mine"].verdict) == (4, 6, Verdict.BETTER)
    assert (rows["other"].against_seeds, rows["other"].verdict) == (6, Verdict.UNDECIDED)
    assert rows["mine"].p_value_holm is None
    same = [counts({"dapo": 6, "mine": 4, "other": 6})]
    plain = Settings("dapo", bootstrap_resamples=500, permutations=500)
    wider, narrower = (
        next(row.confidence_interval for row in compare(each, how).comparisons if row.method == "other")
        for each, how in ((benchmarks, settings), (same, plain))
    )
    assert wider is not None and narrower is not None
    assert wider[0] < narrower[0] and wider[1] > narrower[1]


def test_runs_that_fell_are_left_out_of_the_score_and_counted_by_themselves() -> None:
    benchmark = counts({"dapo": 8, "mine": 8, "other": 8})
    fell = frozenset(f"tiny-dapo-s{seed}" for seed in range(1, 7))
    lost = {run: [0] * PROBLEMS if run in fell else row for run, row in benchmark.counts.items()}
    settings = Settings("dapo", bootstrap_resamples=500, permutations=500)
    rows = compare([replace(benchmark, counts=lost, fallen=fell)], settings).comparisons
    of = {row.method: row for row in rows if row.benchmark == ALL_BENCHMARKS and row.against == "dapo"}
    assert of["other"].verdict is Verdict.NOT_DISTINGUISHABLE  # a fall of the reference is no gain of another
    assert abs(of["other"].difference) < 0.05 and (of["other"].fell, of["other"].against_fell) == (0, 6)
    assert of["other"].falls is Falls.LESS and of["other"].falls_p_value == of["mine"].falls_p_value < 0.01
    assert of["other"].words == "score: not distinguishable; falls less often"
    (base,) = {row.fell for row in rows if row.benchmark != ALL_BENCHMARKS and row.method == "mine"}
    assert base == 0 and all(row.falls_p_value is None for row in rows if row.benchmark != ALL_BENCHMARKS)
    unknown = compare([replace(benchmark, counts=lost)], settings)
    assert unknown.fallen is None and {row.fell for row in unknown.comparisons} == {None}


def test_of_a_method_whose_runs_all_fell_the_falls_alone_are_judged() -> None:
    benchmark = counts({"dapo": 6, "mine": 6})
    fell = frozenset(run for run, (_, method) in benchmark.methods.items() if method == "mine")
    settings = Settings("dapo", bootstrap_resamples=500, permutations=500)
    row = compare([replace(benchmark, fallen=fell)], settings).comparisons[-1]
    assert (row.confidence_interval, row.p_value, row.minimum_detectable_effect) == (None, None, None)
    assert row.verdict is Verdict.NOT_DISTINGUISHABLE and row.falls is Falls.MORE and row.is_harm


def test_two_methods_are_equivalent_in_score() -> None:
    decided = row((-0.01, 0.01)).model_copy(update={"verdict": Verdict.EQUIVALENT, "fell": 0, "against_fell": 0})
    assert decided.words == "equivalent in score"
    of_falls = decided.model_copy(update={"fell": 1, "falls_p_value": 0.5})
    assert of_falls.words == "score: equivalent; falls: no difference shown"


def test_a_study_that_stops_says_what_its_own_rule_finds_and_leaves_open() -> None:
    looks = (look("mine", 4, Verdict.BETTER), look("other", 4, None), look("other", 6, None))
    stopping = StoppingRule((4, 6), nominal_levels((4, 6), 6, 0.025), 0.02)
    settings = Settings("dapo", bootstrap_resamples=500, permutations=500, looks=looks, stopping=stopping)
    compared = compare([counts({"dapo": 6, "mine": 4, "other": 6})], settings)
    rows = {row.method: row for row in compared.comparisons if row.benchmark == ALL_BENCHMARKS}
    alone = {row.method: row for row in compared.comparisons if row.benchmark != ALL_BENCHMARKS}
    assert compared.margin == 0.02 and compared.level == 0.05
    assert rows["mine"].minimum_detectable_effect != alone["mine"].minimum_detectable_effect
    assert alone["mine"].median_unbiased is None and abs(rows["mine"].median_unbiased - rows["mine"].difference) < 0.02
    assert rows["other"].undecided > rows["mine"].undecided and 0 <= compared.all_decided <= 1 - rows["other"].undecided


def test_at_the_first_look_the_interval_has_fewer_degrees_of_freedom() -> None:
    benchmarks = [counts({"dapo": 4, "mine": 4})]
    first, later = (
        compare(
            benchmarks,
            Settings("dapo", confidence=0.999, bootstrap_resamples=500, permutations=500, is_first_look=is_first),
        ).comparisons[-1]
        for is_first in (True, False)
    )
    assert first.confidence_interval is not None and later.confidence_interval is not None
    assert first.confidence_interval[0] < later.confidence_interval[0] < later.confidence_interval[1]
    assert later.confidence_interval[1] < first.confidence_interval[1]
