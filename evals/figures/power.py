"""The figure of a study's power: the smallest difference that it can detect, against what it costs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, ScalarFormatter

from evals.core.records import BASE, Condition
from evals.figures import style
from evals.figures.style import NEUTRAL
from evals.results import Results
from evals.statistics.accuracy import FloatArray
from evals.statistics.power import Design, minimum_detectable_effect, residual_variance
from evals.statistics.weighting import weighted_mean
from evals.tables.costs import Cost, condition_cost, cost_files

_TIMES = {"½": 0.5, "1": 1.0, "2": 2.0, "4": 4.0}
"""Numbers of problems that are drawn, in multiples of the study's."""
_SEEDS = np.arange(2, 41)


def write_power_figure(results: Results, costs: Path, training: Path, out: Path) -> None:
    """Draw the smallest difference that a study can detect, against what it costs."""
    measured = {row: condition_cost(row, results.benchmarks, costs, training) for row in results.conditions}
    read = [path for run in results.runs for path in cost_files(run, results.benchmarks, costs, training)]
    style.write_figure("power", lambda: draw_power(results, measured), out, [*results.sources, *read])


def draw_power(results: Results, costs: dict[Condition, Cost]) -> Figure:
    """Draw the expected minimum detectable effect over minutes of jobs, a line for each number of problems.

    Along a line the number of seeds grows. What a comparison meets is the study's own: the median over its comparisons
    with the reference method. Points are the comparisons as they are in the main table.
    """
    figure = style.new_figure(6.4, 4.4)
    axes = figure.subplots()
    compared = [
        (row, comparison)
        for row in results.conditions
        if (comparison := results.comparison(row, results.reference_method)) is not None
    ]
    designs = [design for row, _ in compared if (design := design_of(results, row)) is not None]
    k = results.samples_per_problem
    problems = sum(len(results.scores[results.runs[0].run, name].correct_counts) for name in results.benchmarks)
    counting = 1.0 / sum(_variance_weights(results))  # problems of one benchmark whose mean varies as much as this one
    trained = [cost for row, cost in costs.items() if row.method != BASE]
    training = sum(cost.training_seconds or 0.0 for cost in trained) / 60
    evaluation = sum(cost.evaluation_seconds for cost in trained) / 60
    for number, (name, times) in enumerate(_TIMES.items() if designs else ()):
        effects = [expected_effects(designs, int(seeds), max(2, round(counting * times)), k) for seeds in _SEEDS]
        label = f"{name} × {problems} problems" if times != 1 else f"{problems} problems, as here"
        minutes = _SEEDS * (training + times * evaluation)
        axes.plot(minutes, 100 * np.median(effects, axis=1), linewidth=1.4, label=label, color=f"C{number}")
    for row, comparison in compared:
        if comparison.minimum_detectable_effect is not None:
            spent = len(row.seeds) * (training + evaluation)
            axes.plot(spent, 100 * comparison.minimum_detectable_effect, "o", color=NEUTRAL, markersize=4, alpha=0.7)
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log")
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        axis.set_minor_formatter(ScalarFormatter())
    axes.set_xlabel("minutes of all trainings and evaluations of the study, one after the other")
    axes.set_ylabel("minimum detectable difference (pp)")
    if designs:
        axes.legend(
            title="expected with 2 to 40 seeds, along a line;\npoints: the comparisons of this study",
            fontsize=8,
            title_fontsize=8,
        )
    style.set_title(figure, f"Power against cost with {k} samples a problem")
    return figure


def expected_effects(designs: Sequence[Design], seeds: int, problems: int, samples: int) -> list[float]:
    """The minimum detectable effect of each design with other numbers of seeds and problems."""
    sized = [replace(design, seeds=seeds).expected_difference(problems, samples) for design in designs]
    return [float(minimum_detectable_effect(difference)) for difference in sized]


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
