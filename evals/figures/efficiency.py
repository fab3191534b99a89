"""Figures of scores against cost: training rewards over tokens, steps and seconds; compute-performance curves."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from evals.core.errors import UserError
from evals.core.records import BASE
from evals.figures import style
from evals.results import Results
from evals.tables.efficiency import Fits, fit_courses, read_totals

COSTS = {
    "tokens_generated": "generated tokens",
    "optimizer_steps": "optimizer steps",
    "seconds_step": "seconds of training steps",
}
_POINTS = 200
_WIDTH = 20  # characters


def write_cost_curves(results: Results, training: Path, out: Path) -> None:
    """Draw the training reward over tokens, optimizer steps and seconds."""
    runs = [run.run for row in results.conditions for run in row.runs if row.method != BASE]
    totals = {run: read_totals(run, training) for run in runs}
    files = [training / run / "metrics.parquet" for run in runs]
    style.write_figure("cost_curves", partial(draw_cost_curves, results, totals), out, [*results.sources, *files])


def write_compute_performance(results: Results, training: Path, out: Path) -> None:
    """Draw scores on the validation problems over tokens, with the fitted curves."""
    fits = fit_courses(results, training)
    if fits is None:
        raise UserError(f"{training}: not every run has validation.parquet; accepted: a study with validation")
    names = ("metrics.parquet", "validation.parquet")
    files = [training / run.run / name for row in fits.courses for run in row.runs for name in names]
    draw = partial(draw_compute_performance, results, fits)
    style.write_figure("compute_performance", draw, out, [*results.sources, *files])


def draw_cost_curves(results: Results, totals: dict[str, pd.DataFrame]) -> Figure:
    """A line of panels for each method: mean over seeds, band from the smallest to the largest, the others in grey."""
    rows, styles = [row for row in results.conditions if row.method != BASE], style.method_styles(results.runs)
    figure = style.new_figure(9.0, 1.0 + 1.15 * len(rows))
    grid = figure.subplots(len(rows), len(COSTS), squeeze=False, sharex="col", sharey=True)
    for (cost, title), panels in zip(COSTS.items(), grid.T, strict=True):
        curves = [over_cost([totals[run.run] for run in row.runs], cost) for row in rows]
        for axes, row, (spent, seeds) in zip(panels, rows, curves, strict=True):
            for other, values in curves:
                axes.plot(other, 100 * values.mean(axis=0), color="#c8c8c8", linewidth=0.6)
            colour = styles[row.method].colour
            low, high = 100 * seeds.min(axis=0), 100 * seeds.max(axis=0)
            axes.fill_between(spent, low, high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(spent, 100 * seeds.mean(axis=0), color=colour, linewidth=1.3)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        panels[-1].set_xlabel(title)
    style.label_lines(grid[:, 0], [row.title for row in rows], _WIDTH)
    number = style.number_of_seeds(len(row.runs) for row in rows)
    style.set_title(figure, f"Training reward (%) over cost: mean and range of {number} seeds; grey: the other methods")
    return figure


def over_cost(seeds: Sequence[pd.DataFrame], cost: str, points: int = _POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Costs [P] that every seed reached, and the reward [S, P] there, linear between steps."""
    first, last = max(seed[cost].iloc[0] for seed in seeds), min(seed[cost].iloc[-1] for seed in seeds)
    spent = np.linspace(first, max(first, last), points)
    return spent, np.array([np.interp(spent, seed[cost], seed["reward_mean"]) for seed in seeds])


def draw_compute_performance(results: Results, fits: Fits) -> Figure:
    """A panel for each method: scores of every seed, and the fitted curve with its ceiling; the others in grey."""
    rows, styles = list(fits.courses), style.method_styles(results.runs)
    figure, panels = style.small_panels([row.title for row in rows], 3, (0.6, 2.9), (1.1, 2.0))
    largest = max(course.compute.max() for course in fits.courses.values())
    smallest = min(course.compute.min() for course in fits.courses.values())
    compute = np.geomspace(smallest / 2, largest, _POINTS)
    for axes, row in zip(panels, rows, strict=True):
        for other in rows:
            axes.plot(compute, 100 * fits.curves[other].scores(compute)[0], color="#c8c8c8", linewidth=0.6)
        course, curve, colour = fits.courses[row], fits.curves[row], styles[row.method].colour
        scores, fitted = 100 * course.accuracies.mean(axis=2)[:, 1:], 100 * curve.scores(compute)[0]
        axes.plot(course.compute.ravel(), scores.ravel(), ".", color=colour, markersize=3, alpha=0.5)
        inside = compute <= course.compute.max()
        axes.plot(compute[inside], fitted[inside], color=colour, linewidth=1.5)
        axes.plot(compute[~inside], fitted[~inside], color=colour, linewidth=1.2, linestyle=":")
        if fits.has_ceiling(row):
            axes.axhline(100 * curve.ceiling[0], color=colour, linewidth=0.9, linestyle="--")
        axes.axhline(100 * curve.base[0], color=style.NEUTRAL, linewidth=0.7, linestyle=":")
    panels[0].set_xscale("log")
    panels[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[0].xaxis.set_minor_formatter(lambda *_: "")
    number = style.number_of_seeds(len(row.runs) for row in rows)
    words = (
        "dots: seeds; line: fit; dashed: its ceiling A, if identified; dotted grey: base model; grey: the other methods"
    )
    style.set_title(figure, f"Compute-performance curves, {number} seeds\n{words}", fontsize=9.5)
    figure.supxlabel("generated tokens", fontsize=8.5)
    figure.supylabel(f"score on {fits.problems} held-out problems (%)", fontsize=8.5)
    return figure
