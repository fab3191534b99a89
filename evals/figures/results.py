"""The figures of a study's results: the score of every method, and its difference to the reference method."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.core.comparisons import Comparison, Verdict
from evals.core.records import ALL_BENCHMARKS, BASE, Condition, Interval
from evals.figures import style
from evals.figures.fitting import legend_below
from evals.figures.style import NEUTRAL, VERDICT_COLOURS
from evals.results import Results
from evals.statistics.robust import percentile_interval, performance_profile, stratified_bootstrap
from evals.statistics.suite import weighting_text
from evals.tables.pass_at_k import curves
from evals.tables.robust import bootstrap_draws, score_matrix

_COLUMNS = 3
_LABEL_WIDTH, _NARROW_LABEL_WIDTH, _WIDE_LABEL_WIDTH = 1.7, 1.25, 2.4  # inches
_MANY = 12  # rows, which are low with wide labels
_NARROWEST = 5.0  # per cent
_THRESHOLDS = np.linspace(0.0, 1.0, 101)
_PROFILE_RESAMPLES = 2_000  # as in rliable


def write_scores_figure(results: Results, out: Path) -> None:
    """Draw every method's scores."""
    draw = partial(draw_scores, results)
    style.write_figure("scores", draw, out, results.sources, partial(draw, mean_only=True))


def write_differences_figure(results: Results, out: Path) -> None:
    """Draw every method's differences to what it is compared with."""
    draw = partial(draw_differences, results)
    style.write_figure("differences", draw, out, results.sources, partial(draw, mean_only=True))


def write_profiles_figure(results: Results, out: Path) -> None:
    """Draw every method's performance profile: the share of its scores above each threshold."""
    style.write_figure("profiles", lambda: draw_profiles(results), out, results.sources)


def write_pass_at_k_figure(results: Results, out: Path) -> None:
    """Draw pass@k of every method beside that of its base model."""
    style.write_figure("pass_at_k", lambda: draw_pass_at_k(results), out, results.sources)


def draw_scores(results: Results, mean_only: bool = False) -> Figure:
    """Draw avg@k of every method, a panel for the mean and one per benchmark, or the first alone.

    A point and an interval per method, a tick per seed; the base model is a band.
    """
    conditions, styles = results.conditions, style.method_styles(results.runs)
    names, figure, panels = _method_panels(results, conditions, mean_only)
    for benchmark, axes in zip(names, panels, strict=True):
        averages = {condition: results.average(condition, benchmark) for condition in conditions}
        for base in (average for condition, average in averages.items() if condition.method == BASE):
            axes.axvline(100 * base.value, color=NEUTRAL, linewidth=0.9, linestyle="--")
            if base.confidence_interval is not None:
                low, high = base.confidence_interval
                axes.axvspan(100 * low, 100 * high, color=NEUTRAL, alpha=0.10, linewidth=0)
        for row, (condition, average) in enumerate(averages.items()):
            colour, marker = styles[condition.method].colour, styles[condition.method].marker
            interval = _in_points(average.confidence_interval)
            style.draw_estimate(axes, row, 100 * average.value, interval, colour, marker)
            if len(average.by_seed) > 1:
                seeds = [100 * value for value in average.by_seed]
                axes.plot(seeds, [row + 0.27] * len(seeds), "|", color=colour, markersize=5, alpha=0.8)
    low, high = panels[0].get_xlim()
    if high - low < _NARROWEST:  # differences of less than a problem shall not fill the panels
        middle = min(max((low + high) / 2, _NARROWEST / 2 - 1), 101 - _NARROWEST / 2)
        panels[0].set_xlim(middle - _NARROWEST / 2, middle + _NARROWEST / 2)
    k, level = results.k, round(100 * results.confidence)
    trained = [len(condition.seeds) for condition in conditions if condition.method != BASE]
    ticks = f", {style.number_of_seeds(trained)} seeds a method (small ticks)" if trained else ""
    style.set_title(figure, f"avg@{k} of every method: {level} % intervals over problems and seeds")
    words = f"n = {sum(results.problems.values())} problems in all, {k} samples each{ticks}; grey band: base model"
    figure.supxlabel(f"avg@{k} (%)" if mean_only else f"avg@{k} (%)\n{words}", fontsize=8.5)
    return figure


