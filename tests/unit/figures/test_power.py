"""The figure of power against cost: its variances, and its expectation against the main table's own numbers."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from evals.core.records import ALL_BENCHMARKS, Condition
from evals.figures.power import draw_power
from evals.figures.style import figure_style
from evals.results import Results, read_results
from evals.scores.comparison import BenchmarkCounts, Settings, compare
from evals.tables.costs import Cost
from evals.tables.power import counting_problems, design_of, designs_of, expected_effects
from tests.commands import rlvr_bench, run_command
from tests.unit.synthetic_results import Study

main = rlvr_bench("stage", "figure")
K, PROBLEMS, SEEDS = 8, 400, 12
SEED_SD, EFFECT_SD = 0.03, 0.1


@pytest.fixture
def results(synthetic_study: Study) -> Results:
    return read_results(synthetic_study.runs_file, synthetic_study.scores, synthetic_study.comparisons)


def simulated(results: Results) -> Results:
    """Two methods with known variances, on one benchmark; a problem favours either method at random."""
    generator = np.random.default_rng(1)
    run, benchmark = results.runs[1], results.benchmarks[0]
    score = results.scores[run.run, benchmark]
    runs, scores = [], {}
    difficulty, effect = generator.uniform(0.35, 0.65, PROBLEMS), generator.normal(0, EFFECT_SD, PROBLEMS)
    for method, sign in (("dapo", 0), ("delta", 1)):
        for seed in range(1, SEEDS + 1):
            accuracy = np.clip(difficulty + sign * effect + generator.normal(0, SEED_SD), 0.0, 1.0)
            name = f"tiny-{method}-s{seed}"
            runs.append(run.model_copy(update={"run": name, "method": method, "title": method, "seed": seed}))
            counts = tuple(generator.binomial(K, accuracy).tolist())
            scores[name, benchmark] = score.model_copy(update={"run": name, "correct_counts": counts})
    return dataclasses.replace(
        results, runs=tuple(runs), benchmarks=(benchmark,), samples={benchmark: K}, scores=scores, comparisons={}
    )


def condition(results: Results, method: str) -> Condition:
    return next(row for row in results.conditions if row.method == method)


def test_variances_are_those_that_results_were_made_with(results: Results) -> None:
    found = simulated(results)
    design = design_of(found, condition(found, "delta"))
    assert design is not None
    assert design.effect_sd == pytest.approx(EFFECT_SD, rel=0.1)
    assert design.seed_sd == pytest.approx(SEED_SD, rel=0.3)
    assert design.sampling_variance == pytest.approx(2 * 0.23, rel=0.1)


def test_the_study_as_it_is_has_the_expected_effect(results: Results) -> None:
    """The expectation from the variances agrees with the comparison's own number, which the main table shows."""
    found = simulated(results)
    design = design_of(found, condition(found, "delta"))
    assert design is not None
    counts = {run.run: found.scores[run.run, found.benchmarks[0]].correct_counts for run in found.runs}
    methods = {run.run: (run.model, run.method) for run in found.runs}
    measured = BenchmarkCounts(found.sources[0], found.benchmarks[0], K, methods, counts)
    (row,) = [
        row
        for row in compare([measured], Settings("dapo", bootstrap_resamples=100, permutations=100)).comparisons
        if row.benchmark == ALL_BENCHMARKS
    ]
    (expected,) = expected_effects([design], SEEDS, PROBLEMS, K)
    assert expected == pytest.approx(row.minimum_detectable_effect, rel=0.05)


def test_benchmarks_count_by_their_weights(results: Results) -> None:
    """A benchmark that has nearly all the weight has nearly all the say, however small it is."""
    first, name = simulated(results), results.benchmarks[1]
    scores = {}
    for (run, _), score in first.scores.items():
        counts = tuple(K - count for count in score.correct_counts[:40])
        scores[run, name] = score.model_copy(update={"correct_counts": counts})
    second = dataclasses.replace(first, benchmarks=(name,), samples={name: K}, scores=scores)
    both = dataclasses.replace(
        first,
        benchmarks=(*first.benchmarks, name),
        samples=first.samples | second.samples,
        scores={**first.scores, **scores},
    )
    for heavy, alone in ((first.benchmarks[0], first), (name, second)):
        weighed = dataclasses.replace(both, weighting={each: 1e6 if each == heavy else 1.0 for each in both.benchmarks})
        found, expected = (design_of(each, condition(each, "delta")) for each in (weighed, alone))
        assert found is not None and expected is not None
        assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected), rel=1e-4)


