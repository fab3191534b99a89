"""The dose-response figure: scores of methods under doses of difference between sampler and trainer."""

from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evals.figures import style
from evals.figures.style import NEUTRAL, VERDICT_COLOURS

_LABEL_WIDTH = 16  # characters
_COLOUR = style.COLOURS[0]
_JUDGED = ("better", "worse")


def write_doses_figure(table: Path, reference_method: str, out: Path) -> None:
    """Draw the scores of ``table``, the CSV file of the table of doses."""
    rows = pd.read_csv(table, dtype={"dose": str}).fillna({"kind": "", "dose": "none", "verdict": ""})
    style.write_figure("doses", partial(draw_doses, rows, reference_method), out, [table])


def draw_doses(rows: pd.DataFrame, plain: str) -> Figure:
    """A line of panels for each method, a column for each kind of dose; the plain method in grey.

    Lines go through means, bands are intervals, and a point is coloured where a method differs from the plain one under
    the same dose; on the plain one's own line, where it differs from no dose.
    """
    dosed = rows[rows["kind"] != ""]
    titles = dict(zip(dosed["method"], dosed["title"], strict=True))
    kinds, methods = list(dict.fromkeys(dosed["kind"])), [method for method in titles if method != plain]
    figure = style.new_figure(1.8 + 1.9 * len(kinds), 1.4 + 1.1 * len(methods))
    grid = figure.subplots(len(methods), len(kinds), squeeze=False, sharex="col", sharey=True)
    for kind, column in zip(kinds, grid.T, strict=True):
        along = rows[rows["kind"].isin(["", kind])]
        for method, axes in zip(methods, column, strict=True):
            _draw(axes, along[along["method"] == plain], NEUTRAL)
            _draw(axes, along[along["method"] == method], _COLOUR)
        doses = along.loc[along["method"] == plain, "dose"]
        column[-1].set_xticks(range(len(doses)), doses, rotation=45, ha="right", rotation_mode="anchor")
        column[0].set_title(kind)
    style.label_lines(grid[:, 0], [titles[method] for method in methods], _LABEL_WIDTH)
    style.set_title(figure, "Score (%) by dose: mean over seeds, and its 95 % interval")
    handles = [Line2D([], [], color=NEUTRAL, label=titles[plain]), Line2D([], [], color=_COLOUR, label="the method")]
    handles += [
        Line2D([], [], color=VERDICT_COLOURS[verdict], marker="o", linewidth=0, label=verdict) for verdict in _JUDGED
    ]
    words = f"points: {titles[plain]} against no dose, the others against it under the same dose"
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), title=words, title_fontsize=8.5)
    return figure


def _draw(axes: Axes, rows: pd.DataFrame, colour: str) -> None:
    """Draw a method's scores from no dose on."""
    places = range(len(rows))
    low, high = rows["confidence_low"], rows["confidence_high"]
    axes.fill_between(places, 100 * low, 100 * high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(places, 100 * rows["average"], color=colour, linewidth=1.3)
    for x, average, verdict in zip(places, 100 * rows["average"], rows["verdict"], strict=True):
        if verdict in _JUDGED:
            axes.plot(x, average, "o", color=VERDICT_COLOURS[verdict], markersize=4.5, markeredgecolor="white")
