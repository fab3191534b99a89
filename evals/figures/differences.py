"""Paired differences of every method to the reference method: a forest plot coloured by verdict.

A study of one method alone has nothing else to show than what it gained over its base model.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evals.figures.panels import method_panels
from evals.figures.style import NEUTRAL, VERDICT_COLOURS
from evals.tables.records import ALL_BENCHMARKS, BASE, Comparison, Results


def draw_differences(results: Results) -> Figure:
    """One panel per benchmark and one for the mean; zero is the reference method."""
    reference, title = results.drawn_against
    conditions = [condition for condition in results.conditions if condition.method not in (BASE, reference)]
    names = [*results.benchmarks, ALL_BENCHMARKS]
    titles = [*results.benchmarks, "mean of all benchmarks"]
    figure, panels = method_panels(titles, [condition.title for condition in conditions])
    for name, axes in zip(names, panels, strict=True):
        axes.axvline(0, color=NEUTRAL, linewidth=0.9)
        for row, condition in enumerate(conditions):
            comparison = results.comparison(condition, reference, name)
            if comparison is not None:
                _draw_comparison(axes, row, comparison)
    level = round(100 * results.confidence)
    figure.suptitle(
        f"Paired difference in avg@{results.samples_per_problem} to {title}, {level} % intervals",
        x=0.01,
        ha="left",
        weight="bold",
    )
    handles = [
        Line2D([], [], color=colour, marker="o", linewidth=1.8, markersize=5, label=verdict)
        for verdict, colour in VERDICT_COLOURS.items()
    ]
    units = "percentage points, paired by problem; verdicts after Holm over the benchmarks"
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), title=units, title_fontsize=8.5)
    return figure


def _draw_comparison(axes: Axes, row: int, comparison: Comparison) -> None:
    colour = VERDICT_COLOURS[comparison.verdict]
    if comparison.confidence_interval is not None:
        low, high = comparison.confidence_interval
        axes.hlines(row, 100 * low, 100 * high, color=colour, linewidth=1.8)
    axes.plot(100 * comparison.difference, row, "o", color=colour, markersize=5.5, markeredgecolor="white")
