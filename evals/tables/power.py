"""The plan of a study like a finished one: the seeds, problems and samples that a difference needs, and their cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.errors import UserError
from evals.core.records import BASE, Condition
from evals.results import Results
from evals.statistics.accuracy import FloatArray
from evals.statistics.power import Design, minimum_detectable_effect, residual_variance
from evals.statistics.weighting import weighted_mean
from evals.tables import numbers
from evals.tables.costs import evaluation_files, read_benchmark_file, read_cpu_seconds
from evals.tables.layout import Column, Table, make_table

MOST_SEEDS = 1_000
_TIMES = (0.5, 1.0, 2.0, 4.0)
"""Numbers of problems and of samples that are tried, in multiples of the study's."""


@dataclass(frozen=True)
class Plan:
    """A size of study that finds the difference, and what it costs for two methods."""

    seeds: int
    problems: int
    samples: int
    minimum_detectable_effect: float
    training_cpu_hours: float
    evaluation_cpu_hours: float

    @property
    def cpu_hours(self) -> float:
        """Both together."""
        return self.training_cpu_hours + self.evaluation_cpu_hours


def plans(results: Results, costs: Path, effect: float, alpha: float, power: float) -> list[Plan]:
    """The sizes that find a true difference ``effect``, of each the fewest seeds, the cheapest first.

    Variances are those of :func:`design_of`, the median over the study's comparisons; costs are a seed's mean over its
    trained methods. UserError if no method has several seeds.
    """
    designs, k = designs_of(results), results.samples_per_problem
    if not designs:
        raise UserError("--study: has no comparison of methods with two or more seeds each, so no variance over seeds")
    problems, counting = counting_problems(results)
    trained = [row for row in results.conditions if row.method != BASE]
    seconds = np.mean([_cpu_seconds(row, results.benchmarks, costs) for row in trained], axis=0)
    found = []
    for more_problems in _TIMES:
        for more_samples in _TIMES:
            counted, samples = max(2, round(counting * more_problems)), max(1, round(k * more_samples))

            def detected(seeds: int, counted: int = counted, samples: int = samples) -> float:
                return float(np.median(expected_effects(designs, seeds, counted, samples, alpha, power)))

            if detected(MOST_SEEDS) > effect:
                continue
            low, high = 2, MOST_SEEDS
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if detected(middle) <= effect else (middle + 1, high)
            hours = 2 * low * seconds / 3600 * np.array([1.0, more_problems * samples / k])
            size = round(problems * more_problems)
            found.append(Plan(low, size, samples, detected(low), *map(float, hours)))
    return sorted(set(found), key=lambda plan: plan.cpu_hours)


def _cpu_seconds(row: Condition, benchmarks: Sequence[str], costs: Path) -> FloatArray:
    """The CPU seconds [2] of a seed's training and of its evaluation; its time where they were not measured."""
    totals = []
    for run in row.runs:
        jobs = [costs / "train" / f"{run.run}.tsv", *evaluation_files(run, benchmarks, costs)]
        spent = [read_cpu_seconds(path) or read_benchmark_file(path)[0] for path in jobs]
        totals.append((spent[0], sum(spent[1:])))
    return np.asarray(np.mean(totals, axis=0))


def plan_table(found: Sequence[Plan], effect: float, alpha: float, power: float) -> tuple[Table, list[dict[str, Any]]]:
    """Lay out plans, and the same numbers as rows."""
    columns: list[Column[Plan]] = [
        Column("Seeds", lambda plan: plan.seeds),
        Column("Problems", lambda plan: plan.problems),
        Column("Samples", lambda plan: plan.samples),
        Column("MDE (pp)", lambda plan: plan.minimum_detectable_effect, numbers.percent),
        Column("Training (CPU h)", lambda plan: plan.training_cpu_hours, _hours),
        Column("Evaluation (CPU h)", lambda plan: plan.evaluation_cpu_hours, _hours),
        Column("Both (CPU h)", lambda plan: plan.cpu_hours, _hours),
    ]
    notes = [
        f"To find a true difference of {numbers.percent(effect)} points between two methods with power {power:g} at "
        f"level {alpha:g}, before Holm; the cheapest first. Seeds: of each method. Problems: of all benchmarks.",
        "Variances and costs are those of the study: the median over its comparisons, and the mean over its methods. "
        "They are estimates themselves, from few seeds above all.",
    ]
    if not found:
        notes.insert(0, f"No plan with up to {MOST_SEEDS} seeds and four times the study's problems and samples does.")
    rows = [{**asdict(plan), "cpu_hours": plan.cpu_hours} for plan in found]
    return make_table("power", "What a study needs", columns, found, notes), rows


