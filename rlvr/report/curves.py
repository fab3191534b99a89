"""Figures of quantities along the training: metrics of every method, rewards of many methods, scores of checkpoints."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_parquet
from evals.core.records import BASE, BenchmarkScores, Chosen, Condition, Run, conditions_of, read_runs
from evals.figures import style
from evals.figures.fitting import legend_beside
from evals.figures.style import NEUTRAL, number_of_seeds, set_title

Metrics = Mapping[str, pd.DataFrame]
"""Run -> its metrics, as :func:`read_metrics` reads them."""
Points = Mapping[str, Sequence[tuple[int, str]]]
"""Method -> steps of training, and the name under which the method is scored after them."""


@dataclass(frozen=True)
class Curve:
    """A column of metrics.parquet as a column of panels; ``from_zero`` where the distance to zero means something.

    ``lacking`` is what a panel says of a method without values.
    """

    column: str
    title: str
    scale: float
    unit: str
    from_zero: bool
    lacking: str = "not recorded"


CURVES = (
    Curve("reward_mean", "Reward", 1.0, "mean of the rollouts", False),
    Curve("entropy", "Entropy", 1.0, "nats per token", True),
    Curve("response_length_mean", "Response length", 1.0, "tokens", False),
    Curve("clip_fraction", "Clip fraction", 100.0, "% of response tokens", True, "does not clip"),
)
_OF_EVERY_METHOD = ("step", "reward_mean", "entropy", "response_length_mean")
_LABEL_WIDTH, _WIDE_LABEL_WIDTH = 20, 22  # characters
_PANELS_PER_LINE = 5


def write_training_curves(runs: Path, training: Path, out: Path) -> None:
    """Draw the training curves."""
    sheet = read_runs(runs)
    metrics, files = _read_all_metrics(sheet, training)
    style.write_figure("training_curves", partial(draw_training_curves, sheet, metrics), out, [runs, *files])


def write_reward_curves(
    runs: Sequence[Path], titles: Sequence[str], reference_method: str, training: Path, out: Path
) -> None:
    """Draw the reward curves of the run sheets of one study, or of two side by side, first the study's own."""
    studies = [read_runs(path) for path in runs]
    metrics, files = _read_all_metrics([run for sheet in studies for run in sheet], training)
    figure = partial(draw_reward_curves, studies, titles, metrics, reference_method)
    style.write_figure("reward_curves", figure, out, [*runs, *files])


def write_score_curves(runs: Sequence[Path], scores: Sequence[Path], points: Points, out: Path) -> None:
    """Draw scores along the training; ``runs`` are run sheets of one study or of two, first the study's own."""
    studies = [read_runs(path) for path in runs]
    averages, k = read_averages([run for sheet in studies for run in sheet], scores)
    figure = partial(draw_score_curves, studies[0], points, averages, k)
    style.write_figure("score_curves", figure, out, [*runs, *scores], points=points)


def write_validation_curves(runs: Path, choices: Sequence[Path], out: Path) -> None:
    """Draw the scores along every training run, by which its best checkpoint was chosen (chosen.json of each)."""
    sheet, chosen = read_runs(runs), [Chosen.read(path) for path in choices]
    figure = partial(draw_validation_curves, sheet, chosen)
    style.write_figure("validation_curves", figure, out, [runs, *choices])


def read_metrics(run: str, training: Path) -> pd.DataFrame:
    """A run's metrics by rollout step; a column that the method has no value for is missing values."""
    metrics = read_parquet(training / run / "metrics.parquet", _OF_EVERY_METHOD).set_index("step")
    return metrics.reindex(columns=[curve.column for curve in CURVES])


def _read_all_metrics(runs: Iterable[Run], training: Path) -> tuple[Metrics, list[Path]]:
    """The metrics of all trained runs, and their files."""
    trained = list(dict.fromkeys(run.run for run in runs if run.method != BASE))
    files = [training / run / "metrics.parquet" for run in trained]
    return {run: read_metrics(run, training) for run in trained}, files


