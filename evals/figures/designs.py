"""The figures of designs, drawn from the CSV files of their tables: what was tested is coloured by its verdict."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evals.figures import style
from evals.figures.fitting import legend_below
from evals.figures.style import NEUTRAL, VERDICT_COLOURS
from evals.tables import numbers

_COLOURS = {**VERDICT_COLOURS, "raises": VERDICT_COLOURS["better"], "lowers": VERDICT_COLOURS["worse"]}
_KINDS, _JUDGED = ("main effect", "interaction"), ("better", "worse")
_EFFECT_WIDTH = 3.0  # inches


def write_design_figure(
    name: Literal["doses", "factorial", "sizes"], table: Path, reference: str, out: Path, margin: float | None = None
) -> None:
    """Draw a design's figure.

    Args:
        reference: the method that others are compared with: of sizes its title.
        margin: of equivalence, in points, of a study of sizes that stops when it is certain.
    """
    drawn: dict[str, Callable[[pd.DataFrame, str], Figure]]
    drawn = {"doses": draw_doses, "factorial": draw_factorial, "sizes": partial(draw_sizes, margin=margin)}
    rows = pd.read_csv(table, dtype={"dose": str})
    style.write_figure(name, partial(drawn[name], rows, reference), out, [table], margin=margin)


def draw_sizes(rows: pd.DataFrame, reference: str, margin: float | None = None) -> Figure:
    """A panel for each method: its difference with its interval by the size of the model; the margin is shaded."""
    rows = rows[rows["difference"].notna()]
    titles, sizes = list(dict.fromkeys(rows["title"])), sorted(set(rows["parameters"]))
    figure, panels = style.small_panels(titles, 4, (0.8, 2.2), (1.3, 1.8))
    for title, axes in zip(titles, panels, strict=True):
        on_models = rows[rows["title"] == title].sort_values("parameters")
        axes.axhline(0, color=NEUTRAL, linewidth=0.9)
        if margin is not None:
            axes.axhspan(-margin, margin, **style.MARGIN)
        axes.set_xscale("log")
        axes.plot(on_models["parameters"], 100 * on_models["difference"], color=NEUTRAL, linewidth=0.9)
        row: Any
        for row in on_models.itertuples():
            _mark(axes, row, row.parameters, 100 * row.difference, is_upright=True)
        axes.set_xticks(sizes, [numbers.count(size) for size in sizes], minor=False)
        axes.minorticks_off()
        axes.margins(x=0.12)
    words = "across: parameters of the model; lines: 95 % intervals"
    words += "" if margin is None else f"; shaded: margin of equivalence, {margin:g} points"
    return _finished(figure, f"Difference to {reference} (points) by size", dict.fromkeys(rows["verdict"]), words)


def draw_factorial(rows: pd.DataFrame, _: str = "") -> Figure:
    """A panel for each model with a scale of its own, and a line for each effect, main effects above interactions.

    A training run that falls makes the intervals of its model many times as wide as those of another one.
    """
    rows = rows[rows["kind"].isin(_KINDS)]
    names, models = list(dict.fromkeys(rows["name"])), list(dict.fromkeys(rows["model"]))
    main = rows.loc[rows["kind"] == _KINDS[0], "name"].nunique()
    height = {name: -number - (0.6 if number >= main else 0.0) for number, name in enumerate(names)}
    labels, row_height = style.row_labels(names, _EFFECT_WIDTH)
    figure = style.new_figure(2.7 + 2.6 * len(models), 0.8 + row_height * len(names))
    for model, axes in zip(models, figure.subplots(1, len(models), sharey=True, squeeze=False).flat, strict=True):
        axes.set_title(model)
        axes.axvline(0, color=NEUTRAL, linewidth=0.9)
        row: Any
        for row in rows[rows["model"] == model].itertuples():
            _mark(axes, row, height[row.name], 100 * row.effect, is_upright=False)
        axes.set_yticks([*height.values()], labels)
        axes.set_ylim(min(height.values()) - 0.7, 0.7)
    words = "above: main effects; below: two-way interactions; lines: 95 % intervals; colours: after Holm"
    return _finished(figure, "Effects on the score (points)", ("raises", "lowers", "not distinguishable"), words)


def draw_doses(rows: pd.DataFrame, plain: str) -> Figure:
    """A line of panels for each method, a column for each kind of dose; the plain method in grey.

    Lines go through mean scores, bands are intervals. A point is a verdict: of a method against the plain one under the
    same dose; of the plain one against no dose.
    """
    rows = rows.fillna({"kind": "", "dose": "none", "verdict": ""})
    dosed = rows[rows["kind"] != ""]
    titles = dict(zip(dosed["method"], dosed["title"], strict=True))
    kinds, methods = list(dict.fromkeys(dosed["kind"])), [method for method in titles if method != plain]
    figure = style.new_figure(1.8 + 1.9 * len(kinds), 1.4 + 1.1 * len(methods))
    grid = figure.subplots(len(methods), len(kinds), squeeze=False, sharex="col", sharey=True)
    colours = {plain: NEUTRAL, **dict.fromkeys(methods, style.COLOURS[0])}
    for kind, column in zip(kinds, grid.T, strict=True):
        along = rows[rows["kind"].isin(["", kind])]
        for method, axes in zip(methods, column, strict=True):
            for drawn in (plain, method):
                scores = along[along["method"] == drawn].reset_index()
                ends = 100 * scores["confidence_low"], 100 * scores["confidence_high"]
                axes.fill_between(scores.index, *ends, color=colours[drawn], alpha=0.2, linewidth=0)
                axes.plot(scores.index, 100 * scores["average"], color=colours[drawn], linewidth=1.3)
                row: Any
                for row in scores[scores["verdict"].isin(_JUDGED)].itertuples():
                    colour = _COLOURS[row.verdict]
                    style.draw_estimate(axes, row.Index, 100 * row.average, None, colour, is_upright=True)
        doses = along.loc[along["method"] == plain, "dose"]
        column[-1].set_xticks(range(len(doses)), doses, rotation=45, ha="right", rotation_mode="anchor")
        column[0].set_title(kind)
    style.label_lines(grid[:, 0], [titles[method] for method in methods], 16)
    words = f"points: {titles[plain]} against no dose, the others against it under the same dose"
    named = {titles[plain]: NEUTRAL, "the method": style.COLOURS[0]}
    lines = [Line2D([], [], color=colour, label=name) for name, colour in named.items()]
    return _finished(figure, "Score (%) by dose: mean over seeds, and its 95 % interval", _JUDGED, words, lines)


def _mark(axes: Axes, row: Any, place: float, value: float, is_upright: bool) -> None:
    interval = (100 * row.confidence_low, 100 * row.confidence_high)
    style.draw_estimate(axes, place, value, interval, _COLOURS[str(row.verdict)], is_upright=is_upright)


def _finished(figure: Figure, title: str, verdicts: Iterable[str], words: str, lines: Sequence[Line2D] = ()) -> Figure:
    """Give a figure its title, and a legend of ``lines`` and verdicts."""
    style.set_title(figure, title)
    legend_below(figure, [*lines, *style.verdict_marks({verdict: _COLOURS[verdict] for verdict in verdicts})], words)
    return figure
