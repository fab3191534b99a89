"""Training curves: what reward, entropy, response length and clipping did, step by step, over the seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.core.errors import UserError
from evals.core.records import BASE, Condition, Run, conditions_of
from evals.figures.style import NEUTRAL, MethodStyle, method_styles, new_figure


@dataclass(frozen=True)
class Curve:
    """A column of metrics.parquet as a column of panels; ``from_zero`` where zero means something to the eye."""

    column: str
    title: str
    scale: float
    unit: str
    from_zero: bool


CURVES = (
    Curve("reward_mean", "Reward", 1.0, "mean of the rollouts", False),
    Curve("entropy", "Entropy", 1.0, "nats per token", True),
    Curve("response_length_mean", "Response length", 1.0, "tokens", False),
    Curve("clip_fraction", "Clip fraction", 100.0, "% of response tokens", True),
)
_OF_EVERY_METHOD = ("reward_mean", "entropy", "response_length_mean")
_LABEL_WIDTH = 20
OTHERS = "#c8c8c8"


def read_metrics(run: str, training: Path) -> pd.DataFrame:
    """A run's metrics, one row per rollout step; a column that the method has no value for is missing values.

    Raises:
        UserError: the file is missing, is not parquet or lacks the columns that every method has.
    """
    path = training / run / "metrics.parquet"
    try:
        metrics = pd.read_parquet(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (ValueError, KeyError) as error:  # pyarrow's errors for a foreign file
        raise UserError(f"{path}: is not a parquet file ({error})") from None
    if missing := [column for column in ("step", *_OF_EVERY_METHOD) if column not in metrics]:
        raise UserError(f"{path}: lacks the columns {', '.join(missing)}")
    return metrics.reindex(columns=["step", *(curve.column for curve in CURVES)])


def draw_curves(runs: Sequence[Run], metrics: Mapping[str, pd.DataFrame]) -> Figure:
    """One line of panels per method: mean over its seeds, a band from the smallest to the largest, the others in grey.

    Drawn over one another, eight noisy bands hide each other; apart, each can be read and still be compared.

    Args:
        runs: the study's runs; the base model's is passed over.
        metrics: run -> the frame of :func:`read_metrics`.
    """
    styles = method_styles(runs)
    rows = [condition for condition in conditions_of(runs) if condition.method != BASE]
    if not rows:
        raise UserError("--runs: no trained run, so there are no training curves to draw")
    figure = new_figure(10.5, 0.9 + 1.15 * len(rows))
    grid = figure.subplots(len(rows), len(CURVES), squeeze=False, sharex=True, sharey="col")
    for column, curve in enumerate(CURVES):
        seeds = [by_seed(condition, curve, metrics) for condition in rows]
        for place, condition in enumerate(rows):
            axes = grid[place, column]
            for other in seeds:
                axes.plot(other.index.to_numpy(), other.mean(axis=1).to_numpy(), color=OTHERS, linewidth=0.6)
            draw_seeds(axes, seeds[place], styles[condition.method])
        grid[0, column].set_title(f"{curve.title}\n", pad=2)
        grid[0, column].text(0, 1.05, curve.unit, transform=grid[0, column].transAxes, fontsize=8, color="#4d4d4d")
        grid[-1, column].set_xlabel("rollout step")
        if curve.from_zero:
            grid[0, column].set_ylim(bottom=0)
    for place, condition in enumerate(rows):
        label = textwrap.fill(condition.title, _LABEL_WIDTH, break_long_words=False)
        grid[place, 0].set_ylabel(label, rotation=0, ha="right", va="center", weight="bold")
    counts = sorted({len(condition.runs) for condition in rows})
    seeds_each = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    figure.suptitle(
        f"Training: mean of {seeds_each} seeds, band from the smallest to the largest seed; grey: the other methods",
        x=0.01,
        ha="left",
        weight="bold",
    )
    return figure


def by_seed(condition: Condition, curve: Curve, metrics: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A curve's values of a condition, indexed by step, one column a seed."""
    columns = [metrics[run.run].set_index("step")[curve.column] for run in condition.runs]
    return pd.concat(columns, axis="columns") * curve.scale


def draw_seeds(axes: Axes, values: pd.DataFrame, style: MethodStyle) -> None:
    """Mean over the seeds and the band between the smallest and the largest, or words where there are no values."""
    if values.isna().to_numpy().all():
        axes.text(0.98, 0.9, "does not clip", transform=axes.transAxes, ha="right", va="top", color=NEUTRAL)
        return
    low, high = values.min(axis=1).to_numpy(), values.max(axis=1).to_numpy()
    axes.fill_between(values.index.to_numpy(), low, high, color=style.colour, alpha=0.25, linewidth=0)
    axes.plot(values.index.to_numpy(), values.mean(axis=1).to_numpy(), color=style.colour, linewidth=1.4)
