"""The panels of a claim's figure, declared by what they show, and the one drawer of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.figures.style import COLOURS
from evals.tables.numbers import rounded
from rlvr_claims.claims.findings import Measurement, beside, mean_interval

POSITIVE, NEGATIVE = "#0072b2", "#d55e00"
"""Okabe and Ito's blue and vermilion: tokens of rewarded and of punished rollouts, in every figure."""
SERIES = COLOURS  # the project's colours, for series that are no sides; told apart by marker too
QUIET = "#9a9a9a"
SMALL = {"fontsize": 7}  # the usual legend
NumberFormat = str | Callable[[float, int], str]


@dataclass(frozen=True)
class Estimates:
    """Means of values, one per unit, with their intervals: at 0, 1, 2 ... named by the ticks, or at numbers.

    A value may be a measurement already; ``seeds`` draws the values too.
    """

    values: Mapping[Any, Iterable[float] | Measurement]
    colour: str = SERIES[0]
    marker: str = "o"
    label: str | None = None
    shift: float = 0.0
    seeds: bool = False

    def draw(self, axes: Axes, level: bool) -> None:
        """Draw upright intervals along x, or level ones along y."""
        width, opacity = (1.2, 0.6) if self.seeds else (1.8, 1.0)
        for number, (name, values) in enumerate(self.values.items()):
            position = (number if isinstance(name, str) else name) + self.shift
            estimate = values if isinstance(values, Measurement) else beside("", values)
            interval = axes.hlines if level else axes.vlines
            interval(position, estimate.low, estimate.high, color=self.colour, linewidth=width, alpha=opacity)
            if self.seeds and not isinstance(values, Measurement):
                axes.plot(seeds := list(values), [position] * len(seeds), "|", color=self.colour, markersize=9)
            x, y = (estimate.estimate, position) if level else (position, estimate.estimate)
            label = None if number else self.label
            axes.plot(x, y, self.marker, color=self.colour, markersize=5, label=label)
        if all(isinstance(name, str) for name in self.values):
            (axes.set_yticks if level else axes.set_xticks)(range(len(self.values)), [*map(str, self.values)])


@dataclass(frozen=True)
class Means:
    """The mean of ``y`` at each ``x``, with the interval over the rows that share it if ``band``."""

    rows: pd.DataFrame
    x: str
    y: str
    colour: str = SERIES[0]
    label: str = ""
    marker: str = "o"
    line: str = "-"
    band: bool = True

    def draw(self, axes: Axes, level: bool) -> None:
        groups = self.rows.dropna(subset=[self.y]).groupby(self.x)[self.y]
        values = {x: group.to_numpy(dtype=np.float64) for x, group in groups}  # in order of x
        places = np.array(list(values), dtype=np.float64)
        means = [group.mean() for group in values.values()]
        style: dict[str, Any] = {"color": self.colour, "marker": self.marker, "label": self.label or None}
        axes.plot(places, means, self.line, markersize=4, linewidth=1.3, **style)
        if self.band:
            bounds = np.array([mean_interval(group) for group in values.values()]).reshape(-1, 2)
            axes.fill_between(places, bounds[:, 0], bounds[:, 1], color=self.colour, alpha=0.15, linewidth=0)


@dataclass(frozen=True)
class Histogram:
    """The mean share over units of each bin; ``rows`` have the bin's ``x`` and a value."""

    rows: pd.DataFrame
    x: str
    colour: str
    label: str
    line: str = "-"
    where: str = "mid"  # "post" if x is the lower edge of a bin

    def draw(self, axes: Axes, level: bool) -> None:
        shares = self.rows.groupby(self.x)["value"].mean()
        style: dict[str, Any] = {"where": self.where, "color": self.colour, "label": self.label}
        axes.step(shares.index.to_numpy(), shares.to_numpy(), self.line, **style)


