"""The figure of sizes: every method's difference to the reference method on models of several sizes."""

import math
import textwrap
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evals.figures import style
from evals.figures.style import NEUTRAL, VERDICT_COLOURS
from evals.tables import numbers

_COLUMNS = 4
_TITLE_WIDTH = 24  # characters


def write_sizes_figure(table: Path, reference: str, out: Path) -> None:
    """Draw the differences of ``table``, the CSV file of the table of sizes, to the method titled ``reference``."""
    rows = pd.read_csv(table)
    style.write_figure("sizes", partial(draw_sizes, rows, reference), out, [table])


def draw_sizes(rows: pd.DataFrame, reference: str) -> Figure:
    """A panel for each method: its difference with its interval by the size of the model, coloured by verdict."""
    rows = rows[rows["difference"].notna()]
    titles = list(dict.fromkeys(rows["title"]))
    columns = min(_COLUMNS, len(titles))
    figure = style.new_figure(0.8 + 2.2 * columns, 1.3 + 1.8 * math.ceil(len(titles) / columns))
    wrapped = [textwrap.fill(title, _TITLE_WIDTH, break_long_words=False) for title in titles]
    panels = style.titled_panels(figure, wrapped, columns, fontsize=8.5)
    sizes = sorted(set(rows["parameters"]))
    for title, axes in zip(titles, panels, strict=True):
        on_models = rows[rows["title"] == title].sort_values("parameters")
        axes.axhline(0, color=NEUTRAL, linewidth=0.9)
        axes.set_xscale("log")
        axes.plot(on_models["parameters"], 100 * on_models["difference"], color=NEUTRAL, linewidth=0.9)
        for row in on_models.itertuples():
            colour = VERDICT_COLOURS[str(row.verdict)]
            axes.vlines(
                row.parameters, 100 * row.confidence_low, 100 * row.confidence_high, color=colour, linewidth=1.8
            )
            axes.plot(row.parameters, 100 * row.difference, "o", color=colour, markersize=5, markeredgecolor="white")
        axes.set_xticks(sizes, [numbers.count(size) for size in sizes], minor=False)
        axes.minorticks_off()
        axes.margins(x=0.12)
    style.set_title(figure, f"Difference to {reference} (points) by size")
    verdicts = dict.fromkeys(map(str, rows["verdict"]))
    handles = [Line2D([], [], color=VERDICT_COLOURS[verdict], marker="o", label=verdict) for verdict in verdicts]
    words = "across: parameters of the model; lines: 95 % intervals"
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), title=words, title_fontsize=8.5)
    return figure
