"""Parts of the figures that several claims share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.figures.style import COLOURS
from rlvr.diagnostics.claims.findings import Measurement, mean_interval

POSITIVE, NEGATIVE = "#0072b2", "#d55e00"
"""Okabe and Ito's blue and vermilion: tokens of rewarded and of punished rollouts, in every figure."""
SERIES = COLOURS
"""The project's colours, for series that are no sides; told apart by marker too."""
QUIET = "#9a9a9a"
_TITLE_CHARACTERS_PER_INCH = 13


def finish(figure: Figure, finding: str, measurements: Sequence[Measurement]) -> Figure:
    """Write the finding above the panels, and below them the meaning of the bars and the number of units."""
    width = figure.get_figwidth()
    title = textwrap.fill(finding, int(width * _TITLE_CHARACTERS_PER_INCH))
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=9.5)
    counted: dict[str, list[int]] = {}
    for each in measurements:
        counted.setdefault(each.unit, []).append(each.units)
    ranges = {unit: sorted({min(counts), max(counts)}) for unit, counts in counted.items()}
    units = "; ".join(f"n = {' to '.join(map(str, counts))} {unit}" for unit, counts in ranges.items())
    note = textwrap.fill(f"Bars and bands: 95 % intervals of the mean over units, {units}.", int(width * 16))
    figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, color="#4d4d4d")
    return figure


def points(difference: float) -> str:
    """Return a difference of shares in words."""
    return f"{abs(100 * difference):.0f} points {'more' if difference > 0 else 'less'}"


def draw_estimate(
    axes: Axes, place: float, each: Measurement, colour: str, marker: str = "o", label: str | None = None
) -> None:
    """Draw an estimate at x = ``place`` with an upright interval."""
    axes.vlines(place, each.low, each.high, color=colour, linewidth=1.8)
    axes.plot(place, each.estimate, marker, color=colour, markersize=5, label=label)


def draw_row(
    axes: Axes, place: float, each: Measurement, colour: str, marker: str = "o", label: str | None = None
) -> None:
    """Draw an estimate at y = ``place`` with a level interval."""
    axes.hlines(place, each.low, each.high, color=colour, linewidth=1.8)
    axes.plot(each.estimate, place, marker, color=colour, markersize=5, label=label)


def draw_means(
    axes: Axes,
    frame: pd.DataFrame,
    x: str,
    y: str,
    colour: str,
    label: str,
    marker: str = "o",
    line: str = "-",
    band: bool = True,
) -> None:
    """Draw the mean of ``y`` at each ``x``, with the interval over the rows that share it if ``band``."""
    groups = frame.dropna(subset=[y]).groupby(x)[y]
    values = [group.to_numpy(dtype=np.float64) for _, group in groups]  # in order of x
    places = np.unique(frame.dropna(subset=[y])[x].to_numpy(dtype=np.float64))
    means = np.array([value.mean() for value in values])
    bounds = np.array([mean_interval(value) for value in values]).reshape(-1, 2)
    axes.plot(places, means, line, color=colour, marker=marker, markersize=4, linewidth=1.3, label=label)
    if band:
        axes.fill_between(places, bounds[:, 0], bounds[:, 1], color=colour, alpha=0.15, linewidth=0)
