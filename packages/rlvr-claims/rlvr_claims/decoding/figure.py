"""Accuracy against the fraction of the base model's tokens that the trained model replaced, for every criterion."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from evals.figures import style
from evals.figures.fitting import legend_below
from evals.figures.style import COLOURS, MARKERS, NEUTRAL
from evals.statistics.difference import Arm, estimate_difference
from rlvr_claims.decoding.settings import Sweep, read_sweeps
from rlvr_claims.settings import Criterion

TITLES: dict[Criterion, str] = {
    "log_prob_difference": "log-prob difference",
    "kl_trained_base": "KL(trained ‖ base)",
    "kl_base_trained": "KL(base ‖ trained)",
    "js": "Jensen-Shannon divergence",
    "jeffreys": "mean of both KL",
    "entropy": "entropy of the base",
    "assistant_entropy": "entropy of the trained model",
    "random": "random tokens",
}


@dataclass(frozen=True)
class Place:
    """One way of decoding over all sweeps: the fraction of tokens drawn again, and the mean accuracy.

    ``low`` and ``high`` are the ends of the accuracy's 95 % interval over problems, for these checkpoints.
    """

    replaced: float
    average: float
    low: float
    high: float


def place(sweeps: Sequence[Sweep], name: str) -> Place:
    """The place of a point, from every sweep's counts on the same problems."""
    points = [next(point for point in sweep.points if point.name == name) for sweep in sweeps]
    rates = np.array([point.correct_counts for point in points], dtype=np.float64) / sweeps[0].samples_per_problem
    found, nothing = (Arm([values], is_fixed=True) for values in (rates, np.zeros((1, rates.shape[1]))))
    estimate = estimate_difference(found, nothing)
    low, high = estimate.interval()
    replaced = float(np.mean([point.replaced for point in points]))
    return Place(replaced, float(estimate.estimate), max(0.0, float(low)), min(1.0, float(high)))


def curves(sweeps: Sequence[Sweep]) -> Mapping[Criterion, Sequence[Place]]:
    """The points of every criterion of replacement with the base driving, fewest tokens replaced first."""
    places: dict[Criterion, list[Place]] = {}
    for point in sweeps[0].points:
        if point.decoding.mode == "replacement" and point.fraction is not None:
            places.setdefault(point.decoding.criterion, []).append(place(sweeps, point.name))
    return {criterion: sorted(members, key=lambda member: member.replaced) for criterion, members in places.items()}


def fraction_needed(places: Sequence[Place], level: float) -> float | None:
    """The smallest fraction replaced whose accuracy reaches ``level``, between measured points on a straight line."""
    before: Place | None = None
    for point in places:
        if point.average >= level:
            if before is None or point.average == before.average:
                return point.replaced
            share = (level - before.average) / (point.average - before.average)
            return before.replaced + share * (point.replaced - before.replaced)
        before = point
    return None


def draw(sweeps: Sequence[Sweep]) -> Figure:
    """One panel: a line per criterion, the two models alone as levels."""
    base, trained = place(sweeps, "base"), place(sweeps, "trained")
    by_criterion = curves(sweeps)
    figure = style.new_figure(7.2, 5.0)
    axes = figure.subplots()
    for level, label, line in ((trained, "trained model alone", "-"), (base, "base model alone", "--")):
        axes.axhline(100 * level.average, color=NEUTRAL, linestyle=line, linewidth=1, label=label)
        axes.axhspan(100 * level.low, 100 * level.high, color=NEUTRAL, alpha=0.08, linewidth=0)
    for (criterion, title), colour, marker in zip(TITLES.items(), COLOURS, MARKERS, strict=False):
        if criterion in by_criterion:
            # across, centre, low, high, each [points]
            across, centre, *reach = np.array([astuple(point) for point in by_criterion[criterion]]).T * 100
            look: dict[str, Any] = {"color": colour, "marker": marker, "label": title, "markersize": 5, "capsize": 0}
            axes.errorbar(across, centre, np.abs(reach - centre), **look, linewidth=1.4, elinewidth=0.7)
    samples, problems = sweeps[0].samples_per_problem, len(sweeps[0].problem_ids)
    xlabel = "tokens of the base model that the trained model replaced (%, log scale)"
    axes.set(xscale="log", xlabel=xlabel, ylabel=f"avg@{samples} (%)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(_finding(by_criterion, trained.average), loc="left", weight="bold")
    title = (
        f"n = {problems} problems, none of them scored elsewhere, {samples} samples each; {len(sweeps)} trained models."
        "\nBars and bands: 95 % intervals over problems, for these checkpoints"
    )
    legend_below(figure, axes.get_legend_handles_labels()[0], title, most=3)
    return figure


def _finding(by_criterion: Mapping[Criterion, Sequence[Place]], level: float) -> str:
    """The fraction of tokens that each criterion needs to match the trained model, in words."""
    parts = []
    for criterion, places in by_criterion.items():
        needed = fraction_needed(places, level)
        share = "not reached" if needed is None else f"{100 * needed:.{0 if needed >= 0.1 else 1}f} %"
        parts.append(f"{TITLES[criterion]}: {share}")
    half = (len(parts) + 1) // 2
    lines = ["; ".join(parts[:half]), "; ".join(parts[half:])]
    return "Tokens replaced to do as well as the trained model:\n" + "\n".join(line for line in lines if line)


def write_figure(sweeps: Sequence[Path], out: Path) -> None:
    """Draw accuracy against the fraction of tokens replaced."""
    swept = list(read_sweeps(sweeps).values())
    style.write_figure("replaced_tokens", lambda: draw(swept), out, sweeps)
