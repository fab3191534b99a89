"""A grid with one panel per benchmark and one for their mean, methods down the side."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.figures.style import new_figure

_COLUMNS = 3
_LABEL_WIDTH, _WIDE_LABEL_WIDTH, _MANY = 24, 34, 12  # characters; many rows are narrow, and their labels wide instead


def method_panels(titles: Sequence[str], row_labels: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """Panels that share both axes; row 0 of every panel is at the top.

    Args:
        titles: one panel each.
        row_labels: the methods, written once at the left of each line of panels.
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
