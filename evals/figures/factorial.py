"""The figure of a factorial: every effect with its interval, a panel for each model."""

from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evals.figures import style
from evals.figures.style import NEUTRAL, VERDICT_COLOURS

_KINDS = ("main effect", "interaction")
_COLOURS = {
    "raises": VERDICT_COLOURS["better"],
    "lowers": VERDICT_COLOURS["worse"],
    "not distinguishable": NEUTRAL,
}


def write_factorial_figure(table: Path, out: Path) -> None:
    """Draw the effects of ``table``, the CSV file of the table of effects."""
    style.write_figure("factorial", partial(draw_factorial, pd.read_csv(table)), out, [table])


def draw_factorial(rows: pd.DataFrame) -> Figure:
    """A line for each effect, main effects above interactions, coloured by verdict; a scale for each model.

    A training that falls makes the intervals of its model many times as wide as those of another one.
    """
    rows = rows[rows["kind"].isin(_KINDS)]
    names, models = list(dict.fromkeys(rows["name"])), list(dict.fromkeys(rows["model"]))
    main = rows.loc[rows["kind"] == _KINDS[0], "name"].nunique()
    height = {name: -number - (0.6 if number >= main else 0.0) for number, name in enumerate(names)}
    figure = style.new_figure(2.7 + 2.6 * len(models), 1.2 + 0.2 * len(names))
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False).flat
    for axes, model in zip(panels, models, strict=True):
        axes.set_title(model)
        axes.axvline(0, color=NEUTRAL, linewidth=0.9)
        for row in rows[rows["model"] == model].itertuples():
            colour, at = _COLOURS[str(row.verdict)], height[str(row.name)]
            axes.hlines(at, 100 * row.confidence_low, 100 * row.confidence_high, color=colour, linewidth=1.8)
            axes.plot(100 * row.effect, at, "o", color=colour, markersize=5, markeredgecolor="white")
        axes.set_yticks([*height.values()], [*height])
        axes.set_ylim(min(height.values()) - 0.7, 0.7)
    style.set_title(figure, "Effects on the score (points)")
    handles = [Line2D([], [], color=colour, marker="o", label=verdict) for verdict, colour in _COLOURS.items()]
    words = "above: main effects; below: two-way interactions; lines: 95 % intervals; colours: after Holm"
    figure.legend(handles=handles, loc="outside lower center", ncols=3, title=words, title_fontsize=8.5)
    return figure
