"""The figures of a study's results: the score of every method, and its difference to the reference method."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evals.core.manifest import write_output_manifest
from evals.core.records import ALL_BENCHMARKS, BASE, Comparison, Condition
from evals.figures.style import ENDINGS, NEUTRAL, VERDICT_COLOURS, MethodStyle, figure_style, method_styles, new_figure
from evals.figures.style import save as save_figure
from evals.results import Average, Results

_COLUMNS = 3
_LABEL_WIDTH, _WIDE_LABEL_WIDTH, _MANY = 24, 34, 12  # characters; many rows are narrow, and their labels wide instead
_NARROWEST = 5.0  # per cent
_MEAN = "mean of all benchmarks"


def write_results_figure(name: str, results: Results, out: Path) -> None:
    """Draw ``scores`` or ``differences`` as PNG and SVG, with a manifest; ``out`` is the path without an ending.

    Raises:
        UserError: a file cannot be written.
    """
    with figure_style():
        save_figure({"scores": draw_scores, "differences": draw_differences}[name](results), out)
    write_output_manifest("figure", out, ENDINGS, results.sources, {"figure": name})


def draw_scores(results: Results) -> Figure:
    """Draw avg@k of every method, a panel per benchmark and one for the mean.

    A point and an interval per method, a tick per seed; the base model is a band.
    """
    conditions, styles = results.conditions, method_styles(results.runs)
    names = {**{name: name for name in results.benchmarks}, _MEAN: ALL_BENCHMARKS}
    figure, panels = _method_panels(list(names), [condition.title for condition in conditions])
    for benchmark, axes in zip(names.values(), panels, strict=True):
        averages = [results.average(condition, benchmark) for condition in conditions]
        _draw_bases(axes, conditions, averages)
        for row, (condition, average) in enumerate(zip(conditions, averages, strict=True)):
            _draw_average(axes, row, average, styles[condition.method])
    k, level = results.samples_per_problem, round(100 * results.confidence)
    problems = sum(len(results.scores[results.runs[0].run, name].correct_counts) for name in results.benchmarks)
    _widen(panels[0])
    figure.suptitle(
        f"avg@{k} of every method: {level} % intervals over problems and seeds", x=0.01, ha="left", weight="bold"
    )
    figure.supxlabel(
        f"avg@{k} (%)    n = {problems} problems in all, {k} samples each{_seeds(conditions)}; grey band: base model",
        fontsize=8.5,
    )
    return figure


def _widen(axes: Axes) -> None:
    """Widen narrow axes: differences of less than a problem shall not fill the panels."""
    low, high = axes.get_xlim()
    if high - low < _NARROWEST:
        middle = min(max((low + high) / 2, _NARROWEST / 2 - 1), 101 - _NARROWEST / 2)
        axes.set_xlim(middle - _NARROWEST / 2, middle + _NARROWEST / 2)


def _seeds(conditions: Sequence[Condition]) -> str:
    counts = sorted({len(condition.seeds) for condition in conditions if condition.method != BASE})
    if not counts:
        return ""
    return f", {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds a method (small ticks)"


def _draw_average(axes: Axes, row: int, average: Average, style: MethodStyle) -> None:
    if average.confidence_interval is not None:
        low, high = average.confidence_interval
        axes.hlines(row, 100 * low, 100 * high, color=style.colour, linewidth=1.8)
    axes.plot(100 * average.value, row, style.marker, color=style.colour, markersize=5.5, markeredgecolor="white")
    if len(average.by_seed) > 1:
        seeds = [100 * value for value in average.by_seed]
        axes.plot(seeds, [row + 0.27] * len(seeds), "|", color=style.colour, markersize=5, alpha=0.8)


def _draw_bases(axes: Axes, conditions: Sequence[Condition], averages: Sequence[Average]) -> None:
    for condition, average in zip(conditions, averages, strict=True):
        if condition.method != BASE:
            continue
        axes.axvline(100 * average.value, color=NEUTRAL, linewidth=0.9, linestyle="--")
        if average.confidence_interval is not None:
            low, high = average.confidence_interval
            axes.axvspan(100 * low, 100 * high, color=NEUTRAL, alpha=0.10, linewidth=0)


def draw_differences(results: Results) -> Figure:
    """Draw paired differences as a forest plot coloured by verdict, a panel per benchmark and one for the mean.

    Zero is the reference method; in a study of one method alone it is the base model.
    """
    reference, title = results.drawn_against
    conditions = [condition for condition in results.conditions if condition.method not in (BASE, reference)]
    names = [*results.benchmarks, ALL_BENCHMARKS]
    figure, panels = _method_panels([*results.benchmarks, _MEAN], [condition.title for condition in conditions])
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
    """The end of the axis in percentage points, if a few intervals are so wide that no other could be read."""
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


def _method_panels(titles: Sequence[str], row_labels: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """Panels that share both axes, a title each; row 0 of every panel is at the top.

    The labels of the rows, the methods, are written once at the left of each line of panels.
    """
    columns = min(_COLUMNS, len(titles))
    lines = math.ceil(len(titles) / columns)
    width = _WIDE_LABEL_WIDTH if len(row_labels) > _MANY else _LABEL_WIDTH
    labels = [textwrap.fill(label, width, break_on_hyphens=False, break_long_words=False) for label in row_labels]
    # Rows are equally high: each needs the room of the label with the most lines.
    row_height = 0.17 * max(label.count("\n") + 1.4 for label in labels)
    figure = new_figure(1.9 + 2.7 * columns, 0.9 + lines * (0.6 + row_height * len(labels)))
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for axes in panels[len(titles) :]:
        axes.remove()
    panels = panels[: len(titles)]
    for place, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        axes.set_title(title)
        axes.grid(visible=False, axis="y")
        if place + columns >= len(titles):  # nothing below it, in this column, would carry the numbers
            axes.tick_params(labelbottom=True)
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].set_ylim(len(labels) - 0.5, -0.5)
    return figure, panels