def draw_training_curves(runs: Sequence[Run], metrics: Metrics) -> Figure:
    """One line of panels per method: mean over its seeds, a band from the smallest to the largest, the others in grey.

    Drawn over one another, eight noisy bands hide each other; apart, each can be read and still be compared.
    """
    rows = _trained(runs)
    figure = style.new_figure(10.5, 0.9 + 1.15 * len(rows))
    grid = figure.subplots(len(rows), len(CURVES), squeeze=False, sharex=True, sharey="col")
    for curve, column in zip(CURVES, grid.T, strict=True):
        _draw_methods(column, runs, curve, metrics)
        column[0].set_title(f"{curve.title}\n({curve.unit})", fontsize=8)
        column[-1].set_xlabel("rollout step")
        if curve.from_zero:
            column[0].set_ylim(bottom=0)
    style.label_lines(grid[:, 0], [row.title for row in rows], _LABEL_WIDTH)
    seeds = number_of_seeds(len(row.runs) for row in rows)
    words = f"mean of {seeds} seeds, band from the smallest to the largest seed; grey: the other methods"
    set_title(figure, f"Training: {words}")
    return figure


def draw_reward_curves(
    studies: Sequence[Sequence[Run]], titles: Sequence[str], metrics: Metrics, reference: str
) -> Figure:
    """Reward of every method: mean over seeds, band from the smallest to the largest, reference black, others grey.

    One study has a small panel for every method; two studies, whose methods correspond in order, have a line of panels
    for every method and a column each. Controls, which the second may lack, are the last lines. The reference is a
    method of the first study; in the second, the method in its place is drawn black.
    """
    rows = [_trained(runs) for runs in studies]
    methods = [row.method for row in rows[0]]
    if reference not in methods:
        raise InvalidInput("", "reference_method", f"is {reference!r}", ", ".join(methods))
    if any(len(of_study) > len(methods) for of_study in rows):
        message = f"the studies have {', '.join(str(len(of_study)) for of_study in rows)} methods"
        raise InvalidInput("", "runs", message, "studies of no more methods than the first")
    if len(studies) > 1:
        figure = style.new_figure(2.0 + 3.4 * len(titles), 1.1 + 1.15 * len(methods))
        grid = figure.subplots(len(methods), len(titles), sharex=True, sharey=True, squeeze=False)
        for axes, title in zip(grid[0], titles, strict=True):
            axes.set_title(title)
        style.label_lines(grid[:, 0], [row.title for row in rows[0]], _WIDE_LABEL_WIDTH)
        columns = [list(column) for column in grid.T]
    else:
        across = min(_PANELS_PER_LINE, len(methods))
        figure = style.new_figure(0.6 + 2.0 * across, 0.9 + 1.5 * math.ceil(len(methods) / across))
        columns = [style.titled_panels(figure, [row.title for row in rows[0]], across, fontsize=8)]
    reference_row = methods.index(reference)
    for runs, methods_drawn, column in zip(studies, rows, columns, strict=True):
        for axes in column[len(methods_drawn) :]:
            axes.set_visible(False)
        column[len(methods_drawn) - 1].tick_params(labelbottom=True)
        _draw_methods(column[: len(methods_drawn)], runs, CURVES[0], metrics, black=reference_row)
    seeds = number_of_seeds(len(row.runs) for of_study in rows for row in of_study)
    words = (
        f"Reward in training: mean and range of {seeds} seeds\nblack: {rows[0][reference_row].title}; grey: the others"
    )
    set_title(figure, words, fontsize=9.5)
    figure.supxlabel("rollout step", fontsize=8.5)
    return figure


def _trained(runs: Sequence[Run]) -> list[Condition]:
    rows = [condition for condition in conditions_of(runs) if condition.method != BASE]
    if not rows:
        raise InvalidInput("", "runs", "no trained run, so there are no training curves to draw")
    return rows


def of_seeds(metrics: Sequence[pd.DataFrame], curve: Curve) -> pd.DataFrame:
    """A curve's values by step, a column for each seed; as far as all seeds go, for one may have stopped early."""
    columns = [of_seed[curve.column] for of_seed in metrics]
    return pd.concat(columns, axis="columns", join="inner") * curve.scale


def _draw_methods(
    panels: Sequence[Axes], runs: Sequence[Run], curve: Curve, metrics: Metrics, black: int | None = None
) -> None:
    """Draw mean and range of each method in its panel, over the means of all; the one at ``black`` stands out."""
    styles, rows, width = style.method_styles(runs), _trained(runs), 0.6 if black is None else 0.5
    seeds = [of_seeds([metrics[run.run] for run in row.runs], curve) for row in rows]
    means = [values.mean(axis=1) for values in seeds]
    for axes, row, values, mean_of_seeds in zip(panels, rows, seeds, means, strict=True):
        for mean in means:
            axes.plot(mean.index.to_numpy(), mean.to_numpy(), color="#c8c8c8", linewidth=width)
        if black is not None:
            axes.plot(means[black].index.to_numpy(), means[black].to_numpy(), color="black", linewidth=0.9)
        if values.isna().to_numpy().all():
            axes.text(0.98, 0.9, curve.lacking, transform=axes.transAxes, ha="right", va="top", color=NEUTRAL)
            continue
        colour, steps = styles[row.method].colour, values.index.to_numpy()
        low, high = values.min(axis=1).to_numpy(), values.max(axis=1).to_numpy()
        axes.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(steps, mean_of_seeds.to_numpy(), color=colour, linewidth=1.4)