def draw_differences(results: Results, mean_only: bool = False) -> Figure:
    """Draw paired differences as a forest plot coloured by verdict, a panel for the mean and one per benchmark.

    With ``mean_only`` that one alone. Zero is the reference method; in a study of one method it is the base model.
    """
    reference, title = results.drawn_against
    conditions = [condition for condition in results.conditions if condition.method not in (BASE, reference)]
    names, figure, panels = _method_panels(results, conditions, mean_only)
    compared = [[results.comparison(condition, reference, name) for condition in conditions] for name in names]
    limit = _limit([comparison for of_panel in compared for comparison in of_panel if comparison])
    for axes in panels:
        axes.axvline(0, color=NEUTRAL, linewidth=0.9)
    for axes, of_panel in zip(panels, compared, strict=True):
        for row, comparison in enumerate(of_panel):
            if comparison is None:
                continue
            colour, interval = VERDICT_COLOURS[comparison.verdict], _in_points(comparison.confidence_interval)
            line = ":" if comparison.verdict is Verdict.NO_CONTRAST else "-"
            style.draw_estimate(axes, row, 100 * comparison.difference, interval, colour, line=line)
            for beyond, edge, arrow in zip(interval or (), (-1, 1), "<>", strict=False):
                if limit is not None and edge * beyond > limit:
                    axes.plot(0.97 * edge * limit, row, arrow, color=colour, markersize=6)
    if limit is not None:
        panels[0].set_xlim(-limit, limit)
    k, level = results.samples_per_problem, round(100 * results.confidence)
    style.set_title(figure, f"Paired difference in avg@{k} to {title}, {level} % intervals")
    of_looks = () if results.looks else (Verdict.EQUIVALENT, Verdict.UNDECIDED)
    colours = {verdict: colour for verdict, colour in VERDICT_COLOURS.items() if verdict not in of_looks}
    handles: list[Artist] = [*style.verdict_marks(colours, linewidth=1.6, markersize=4.5)]
    if results.margin is not None:
        words = f"margin of equivalence, {100 * results.margin:g} points"
        shade = panels[0].axvspan(-100 * results.margin, 100 * results.margin, label=words, **style.MARGIN)
        handles.append(shade)
    units = "percentage points, paired by problem; verdicts after Holm over the benchmarks, the mean's "
    units += "by the decisions" if results.looks else "over the methods"
    units += "" if limit is None else "; an arrow: the interval goes on"
    if mean_only:
        panels[0].set_xlabel(f"difference to {title} (points)", fontsize=8.5)
    legend_below(figure, handles, "" if mean_only else units)
    return figure


