"""Measuring and drawing a claim, and parts of the figures that several claims share."""

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.core.files import write_json, write_parquet
from evals.core.manifest import write_output_manifest
from evals.figures.style import COLOURS, new_figure, set_title, write_figure
from rlvr.diagnostics.claims.base import find_claim
from rlvr.diagnostics.claims.findings import (
    NOT_MEASURED,
    Claim,
    Findings,
    Measurement,
    Summary,
    beside,
    mean_interval,
)
from rlvr.diagnostics.claims.inputs import Inputs

POSITIVE, NEGATIVE = "#0072b2", "#d55e00"
"""Okabe and Ito's blue and vermilion: tokens of rewarded and of punished rollouts, in every figure."""
SERIES = COLOURS  # the project's colours, for series that are no sides; told apart by marker too
QUIET = "#9a9a9a"


def measure_claim(name: str, inputs: Inputs, out: Path, figure: Path) -> None:
    """Measure a claim and write ``{out}.json``, ``{out}.parquet``, ``{figure}.png``, ``{figure}.svg`` and manifests."""
    declaration = find_claim(name, of_checkpoints=inputs.comparison is not None)
    inputs.check(declaration)
    claim = declaration.load()
    findings = claim.measure(inputs)
    series = out.with_name(f"{out.name}.parquet")
    write_parquet(series, findings.series)
    summary = Summary(title=declaration.title, method=claim.method, measurements=tuple(findings.measurements))
    write_json(out.with_name(f"{out.name}.json"), summary.to_json())
    write_output_manifest("findings", out, (".json", ".parquet"), inputs.files(), {"claim": name})
    write_figure(name, lambda: draw_claim(claim, findings), figure, [series])


def draw_claim(claim: Claim, findings: Findings) -> Figure:
    """Draw the panels below the finding, and below them the meaning of the bars and the number of units."""
    figure = new_figure(*claim.size)
    width = figure.get_figwidth()
    # 13 and 16 characters an inch.
    set_title(figure, textwrap.fill(claim.draw(figure, findings), int(width * 13)), fontsize=9.5)
    counted: dict[str, list[int]] = {}
    for each in findings.measurements:
        if each.verdict != NOT_MEASURED:
            counted.setdefault(each.unit, []).append(each.units)
    ranges = {unit: sorted({min(counts), max(counts)}) for unit, counts in counted.items()}
    units = "; ".join(f"n = {' to '.join(map(str, counts))} {unit}" for unit, counts in ranges.items())
    note = textwrap.fill(f"Bars and bands: 95 % intervals of the mean over units, {units}.", int(width * 16))
    figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, color="#4d4d4d")
    return figure


def points(difference: float) -> str:
    """Return a difference of shares in words."""
    return f"{abs(100 * difference):.0f} points {'more' if difference > 0 else 'less'}"


def draw_estimates(
    axes: Axes,
    values: Mapping[str, Iterable[float]],
    colour: str,
    marker: str = "o",
    label: str | None = None,
    shift: float = 0.0,
    level: bool = False,
) -> None:
    """Draw means with their intervals at 0, 1, 2 ... + ``shift`` along x, or along y if ``level``, named by the ticks.

    ``values`` are one per unit.
    """
    for place, own in enumerate(values.values()):
        draw_estimate(axes, place + shift, beside("", own), colour, marker, label if place == 0 else None, level)
    set_ticks = axes.set_yticks if level else axes.set_xticks
    set_ticks(range(len(values)), list(values))


def draw_estimate(
    axes: Axes,
    place: float,
    each: Measurement,
    colour: str,
    marker: str = "o",
    label: str | None = None,
    level: bool = False,
) -> None:
    """Draw an estimate at x = ``place`` with an upright interval, or at y = ``place`` with a level one."""
    draw_interval = axes.hlines if level else axes.vlines
    draw_interval(place, each.low, each.high, color=colour, linewidth=1.8)
    x, y = (each.estimate, place) if level else (place, each.estimate)
    axes.plot(x, y, marker, color=colour, markersize=5, label=label)


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
    groups = {place: own.to_numpy(dtype=np.float64) for place, own in frame.dropna(subset=[y]).groupby(x)[y]}
    places = np.array(list(groups), dtype=np.float64)  # in order of x
    means = np.array([values.mean() for values in groups.values()])
    axes.plot(places, means, line, color=colour, marker=marker, markersize=4, linewidth=1.3, label=label)
    if band:
        bounds = np.array([mean_interval(values) for values in groups.values()]).reshape(-1, 2)
        axes.fill_between(places, bounds[:, 0], bounds[:, 1], color=colour, alpha=0.15, linewidth=0)