def test_more_seeds_and_more_problems_detect_less_and_cost_more(results: Results) -> None:
    found = simulated(results)
    costs = {row: Cost(1.0, 1.0, 120.0, None, 60.0, None) for row in found.conditions}
    one = results.comparison(condition(results, "delta"), "dapo")
    assert one is not None
    found = dataclasses.replace(found, comparisons={("tiny", "delta", "dapo", ALL_BENCHMARKS): one})
    with figure_style():
        figure = draw_power(found, costs)
    lines = [line for line in figure.axes[0].lines if np.size(line.get_xdata()) > 1]
    assert len(lines) == 4
    for line in lines:
        assert np.all(np.diff(np.asarray(line.get_xdata())) > 0) and np.all(np.diff(np.asarray(line.get_ydata())) < 0)
    ends = [float(np.asarray(line.get_ydata())[-1]) for line in lines]
    assert ends == sorted(ends, reverse=True)
    (point,) = [line for line in figure.axes[0].lines if np.size(line.get_xdata()) == 1]
    assert np.asarray(point.get_xdata())[0] == pytest.approx(SEEDS * 2 * 3.0)  # two methods, three minutes a seed


def test_one_seed_gives_no_variances(results: Results) -> None:
    found = simulated(results)
    found = dataclasses.replace(found, runs=tuple(run for run in found.runs if run.seed == 1))
    assert design_of(found, condition(found, "delta")) is None


def test_command_writes_the_figure(synthetic_study: Study, tmp_path: Path) -> None:
    arguments = ["power", "--runs", str(synthetic_study.runs_file), "--scores", *map(str, synthetic_study.scores)]
    arguments += ["--comparisons", str(synthetic_study.comparisons), "--costs", str(synthetic_study.results / "costs")]
    arguments += ["--training", str(synthetic_study.results / "runs"), "--out", str(tmp_path / "power")]
    assert main(arguments) == 0
    assert (tmp_path / "power.svg").exists()


def test_a_study_is_planned_from_the_variances_and_costs_of_another(
    synthetic_study: Study, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each plan finds the difference, with the fewest seeds, and its costs are those of its seeds and samples."""
    directory = synthetic_study.scores[0].parent.parent
    shutil.copy(synthetic_study.runs_file, directory / "runs.json")
    assert run_command("power", "--study", directory, "--effect", 0.1, "--json") == 0
    found = json.loads(capsys.readouterr().out)["plans"]
    designs, (_, alike) = designs_of(results), counting_problems(results)
    k, sizes = results.samples_per_problem, counting_problems(results)[0]
    hours = [plan["cpu_hours"] for plan in found]
    assert found and hours == sorted(hours)
    for plan in found:
        problems = round(alike * plan["problems"] / sizes)
        effects = [np.median(expected_effects(designs, plan["seeds"] - n, problems, plan["samples"])) for n in (0, 1)]
        assert effects[0] <= 0.1 and (plan["seeds"] == 2 or effects[1] > 0.1)
        assert plan["cpu_hours"] == pytest.approx(plan["training_cpu_hours"] + plan["evaluation_cpu_hours"])
    first, other = found[0], found[-1]
    ratio = other["seeds"] / first["seeds"]
    assert other["training_cpu_hours"] == pytest.approx(ratio * first["training_cpu_hours"])
    ratio *= other["problems"] * other["samples"] / (first["problems"] * first["samples"])
    assert other["evaluation_cpu_hours"] == pytest.approx(ratio * first["evaluation_cpu_hours"], rel=0.05)
    assert k in {plan["samples"] for plan in found}
    assert run_command("power", "--study", directory, "--effect", 0.1, "--samples", 8) == 2
    assert "accepted beside it: --effect" in capsys.readouterr().err
    assert run_command("power", "--study", directory, "--effect", 0.0001) == 0
    assert "No plan with up to 1000 seeds" in capsys.readouterr().out
