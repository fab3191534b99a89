"""What training did to tokens that both models have read: of a run's samples, and of any two checkpoints'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rlvr.diagnostics.coefficients import rank_correlation
from rlvr.diagnostics.direction import separation
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.phenomena.drawing import NEGATIVE, POSITIVE, SERIES, draw_means

UNIT = "problems"
MOVED = 0.1  # nats
PROBABILITY_BINS = 10
OVER_LINES: dict[str, Any] = {"frameon": True, "framealpha": 0.85, "edgecolor": "none"}
HISTOGRAMS = {
    "difference": np.linspace(-3, 3, 61),
    "kl_trained_base": np.geomspace(1e-6, 10, 43),
    "base_entropy": np.geomspace(1e-6, 10, 43),
}
"""Column -> edges of its bins, in nats; what lies beyond is counted in the last bins."""
_SEPARATED = {"difference": "difference", "KL": "kl_trained_base", "entropy": "base_entropy"}
_SOURCES = {"trained": "trained model's responses", "base": "base model's responses", "given": "the responses"}
"""Whose responses a table of tokens is of -> in words; "given" where only one table of them is there."""


def log_prob_difference(frame: pd.DataFrame) -> pd.Series:
    """Log pi_trained(y) - log pi_base(y), in float64: a difference of nearly equal numbers."""
    return frame["trained_log_prob"].astype("float64") - frame["base_log_prob"].astype("float64")


def direction_rows(tokens: Mapping[str, pd.DataFrame]) -> Iterator[dict[str, Any]]:
    """Rows of a claim's series.

    Args:
        tokens: whose responses, "trained" and "base" or "given" -> their tokens with problem, difference and
            :data:`~rlvr.diagnostics.comparison_table.COLUMNS`.
    """
    every = pd.concat([frame.assign(source=name) for name, frame in tokens.items()])
    for problem, frame in every.groupby("problem"):
        name = str(problem)
        if {"base", "trained"} <= tokens.keys():
            for quantity, column in _SEPARATED.items():
                base, trained = (frame.loc[frame["source"] == each, column] for each in ("base", "trained"))
                value = separation(trained.to_numpy(float), base.to_numpy(float))
                yield series_row(f"separation {quantity}", value, name)
        moved = frame["difference"].abs().to_numpy(float)
        probability = np.exp(frame["base_log_prob"].to_numpy(float))
        yield series_row("moved fraction", float((moved > MOVED).mean()), name)
        yield series_row("correlation with probability", rank_correlation(moved, probability), name)
        bins = np.minimum((probability * PROBABILITY_BINS).astype(int), PROBABILITY_BINS - 1)
        for place in np.unique(bins):
            middle = (place + 0.5) / PROBABILITY_BINS
            yield series_row("moved by probability", float(moved[bins == place].mean()), name, fraction=middle)
    for source, frame in tokens.items():
        for column, edges in HISTOGRAMS.items():
            values = frame[column].astype("float64").clip(edges[0], np.nextafter(edges[-1], 0))
            counts = np.histogram(values, bins=edges)[0] / len(frame)
            for place, share in zip(edges[:-1], counts, strict=True):
                yield series_row(f"histogram {column} {source}", float(share), fraction=float(place))


def series_row(
    quantity: str,
    value: float,
    problem: str = "",
    criterion: str = "",
    fraction: float = np.nan,
    replaced: float = np.nan,
) -> dict[str, Any]:
    """One row of the series; a fraction is whatever ``quantity`` is a function of."""
    return {
        "quantity": quantity, "criterion": criterion, "problem": problem, "fraction": fraction, "replaced": replaced,
        "value": value,
    }  # fmt: skip


def by_problem(series: pd.DataFrame, quantity: str) -> pd.Series:
    """Problem -> mean of a quantity over what else there is."""
    return series[series["quantity"] == quantity].groupby("problem")["value"].mean()


def direction_measurements(series: pd.DataFrame) -> list[Measurement]:
    """That few tokens move, unlikely ones most, and where both models' responses are there, what tells them apart."""
    found = [
        measure(
            "Training moves few tokens",
            f"fraction of tokens moved by more than {MOVED:g} nats",
            by_problem(series, "moved fraction").tolist(),
            UNIT,
            null=0.5,
            direction="below",
        ),
        measure(
            "Unlikely tokens move most",
            "rank correlation of |log-prob difference| and the base model's probability",
            by_problem(series, "correlation with probability").tolist(),
            UNIT,
            direction="below",
        ),
    ]
    difference = by_problem(series, "separation difference")
    for name in ("KL", "entropy") if len(difference) else ():
        found.append(
            measure(
                f"The direction tells the two models' responses apart better than {name}",
                f"|AUC - 1/2| of the log-prob difference less that of {name}",
                (difference - by_problem(series, f"separation {name}")).tolist(),
                UNIT,
            )
        )
    return found


def draw_directions(histogram: Axes, spread: Axes, relation: Axes, series: pd.DataFrame) -> None:
    """The log-prob difference, KL and entropy beside it, and how far tokens of each probability moved."""
    quantities = set(series["quantity"])
    for source, colour in (("trained", POSITIVE), ("base", NEGATIVE), ("given", POSITIVE)):
        words = _SOURCES[source]
        if f"histogram difference {source}" in quantities:
            _draw_histogram(histogram, series, "difference", source, colour, "-", words)
            _draw_histogram(spread, series, "kl_trained_base", source, colour, "-", f"KL, {words}")
            _draw_histogram(spread, series, "base_entropy", source, colour, ":", f"entropy, {words}")
    histogram.set(
        title="What training did to tokens", xlabel="log-prob difference (nats, cut at 3)", ylabel="fraction of tokens"
    )
    spread.set(
        title="KL(trained, base) and the base's entropy", xlabel="nats (cut at 1e-6 and 10)",
        ylabel="fraction of tokens", xscale="log",
    )  # fmt: skip
    for axes in (histogram, spread):
        axes.set_yscale("log")
        axes.legend(fontsize=7, **OVER_LINES)
    moved = series[series["quantity"] == "moved by probability"]
    means = moved.groupby(["fraction", "problem"])["value"].mean().reset_index()
    whose = _SOURCES["given"] if "histogram difference given" in quantities else "both models' responses"
    draw_means(relation, means, "fraction", "value", SERIES[0], whose)
    relation.set(
        title="How far tokens of each probability moved", xlabel="probability under the base model",
        ylabel="mean |log-prob difference| (nats)", ylim=(0, None),
    )  # fmt: skip


def _draw_histogram(
    axes: Axes, series: pd.DataFrame, column: str, source: str, colour: str, line: str, label: str
) -> None:
    rows = series[series["quantity"] == f"histogram {column} {source}"]
    mean = rows.groupby("fraction")["value"].mean()
    axes.step(mean.index.to_numpy(), mean.to_numpy(), line, where="post", color=colour, label=label)