def _hours(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def expected_effects(
    designs: Sequence[Design], seeds: int, problems: int, samples: int, alpha: float = 0.05, power: float = 0.8
) -> list[float]:
    """The minimum detectable effect of each design with other numbers of seeds and problems."""
    sized = [replace(design, seeds=seeds).expected_difference(problems, samples) for design in designs]
    return [float(minimum_detectable_effect(difference, alpha, power)) for difference in sized]


def designs_of(results: Results) -> list[Design]:
    """The variances of every comparison with the reference method that has seeds on both sides."""
    compared = [row for row in results.conditions if results.comparison(row, results.reference_method) is not None]
    return [design for row in compared if (design := design_of(results, row)) is not None]


def counting_problems(results: Results) -> tuple[int, float]:
    """The problems of all benchmarks, and as many of one benchmark as give a mean that varies like theirs."""
    problems = sum(len(results.scores[results.runs[0].run, name].correct_counts) for name in results.benchmarks)
    return problems, 1.0 / sum(_variance_weights(results))


def _variance_weights(results: Results) -> list[float]:
    """For each benchmark, the variance of the mean over benchmarks if each of its problems has a variance of 1."""
    run, total = results.runs[0].run, sum(results.weights)
    sizes = [len(results.scores[run, name].correct_counts) for name in results.benchmarks]
    return [(weight / total) ** 2 / size for weight, size in zip(results.weights, sizes, strict=True)]


def design_of(results: Results, condition: Condition) -> Design | None:
    """The variances that a method's comparison with the reference meets; None with fewer than two seeds of either.

    They are analyses of variance of each method's accuracies [S, N] over seeds and problems. What seed and problem do
    not explain, be it sampling or a policy's own strengths, counts as sampling with the study's samples per problem.
    """
    rows = [condition, next(row for row in results.conditions if _is_reference(results, row, condition))]
    if min(len(row.runs) for row in rows) < 2:
        return None
    k, in_variance = results.samples_per_problem, _variance_weights(results)
    accuracies = [[_accuracies(results, row, name) for name in results.benchmarks] for row in rows]
    residual = [float(weighted_mean(map(residual_variance, each), in_variance)) for each in accuracies]
    differences = [first.mean(axis=0) - second.mean(axis=0) for first, second in zip(*accuracies, strict=True)]
    effect = float(weighted_mean([each.var(ddof=1) for each in differences], in_variance))
    seed_variances = []
    for each, noise in zip(accuracies, residual, strict=True):
        means = weighted_mean([values.mean(axis=1) for values in each], results.weights)
        seed_variances.append(float(means.var(ddof=1)) - noise * sum(in_variance))
    of_means = sum(each / len(row.runs) for each, row in zip(residual, rows, strict=True))
    return Design(
        effect_sd=float(np.sqrt(max(effect - of_means, 0.0))),
        sampling_variance=k * sum(residual),
        seed_sd=float(np.sqrt(max(float(np.mean(seed_variances)), 0.0))),
    )


def _is_reference(results: Results, row: Condition, condition: Condition) -> bool:
    return (row.model, row.method) == (condition.model, results.reference_method)


def _accuracies(results: Results, row: Condition, benchmark: str) -> FloatArray:
    """Fractions of correct samples, [S, N]."""
    counts = [results.scores[run.run, benchmark].correct_counts for run in row.runs]
    return np.array(counts) / results.samples_per_problem