@dataclass(frozen=True)
class Dots:
    """One dot a row."""

    rows: pd.DataFrame
    x: str
    y: str
    colour: str
    marker: str
    label: str

    def draw(self, axes: Axes, level: bool) -> None:
        style: dict[str, Any] = {"color": self.colour, "markersize": 2, "alpha": 0.5, "label": self.label}
        axes.plot(self.rows[self.x], self.rows[self.y], self.marker, **style)


@dataclass(frozen=True)
class Level:
    """A line across the panel."""

    value: float
    colour: str = QUIET
    line: str = "-"
    label: str | None = None
    upright: bool = False

    def draw(self, axes: Axes, level: bool) -> None:
        across = axes.axvline if self.upright or level else axes.axhline
        across(self.value, color=self.colour, linestyle=self.line, linewidth=0.9, label=self.label)


@dataclass(frozen=True)
class Words:
    """Columns of words under a heading, each with a share and the larger the more of it; the panel has no axes."""

    columns: Mapping[str, tuple[str, pd.Series]]  # heading -> colour, and shares by word, the largest first

    def draw(self, axes: Axes, level: bool) -> None:
        largest = max([1e-9, *(float(shares.abs().max()) for _, shares in self.columns.values() if len(shares))])
        for number, (heading, (colour, shares)) in enumerate(self.columns.items()):
            x = (2 * number + 1) / (2 * len(self.columns))
            axes.text(x, 0.97, heading, ha="center", va="top", fontsize=8)
            for index, (word, share) in enumerate(shares.items()):
                style: dict[str, Any] = {"color": colour, "fontsize": 8 + 10 * float(share) / largest}
                style |= {"family": "DejaVu Sans Mono", "parse_math": False, "ha": "center", "va": "center"}
                axes.text(x, 0.86 - 0.105 * index, f"{word}  {rounded(share, '+.0%')}", **style)
        axes.set_axis_off()


Mark = Estimates | Means | Histogram | Dots | Level | Words


@dataclass(frozen=True)
class Panel:
    """One pair of axes: what is drawn in it, and how its axes are set (words, limits, scales, ticks)."""

    marks: Sequence[Mark]
    settings: Mapping[str, Any]  # of Axes.set
    level: bool  # estimates lie along y
    formats: Mapping[str, NumberFormat]  # of an axis' numbers, for "x" and "y"
    legend: Mapping[str, Any] | None


def panel(
    title: str,
    *marks: Mark,
    x: str = "",
    y: str = "",
    level: bool = False,
    formats: Mapping[str, NumberFormat] | None = None,
    legend: Mapping[str, Any] | None = SMALL,
    **settings: Any,
) -> Panel:
    """Declare a panel with the words of its axes; without ``legend`` its lines have none."""
    return Panel(marks, {"title": title, "xlabel": x, "ylabel": y, **settings}, level, formats or {}, legend)


Layout = Sequence[Sequence[Panel]]
"""Lines of panels, alike in length; a panel that stands in neighbouring places fills them all."""


def draw_panels(figure: Figure, layout: Layout) -> None:
    """Draw every panel of a figure."""
    panels = {str(id(panel)): panel for line in layout for panel in line}
    mosaic: Any = [[str(id(panel)) for panel in line] for line in layout]
    for name, axes in figure.subplot_mosaic(mosaic).items():
        panel = panels[str(name)]
        for mark in panel.marks:
            mark.draw(axes, panel.level)
        axes.set(**panel.settings)
        if "yticklabels" in panel.settings:  # names, which take room
            axes.tick_params(axis="y", labelsize=6.5)
        for axis in (axes.xaxis, axes.yaxis):
            if "log" in axis.get_scale():  # its own formatter writes mathematics, and figures have none
                axis.set_major_formatter("{x:g}")
        for letter, form in panel.formats.items():
            getattr(axes, f"{letter}axis").set_major_formatter(form)
        if panel.legend is not None and axes.get_legend_handles_labels()[0]:
            axes.legend(**panel.legend)
