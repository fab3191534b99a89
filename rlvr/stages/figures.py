"""Stages that draw the figures of a study. A figure is one class: where it is drawn, and from what."""

from __future__ import annotations

from typing import Any

from rlvr.stages.shown import RUNS, OfResults, OfTrainings, Shown
from rlvr.stages.stage import File, Files


class ScoresFigure(OfResults):
    """The scores of the methods."""

    kind = "figure_scores"
    more_endings = ("_column.pdf",)
    call = "evals.figures.results:write_scores_figure"


class DifferencesFigure(OfResults):
    """The differences to the reference method."""

    kind = "figure_differences"
    more_endings = ("_column.pdf",)
    call = "evals.figures.results:write_differences_figure"


class ProfilesFigure(OfResults):
    """The problems that each method solves."""

    kind = "figure_profiles"
    call = "evals.figures.results:write_profiles_figure"


class CostCurves(OfTrainings):
    """Rewards against tokens."""

    kind = "figure_cost_curves"
    call = "evals.figures.efficiency:write_cost_curves"


class ComputePerformance(OfTrainings):
    """Validation scores against compute, with fitted ceilings."""

    kind = "figure_compute_performance"
    call = "evals.figures.efficiency:write_compute_performance"


class DesignFigure(Shown):
    """The figure of a design, drawn from the CSV file of its table."""

    call = "evals.figures.designs:write_design_figure"

    table: File
    reference: str


class DosesFigure(DesignFigure):
    """The scores of the methods by dose of difference between sampler and trainer."""

    kind = "figure_doses"
    constants = {"name": "doses"}


class FactorialFigure(DesignFigure):
    """The effects of a factorial's levels."""

    kind = "figure_factorial"
    constants = {"name": "factorial"}


class SizesFigure(DesignFigure):
    """The differences to the reference method on models of several sizes."""

    kind = "figure_sizes"
    constants = {"name": "sizes"}


class TrainingCurves(Shown):
    """The metrics of the trainings, step by step."""

    kind = "figure_training_curves"
    call = "rlvr.report.curves:write_training_curves"
    constants = {"training": RUNS}
    unused = ("metrics",)

    metrics: Files
    runs: File


class RewardCurves(Shown):
    """The rewards of studies that are made together, side by side."""

    kind = "figure_reward_curves"
    call = "rlvr.report.curves:write_reward_curves"
    constants = {"training": RUNS}
    unused = ("metrics",)

    metrics: Files
    runs: Files
    titles: tuple[str, ...]
    reference_method: str


class ScoreCurves(Shown):
    """The scores of the policies along the trainings."""

    kind = "figure_score_curves"
    call = "rlvr.report.curves:write_score_curves"

    scores: Files
    runs: Files
    points: dict[str, Any]


class ValidationCurves(Shown):
    """The scores by which best policies were chosen."""

    kind = "figure_validation_curves"
    call = "rlvr.report.curves:write_validation_curves"

    choices: Files
    runs: File
