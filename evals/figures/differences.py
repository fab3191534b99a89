"""Paired differences of every method to the reference method: a forest plot coloured by verdict.

A study of one method alone has nothing else to show than what it gained over its base model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evals.core.records import ALL_BENCHMARKS, BASE, Comparison
from evals.figures.panels import method_panels
from evals.figures.style import NEUTRAL, VERDICT_COLOURS
from evals.results import Results


def draw_differences(results: Results) -> Figure:
    """One panel per benchmark and one for the mean; zero is the reference method."""
    reference, title = results.drawn_against
    conditions = [condition for condition in results.conditions if condition.method not in (BASE, reference)]
    names = [*results.benchmarks, ALL_BENCHMARKS]
    titles = [*results.benchmarks, "mean of all benchmarks"]
    figure, panels = method_panels(titles, [condition.title for condition in conditions])
    drawn = {
        (name, row): comparison
        for name in names
        for row, condition in enumerate(conditions)
        if (comparison := results.comparison(condition, reference, name)) is not None
    }
    limit = _limit(list(drawn.values()))
    for axes in panels:
        axes.axvline(0, color=NEUTRAL, linewidth=0.9)
    for (name, row), comparison in drawn.items():
        _draw_comparison(panels[names.index(name)], row, comparison, limit)
    if limit is not None:
        panels[0].set_xlim(-limit, limit)
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
    units = "percentage points, paired by problem; verdicts after Holm over the benchmarks, the mean's as it is"
    units += "" if limit is None else "; an arrow: the interval goes on"
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), title=units, title_fontsize=8.5)
    return figure


def _limit(comparisons: Sequence[Comparison]) -> float | None:
    """Where the axis ends, in percentage points, if a few intervals are so wide that no other could be read."""
    reach = [100 * max(map(abs, row.confidence_interval or (row.difference,))) for row in comparisons]
    if not reach or max(reach) <= 3 * (usual := float(np.quantile(reach, 0.75))):
        return None
    return max(2 * usual, 1.1 * max(100 * abs(row.difference) for row in comparisons))


def _draw_comparison(axes: Axes, row: int, comparison: Comparison, limit: float | None) -> None:
    colour = VERDICT_COLOURS[comparison.verdict]
    if comparison.confidence_interval is not None:
        low, high = (100 * end for end in comparison.confidence_interval)
        axes.hlines(row, low, high, color=colour, linewidth=1.8)
        for beyond, edge, arrow in ((low, -1, "<"), (high, 1, ">")):
            if limit is not None and edge * beyond > limit:
                axes.plot(0.97 * edge * limit, row, arrow, color=colour, markersize=6)
    axes.plot(100 * comparison.difference, row, "o", color=colour, markersize=5.5, markeredgecolor="white")
