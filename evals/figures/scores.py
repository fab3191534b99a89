"""avg@k of every method on every benchmark, with intervals."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.core.records import ALL_BENCHMARKS, BASE, Condition
from evals.figures.panels import method_panels
from evals.figures.style import NEUTRAL, MethodStyle, method_styles
from evals.results import Average, Results

_NARROWEST = 5.0  # per cent


def draw_scores(results: Results) -> Figure:
    """One panel per benchmark and one for the mean: point and interval per method, a tick per seed, the base a band."""
    conditions = results.conditions
    styles = method_styles(results.runs)
    names = [*results.benchmarks, "mean of all benchmarks"]
    figure, panels = method_panels(names, [condition.title for condition in conditions])
    for name, axes in zip(names, panels, strict=True):
        benchmark = name if name in results.benchmarks else ALL_BENCHMARKS
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
    """Differences of less than a problem shall not fill the panels."""
    low, high = axes.get_xlim()
    if high - low < _NARROWEST:
        middle = min(max((low + high) / 2, _NARROWEST / 2 - 1), 101 - _NARROWEST / 2)
        axes.set_xlim(middle - _NARROWEST / 2, middle + _NARROWEST / 2)


def _seeds(conditions: tuple[Condition, ...]) -> str:
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


def _draw_bases(axes: Axes, conditions: tuple[Condition, ...], averages: list[Average]) -> None:
    for condition, average in zip(conditions, averages, strict=True):
        if condition.method != BASE:
            continue
        axes.axvline(100 * average.value, color=NEUTRAL, linewidth=0.9, linestyle="--")
        if average.confidence_interval is not None:
            low, high = average.confidence_interval
            axes.axvspan(100 * low, 100 * high, color=NEUTRAL, alpha=0.10, linewidth=0)
