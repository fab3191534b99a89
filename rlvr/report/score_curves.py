"""Scores along the training: what the checkpoints after a part of the steps score on the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from evals.core.errors import UserError
from evals.core.records import BASE, BenchmarkScores, Run
from evals.figures.style import NEUTRAL, method_styles, new_figure

Points = Mapping[str, Sequence[tuple[int, str]]]
"""Method -> steps of training, and the name under which the method is scored after them."""


def read_averages(runs: Sequence[Run], paths: Sequence[Path]) -> tuple[dict[str, list[float]], int]:
    """Method -> the mean over all benchmarks of each of its runs, as a fraction; and the k of avg@k.

    Args:
        runs: of every study that the score files are of.
        paths: score files; a run has to be in the files of as many benchmarks as every other.

    Raises:
        UserError: a file is malformed, or lacks a run.
    """
    values: dict[str, list[float]] = {}
    k = 0
    for path in paths:
        content = BenchmarkScores.read(path)
        k = content.samples_per_problem
        for score in content.scores:
            values.setdefault(score.run, []).append(score.average_at_k)
    averages: dict[str, dict[str, float]] = {}
    for run in runs:
        if run.run not in values:
            raise UserError(f"{paths[0]}: no score of {run.run}")
        averages.setdefault(run.method, {})[run.run] = float(np.mean(values[run.run]))
    return {method: list(of_runs.values()) for method, of_runs in averages.items()}, k


def draw_score_curves(runs: Sequence[Run], points: Points, averages: Mapping[str, Sequence[float]], k: int) -> Figure:
    """A line for each method: mean over the seeds, a band from the smallest to the largest, from the base model on.

    Args:
        runs: of the study whose methods are drawn, for their titles and colours.
        points: where each method is scored.
        averages: name under which a method is scored -> the scores of its runs, fractions of one.
        k: of avg@k.
    """
    styles = method_styles(runs)
    titles = {run.method: run.title for run in runs}
    base = float(np.mean(averages[BASE]))
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()
    axes.axhline(100 * base, color=NEUTRAL, linewidth=0.9, linestyle="--")
    for method in (method for method in styles if method in points):
        scored, style = points[method], styles[method]
        steps = [0, *(step for step, _ in scored)]
        seeds = [[base], *(averages[name] for _, name in scored)]
        low, mean, high = (np.array([100 * of(values) for values in seeds]) for of in (min, np.mean, max))
        axes.fill_between(steps, low, high, color=style.colour, alpha=0.13, linewidth=0)
        axes.plot(
            steps, mean, style.marker, linestyle="-", color=style.colour, label=titles[method], markeredgecolor="white"
        )
    counts = sorted({len(averages[name]) for scored in points.values() for _, name in scored})
    number = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    axes.set_xlim(left=0)
    axes.set_xlabel("rollout step")
    axes.set_ylabel(f"avg@{k}, mean of all benchmarks (%)")
    axes.legend(loc="upper left", fontsize=8)
    words = f"Scores along the training: mean and range of {number} seeds; dashed: base model"
    figure.suptitle(words, x=0.01, ha="left", weight="bold")
    return figure
