"""The angle of a method's updates to the reference method's, from those that the training runs measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from evals.core.comparisons import Contrast, Fall
from evals.core.files import read_parquet
from evals.core.manifest import read_manifest
from evals.statistics.interval import t_interval
from evals.statistics.robust import fell_in_training

ANGLE, FLOOR, SLOPES = "contrast_degrees", "contrast_floor_degrees", "contrast_slope_degrees"
"""Columns of metrics.parquet; an angle between gradients has a value at a few steps, that between slopes at more."""

_NO_ANGLE = 1e-6
"""Degrees that a smaller angle counts as: that of a gradient with itself is 0, whose logarithm is not finite."""


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run: its resolved method, the reference method that it was measured against, metrics, validation."""

    method: dict[str, Any]
    reference: dict[str, Any] | None  # None where nothing was measured
    metrics: pd.DataFrame
    files: tuple[Path, ...]  # that these are read from
    held_out: tuple[float, ...] = ()  # the scores along the run, of a study with ``validation``

    @classmethod
    def read(cls, directory: Path) -> Self:
        parameters = read_manifest(directory / "manifest.json", "run").parameters
        measured = parameters.get("contrast") or {}
        files = [directory / "metrics.parquet", *directory.glob("validation.parquet")]
        metrics, *validated = map(read_parquet, files)
        scores = held_out_scores(validated[0]) if validated else ()
        return cls(parameters["method"], measured.get("method"), metrics, tuple(files), scores)

    def fell(self, rule: Fall) -> bool:
        """Return whether the run fell, by its training reward or by its scores on held-out problems."""
        by_score = bool(self.held_out) and bool(fell_in_training(self.held_out, rule, window=1))
        return by_score or bool(fell_in_training(self.metrics["reward_mean"], rule))


def held_out_scores(frame: pd.DataFrame) -> tuple[float, ...]:
    """The shares of correct samples of held-out problems along a run, from its validation.parquet."""
    rows = zip(frame["correct_counts"], frame["samples_per_problem"], strict=True)
    return tuple(float(sum(counts) / (len(counts) * samples)) for counts, samples in rows)


def estimate_contrast(
    model: str, method: str, runs: Sequence[MeasuredRun], against: str, references: Sequence[MeasuredRun], level: float
) -> Contrast | None:
    """The contrast of a method's ``runs``, one a seed, with the method of ``references``.

    It is above the floor if the interval of the ratio of the two angles, paired within each run, lies above 1: the t
    interval of its logarithm over the runs. Angles are positive and vary in proportion to their size, so that a
    difference of them would have an interval of tens of degrees with three runs. A single run has no spread between
    runs, and the interval is that over its measured steps; a single step decides by the ratio itself. None if a run has
    not measured its angle to that very method.
    """
    accepted = [run.method for run in references]
    if not runs or any(run.reference not in accepted or ANGLE not in run.metrics for run in runs):
        return None
    angles = [run.metrics[[ANGLE, FLOOR]].dropna() for run in runs]
    if any(of_run.empty for of_run in angles):  # every gradient was 0
        return None
    means = [of_run.mean() for of_run in angles] if len(runs) > 1 else [row for _, row in angles[0].iterrows()]
    ratios = [math.log(max(of_run[ANGLE], _NO_ANGLE) / max(of_run[FLOOR], _NO_ANGLE)) for of_run in means]
    low, high = map(float, t_interval(ratios, level)) if len(ratios) > 1 else (math.nan, math.nan)
    slopes = [run.metrics[SLOPES].mean() for run in runs if SLOPES in run.metrics]
    return Contrast(
        model=model,
        method=method,
        against=against,
        degrees=float(np.mean([of_run[ANGLE].mean() for of_run in angles])),
        floor_degrees=float(np.mean([of_run[FLOOR].mean() for of_run in angles])),
        slope_degrees=float(np.mean(slopes)) if slopes else None,
        ratio_interval=(math.exp(low), math.exp(high)) if len(ratios) > 1 else None,
        is_above_floor=(low if len(ratios) > 1 else ratios[0]) > 0.0,
        seeds=len(runs),
    )
