"""Claim 9: methods that break the group's cancellation drift more, and training at a high rate makes it worse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, PreTrainedModel

from evals.errors import UserError
from evals.figures.style import new_figure
from rlvr.diagnostics.drift import mean_drift
from rlvr.diagnostics.interval import Direction, Measurement, measure
from rlvr.diagnostics.phenomena.drawing import MARKERS, SERIES, draw_means, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.run_ends import read_run
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.probes import log_probs_of

_SMALLEST_DRIFT = 1e-9  # nats; a run that moved nothing
_UNIT = "seeds"
_PAIRS: tuple[tuple[str, str, str, str, Direction], ...] = (
    ("dfpo_min_replace", "grpo", "drift", "DFPO drifts less than GRPO", "below"),
    ("dfpo_min_replace", "gspo", "drift", "DFPO drifts less than GSPO", "below"),
    ("dapo_query_preserved", "dapo", "drift", "Query-preserved batches drift less", "below"),
    (
        "dfpo_min_replace_query_preserved", "dfpo_min_replace", "drift",
        "Query-preserved batches make DFPO drift less", "below",
    ),
    ("dapo_unstable", "dapo", "drift", "A higher learning rate drifts more", "above"),
    ("dapo_unstable", "dapo", "entropy", "A higher learning rate leaves less entropy", "below"),
    ("dapo_unstable", "dapo", "reward", "A higher learning rate ends with less reward", "below"),
    (
        "dapo_query_preserved_unstable", "dapo_unstable", "reward",
        "Query-preserved batches help at the unstable learning rate", "above",
    ),
    (
        "dapo_query_preserved_unstable", "dapo_unstable", "drift",
        "Query-preserved batches drift less at the unstable learning rate", "below",
    ),
    ("dfpo_min_replace", "grpo", "reward", "DFPO ends with more reward than GRPO", "above"),
)  # fmt: skip


def find(sources: Sources) -> Findings:
    """Reward, entropy and drift of format tokens of the runs that are compared.

    Raises:
        UserError: a run's files are missing.
    """
    rows: list[dict[str, Any]] = []
    reference = sources.moments[0]
    chosen = torch.from_numpy((reference.rows["token_class"] == "format").to_numpy())
    base = _model(reference.run.base / "checkpoint")
    temperature = reference.run.training.temperature
    before = log_probs_of(base, reference.tokens, temperature)
    for name in sources.runs:
        directory = sources.results / "runs" / name
        found = read_run(directory)
        run, metrics = found.run, found.metrics
        after = log_probs_of(_model(directory / "checkpoint"), reference.tokens, temperature)
        identity = {"run": name, "method": run.method_name, "seed": run.seed}
        ends = {
            "drift": math.log2(max(mean_drift(before, after, chosen), _SMALLEST_DRIFT)),
            "reward": found.end("reward_mean"),
            "entropy": found.end("entropy"),
            "entropy at the start": float(metrics["entropy"].iloc[0]),
        }
        rows += [{**identity, "step": len(metrics), "quantity": key, "value": value} for key, value in ends.items()]
        for quantity, column in (("reward curve", "reward_mean"), ("entropy curve", "entropy")):
            pairs = zip(metrics["step"], metrics[column], strict=True)
            rows += [{**identity, "step": int(s), "quantity": quantity, "value": float(v)} for s, v in pairs]
    if not rows:
        raise UserError("learning_tax: no runs to compare; name methods in diagnostics.compared")
    series = pd.DataFrame(rows)
    return Findings("Learning tax, drift, entropy collapse", _METHOD, _measurements(series), series)


def _model(checkpoint: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return model


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    ends = series.set_index(["quantity", "method", "seed"])["value"].sort_index()
    methods = list(dict.fromkeys(series["method"]))

    def of(quantity: str, method: str) -> pd.Series:
        found: pd.Series = ends.loc[quantity, method]
        return found

    found = []
    for method in methods:
        fallen = of("entropy", method) - of("entropy at the start", method)
        found.append(
            measure(
                f"Entropy falls ({method})",
                "entropy at the end less at the start, nats",
                fallen.tolist(),
                _UNIT,
                direction="below",
            )
        )
    units = {
        "drift": "log2 of the mean |change of log-odds| of format tokens",
        "reward": "reward",
        "entropy": "entropy, nats",
    }
    for treated, control, quantity, statement, direction in _PAIRS:
        if treated in methods and control in methods:
            difference = (of(quantity, treated) - of(quantity, control)).dropna()
            found.append(
                measure(
                    statement,
                    f"{units[quantity]}: {treated} less {control}",
                    difference.tolist(),
                    _UNIT,
                    direction=direction,
                )
            )
    return found


def draw(findings: Findings) -> Figure:
    """Reward and entropy over training, and where format tokens ended."""
    series = findings.series
    figure = new_figure(11.0, 3.8)
    reward, entropy, drift = figure.subplots(1, 3)
    methods = list(dict.fromkeys(series["method"]))
    for place, method in enumerate(methods):
        colour, marker = SERIES[place % len(SERIES)], MARKERS[place % len(MARKERS)]
        line = "-" if place < len(SERIES) else "--"
        own = series[series["method"] == method]
        for axes, quantity in ((reward, "reward curve"), (entropy, "entropy curve")):
            rows = own[own["quantity"] == quantity]
            # A point for every fifth step, so that the lines can be told apart.
            draw_means(axes, rows[rows["step"] % 5 == 0], "step", "value", colour, method, marker, line, band=False)
        values = own[own["quantity"] == "drift"]["value"].tolist()
        each = measure("", "", values, _UNIT)
        drift.hlines(place, each.low, each.high, color=colour, linewidth=1.8)
        drift.plot(each.estimate, place, marker, color=colour, markersize=5)
    reward.set(title="Reward", xlabel="rollout step", ylabel="mean reward")
    entropy.set(title="Entropy", xlabel="rollout step", ylabel="nats")
    drift.set_yticks(range(len(methods)), methods, fontsize=7)
    drift.set_ylim(len(methods) - 0.5, -0.5)
    drift.xaxis.set_major_formatter(lambda value, _: f"{2**value:.2g}")
    drift.set(title="Drift of format tokens", xlabel="mean |log-odds change| (nats)")
    ends = series[series["quantity"] == "drift"].groupby("method")["value"].mean()
    finding = (
        f"Format tokens drift least under {ends.idxmin()} ({2 ** ends.min():.2f} nats of log-odds) and most under "
        f"{ends.idxmax()} ({2 ** ends.max():.2f}); lines are means over seeds, without intervals"
    )
    return finish(figure, finding, findings.measurements)


_METHOD = (
    "Of every compared run: mean reward and entropy over the last ten rollout steps (half of a shorter run), and how "
    "far the log-odds of format tokens (`=`, line ends, the box and its end) moved between base model and final "
    "checkpoint, on the rollouts of the first step looked into. Differences are paired by seed, which two methods "
    "share in the order of problems and in nothing else; drifts are compared by their logarithm. With three seeds only "
    "large differences can be told apart."
)
