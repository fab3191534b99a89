"""What the figures of the claims have in common."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.figures.style import COLOURS
from rlvr.diagnostics.interval import Measurement, t_interval

POSITIVE, NEGATIVE = "#0072b2", "#d55e00"
"""Okabe and Ito's blue and vermilion: tokens of rewarded and of punished rollouts, in every figure."""
SERIES = COLOURS
"""Of every figure of the project, for series that are no sides; told apart by marker too."""
_TITLE_CHARACTERS_PER_INCH = 13


def finish(figure: Figure, finding: str, measurements: Sequence[Measurement]) -> Figure:
    """Write the finding above the panels, and below them what bars are and how many units they are over."""
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
    """A difference of shares in words."""
    return f"{abs(100 * difference):.0f} points {'more' if difference > 0 else 'less'}"


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
    """Mean of ``y`` at each ``x``, with its interval over the rows that share it unless there are too many lines."""
    groups = frame.dropna(subset=[y]).groupby(x)[y]
    values = [group.to_numpy(dtype=np.float64) for _, group in groups]  # in order of x
    places = np.unique(frame.dropna(subset=[y])[x].to_numpy(dtype=np.float64))
    means = np.array([value.mean() for value in values])
    bounds = np.array([t_interval(value) for value in values]).reshape(-1, 2)
    axes.plot(places, means, line, color=colour, marker=marker, markersize=4, linewidth=1.3, label=label)
    if band:
        axes.fill_between(places, bounds[:, 0], bounds[:, 1], color=colour, alpha=0.15, linewidth=0)
