"""The figure of a study's power: the smallest difference that it can detect, against what it costs."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, ScalarFormatter

from evals.core.records import BASE, Condition
from evals.figures import style
from evals.figures.style import NEUTRAL
from evals.results import Results
from evals.tables.costs import Cost, condition_cost, cost_files
from evals.tables.power import counting_problems, designs_of, expected_effects

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
    designs, k = designs_of(results), results.samples_per_problem
    problems, counting = counting_problems(results)
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
