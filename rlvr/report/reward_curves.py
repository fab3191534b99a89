"""Reward curves of a study of many methods: a small panel for each, or two studies beside each other."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.core.errors import UserError
from evals.core.records import BASE, Condition, Run, conditions_of
from evals.figures.style import method_styles, new_figure
from rlvr.report.curves import CURVES, OTHERS, by_seed, draw_seeds

_REWARD = CURVES[0]
_COLUMNS = 5
_PANEL_LABEL, _ROW_LABEL = 26, 22  # characters


def draw_rewards(
    sheets: Sequence[Sequence[Run]], titles: Sequence[str], metrics: Mapping[str, pd.DataFrame], reference: str
) -> Figure:
    """Reward of every method: mean over seeds, band from the smallest to the largest, reference black, others grey.

    Args:
        sheets: the runs of one study, or of two whose methods correspond in order.
        titles: one a study.
        metrics: run -> the frame of :func:`rlvr.report.curves.read_metrics`.
        reference: method of the first study that is drawn black; in the second, the method in its place.

    Raises:
        UserError: a study has no trained run, lacks the reference, or the two differ in their number of methods.
    """
    studies = [[row for row in conditions_of(runs) if row.method != BASE] for runs in sheets]
    methods = [row.method for row in studies[0]]
    if reference not in methods:
        raise UserError(f"--reference-method: is {reference!r}; accepted: {', '.join(methods)}")
    if any(len(rows) != len(methods) for rows in studies):
        raise UserError(
            f"--runs: the studies have {', '.join(str(len(rows)) for rows in studies)} methods, not as many"
        )
    figure, panels = _side_by_side(studies[0], titles) if len(studies) > 1 else _grid(studies[0])
    place = methods.index(reference)
    for runs, rows, column in zip(sheets, studies, panels, strict=True):
        _draw_study(column, runs, rows, metrics, place)
    counts = sorted({len(row.runs) for rows in studies for row in rows})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    words = f"Reward in training: mean and range of {seeds} seeds\nblack: {studies[0][place].title}; grey: the others"
    figure.suptitle(words, x=0.01, ha="left", weight="bold", fontsize=9.5)
    figure.supxlabel("rollout step", fontsize=8.5)
    return figure


def _draw_study(
    panels: Sequence[Axes],
    runs: Sequence[Run],
    rows: Sequence[Condition],
    metrics: Mapping[str, pd.DataFrame],
    reference: int,
) -> None:
    styles = method_styles(runs)
    seeds = [by_seed(row, _REWARD, metrics) for row in rows]
    means = [values.mean(axis=1) for values in seeds]
    for axes, row, values in zip(panels, rows, seeds, strict=True):
        for mean in means:
            axes.plot(mean.index.to_numpy(), mean.to_numpy(), color=OTHERS, linewidth=0.5)
        axes.plot(means[reference].index.to_numpy(), means[reference].to_numpy(), color="black", linewidth=0.9)
        draw_seeds(axes, values, styles[row.method])


def _grid(rows: Sequence[Condition]) -> tuple[Figure, list[list[Axes]]]:
    columns = min(_COLUMNS, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure = new_figure(0.6 + 2.0 * columns, 0.9 + 1.5 * lines)
    panels = list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)
    for axes in panels[len(rows) :]:
        axes.remove()
    for place, (axes, row) in enumerate(zip(panels, rows, strict=False)):
        axes.set_title(textwrap.fill(row.title, _PANEL_LABEL, break_long_words=False), fontsize=8)
        if place + columns >= len(rows):  # nothing below it, in this column, would carry the numbers
            axes.tick_params(labelbottom=True)
    return figure, [panels[: len(rows)]]


def _side_by_side(rows: Sequence[Condition], titles: Sequence[str]) -> tuple[Figure, list[list[Axes]]]:
    figure = new_figure(2.0 + 3.4 * len(titles), 1.1 + 1.15 * len(rows))
    grid = figure.subplots(len(rows), len(titles), sharex=True, sharey=True, squeeze=False)
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title)
    for axes, row in zip(grid[:, 0], rows, strict=True):
        label = textwrap.fill(row.title, _ROW_LABEL, break_long_words=False)
        axes.set_ylabel(label, rotation=0, ha="right", va="center", weight="bold")
    return figure, [list(column) for column in grid.T]