def draw_profiles(results: Results) -> Figure:
    """Draw the share of a method's scores above every threshold, a panel for each method, the others in grey.

    The scores are those of its seeds on the benchmarks (rliable's score distribution).
    """
    conditions, styles = [row for row in results.conditions if row.method != BASE], style.method_styles(results.runs)
    figure, panels = style.small_panels([row.title for row in conditions], 4, (0.6, 2.4), (1.0, 1.7))
    matrices = [score_matrix(results, row) for row in conditions]
    profiles = [100 * performance_profile(scores, _THRESHOLDS) for scores in matrices]
    for axes, row, scores, of_method in zip(panels, conditions, matrices, profiles, strict=True):
        for profile in profiles:
            axes.plot(100 * _THRESHOLDS, profile, color="#c8c8c8", linewidth=0.6)
        draws = bootstrap_draws(scores, row, _PROFILE_RESAMPLES, together=True)
        replicates = stratified_bootstrap(scores, lambda drawn: performance_profile(drawn, _THRESHOLDS), draws)
        low, high = percentile_interval(replicates, results.confidence)
        colour = styles[row.method].colour
        axes.fill_between(100 * _THRESHOLDS, 100 * low, 100 * high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(100 * _THRESHOLDS, of_method, color=colour, linewidth=1.4)
    level, seeds = round(100 * results.confidence), style.number_of_seeds(len(row.seeds) for row in conditions)
    style.set_title(figure, f"Performance profiles: {level} % bands over {seeds} seeds; grey: the other methods")
    figure.supxlabel(f"threshold, avg@{results.samples_per_problem} (%)", fontsize=8.5)
    figure.supylabel("scores of seeds on benchmarks above it (%)", fontsize=8.5)
    return figure


def draw_pass_at_k(results: Results) -> Figure:
    """Draw the chance that one of k responses is right, a panel for each method, the base model dashed in grey."""
    estimated, styles = curves(results), style.method_styles(results.runs)
    conditions = [row for row in results.conditions if row.method != BASE]
    figure, panels = style.small_panels([row.title for row in conditions], 4, (0.6, 2.4), (1.0, 1.7))
    k = np.arange(1, results.samples_per_problem + 1)
    for axes, row in zip(panels, conditions, strict=True):
        of_row, colour = estimated[row], styles[row.method].colour
        lines = [(of_row, colour, "-")] + ([] if of_row.base is None else [(of_row.base, NEUTRAL, "--")])
        for curve, of_line, line in lines:
            low, high = curve.band(results.confidence)
            axes.fill_between(k, 100 * low, 100 * high, color=of_line, alpha=0.2, linewidth=0)
            axes.plot(k, 100 * curve.values, color=of_line, linestyle=line, linewidth=1.4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks := [2**power for power in range(len(k).bit_length())], list(map(str, ticks)))
    level = round(100 * results.confidence)
    style.set_title(figure, f"pass@k: {level} % bands over problems and seeds; dashed: the base model")
    figure.supxlabel("k responses to a problem", fontsize=8.5)
    figure.supylabel("problems with a right one (%)", fontsize=8.5)
    return figure


def _limit(comparisons: Sequence[Comparison]) -> float | None:
    """The end of the axis in percentage points, if a few intervals reach so far that no other could be read.

    A difference that is itself so far away is an arrow.
    """
    reach = [100 * max(map(abs, row.confidence_interval or (row.difference,))) for row in comparisons]
    if not reach or max(reach) <= 3 * (usual := float(np.quantile(reach, 0.75))):
        return None
    differences = [100 * abs(row.difference) for row in comparisons]
    return max(2 * usual, *(1.1 * difference for difference in differences if difference <= 3 * usual))


def _in_points(interval: Interval | None) -> Interval | None:
    return None if interval is None else (100 * interval[0], 100 * interval[1])


def _method_panels(
    results: Results, conditions: Sequence[Condition], mean_only: bool
) -> tuple[list[str], Figure, list[Axes]]:
    """A panel for the mean and one for each benchmark, or the first alone; and the names of what they show.

    Each has a row for each method, row 0 at the top, named once at the left of each line of panels.
    """
    names = [ALL_BENCHMARKS, *([] if mean_only else results.benchmarks)]
    mean = "mean of all" if results.weighting == "benchmarks" else f"mean, {weighting_text(results.weighting)}"
    titles = ["" if mean_only else mean, *names[1:]]
    columns = min(_COLUMNS, len(titles))
    width = _NARROW_LABEL_WIDTH if mean_only else _WIDE_LABEL_WIDTH if len(conditions) > _MANY else _LABEL_WIDTH
    labels, row_height = style.row_labels([row.title for row in conditions], width)
    lines = math.ceil(len(titles) / columns)
    figure = style.new_figure(1.9 + 2.7 * columns, 0.6 + lines * (0.6 + row_height * len(labels)))
    panels = style.titled_panels(figure, titles, columns)
    for axes in panels:
        axes.grid(visible=False, axis="y")
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].set_ylim(len(labels) - 0.5, -0.5)
    return names, figure, panels