def read_averages(runs: Sequence[Run], paths: Sequence[Path]) -> tuple[dict[str, list[float]], int]:
    """Method -> the mean over all benchmarks of each of its ``runs``, as a fraction; and the k of avg@k."""
    files = [BenchmarkScores.read(path) for path in paths]
    scores = pd.DataFrame([(row.run, row.average_at_k) for file in files for row in file.scores], columns=["run", "at"])
    means = scores.groupby("run")["at"].agg(lambda at: np.mean(at.to_numpy()))
    averages: dict[str, list[float]] = {}
    for method, name in dict.fromkeys((run.method, run.run) for run in runs):
        if name not in means:
            raise UserError(f"{paths[0]}: no score of {name}")
        averages.setdefault(method, []).append(float(means[name]))
    return averages, files[-1].samples_per_problem


def draw_score_curves(runs: Sequence[Run], points: Points, averages: Mapping[str, Sequence[float]], k: int) -> Figure:
    """A line for each method: mean over the seeds, a band from the smallest to the largest, from the base model on.

    ``averages``: name under which a method is scored -> the scores of its runs, fractions of one.
    """
    titles = {run.method: run.title for run in runs}
    base = float(np.mean(averages[BASE]))
    figure = style.new_figure(8.6, 4.4)
    axes = figure.subplots()
    axes.axhline(100 * base, color=NEUTRAL, linewidth=0.9, linestyle="--")
    for method, look in style.method_styles(runs).items():
        if method in points:
            steps = [0, *(step for step, _ in points[method])]
            _draw_scores(axes, look, titles[method], steps, [[base], *(averages[name] for _, name in points[method])])
    number = number_of_seeds(len(averages[name]) for scored in points.values() for _, name in scored)
    axes.set_xlim(left=0)
    axes.set_xlabel("rollout step")
    axes.set_ylabel(f"avg@{k}, mean of all benchmarks (%)")
    legend_beside(figure, axes)
    set_title(figure, f"Scores along the training: mean and range of {number} seeds; dashed: base model")
    return figure


def draw_validation_curves(runs: Sequence[Run], choices: Sequence[Chosen]) -> Figure:
    """A panel for each model, a line for each method: mean over the seeds, a band from the smallest to the largest."""
    averages = {choice.run: {int(step): value for step, value in choice.averages.items()} for choice in choices}
    rows, looks = _trained(runs), style.method_styles(runs)
    if lacking := [run.run for row in rows for run in row.runs if run.run not in averages]:
        raise UserError(f"choices: lack that of {lacking[0]}")
    models = list(dict.fromkeys(row.model for row in rows))
    figure = style.new_figure(2.8 + 4.4 * len(models), 4.2)
    panels = style.titled_panels(figure, models if len(models) > 1 else [""], len(models))
    for model, axes in zip(models, panels, strict=True):
        for row in rows:
            if row.model == model:
                # One that stopped early has another last step.
                steps = sorted(set.intersection(*(set(averages[run.run]) for run in row.runs)))
                seeds = [[averages[run.run][step] for run in row.runs] for step in steps]
                _draw_scores(axes, looks[row.method], row.title, steps, seeds)
        axes.set_xlim(left=0)
        axes.set_xlabel("rollout step")
    legend_beside(figure, panels[0])
    chosen, number = choices[0], number_of_seeds(len(row.runs) for row in rows)
    panels[0].set_ylabel(f"avg@{chosen.samples_per_problem}, {chosen.benchmark} (%)")
    set_title(figure, f"Validation along the training: mean and range of {number} seeds")
    return figure


def _draw_scores(
    axes: Axes, look: style.MethodStyle, title: str, steps: Sequence[int], seeds: Sequence[Sequence[float]]
) -> None:
    """Draw the mean of the seeds at every step, and a band from the smallest to the largest; fractions of one."""
    low, mean, high = (np.array([100 * of(values) for values in seeds]) for of in (min, np.mean, max))
    axes.fill_between(steps, low, high, color=look.colour, alpha=0.13, linewidth=0)
    (line,) = axes.plot(steps, mean, look.marker, linestyle=look.line, color=look.colour, label=title)
    line.set_markeredgecolor("white")
