"""Claim 7: DelTA's coefficients are high where tokens tell rewarded from punished rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.errors import UserError
from evals.figures.style import new_figure
from rlvr.diagnostics.coefficients import class_enrichment, rank_correlation
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.phenomena.drawing import NEGATIVE, POSITIVE, SERIES, finish, points
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.run_ends import read_run
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.token_classes import CLASSES

ENDS = 0.1
_UNIT = "updates (run, step)"
_BINS, _CLOUD_TOKENS = 40, 8
_SMALLEST_SHARE = 0.005  # of a token in the cloud
_TOP, _BOTTOM = "delta_top_lambda", "delta_bottom_lambda"


def find(sources: Sources) -> Findings:
    """Distributions of the weights by side, what tokens they favour, and what they go with.

    Raises:
        UserError: no token table of a run that weighs tokens was given.
    """
    if not sources.contrast_moments:
        raise UserError("delta_coefficients: no token table of a run with token weights; name DelTA in diagnostics")
    rows = [row for moment in sources.contrast_moments for row in _rows(moment)]
    series = pd.DataFrame(rows)
    measurements = [*_measurements(series), *_selection(sources)]
    return Findings("DelTA's coefficients", _METHOD, measurements, series)


def _selection(sources: Sources) -> list[Measurement]:
    """Reward of training on the tokens of highest coefficient alone less that of the lowest, paired by seed."""
    ends: dict[str, dict[int, float]] = {name: {} for name in (_TOP, _BOTTOM)}
    for name in sources.runs:
        found = read_run(sources.results / "runs" / name)
        if found.run.method_name in ends:
            ends[found.run.method_name][found.run.seed] = found.end("reward_mean")
    seeds = sorted(ends[_TOP].keys() & ends[_BOTTOM].keys())
    if not seeds:
        return []
    statement = "Training on the tokens of highest coefficient alone beats training on the lowest"
    differences = [ends[_TOP][seed] - ends[_BOTTOM][seed] for seed in seeds]
    return [measure(statement, f"reward at the end, {_TOP} less {_BOTTOM}", differences, "seeds")]


def _rows(moment: Moment) -> list[dict[str, Any]]:
    table = moment.rows[moment.rows["side"] != 0]
    if table.empty:  # every group was all correct or all wrong
        return []
    weights = table["weight"].to_numpy(dtype=np.float64)
    probabilities = np.exp(table["old_log_prob"].to_numpy(dtype=np.float64))
    entropies = table["entropy"].to_numpy(dtype=np.float64)
    sides = table["side"].to_numpy()
    rows: list[dict[str, Any]] = []

    def note(quantity: str, value: float) -> None:
        rows.append({"unit": moment.unit, "step": moment.step, "quantity": quantity, "place": 0.0, "value": value})

    for name in CLASSES:
        note(f"enrichment {name}", class_enrichment(weights, table["token_class"].tolist(), name, ENDS))
    texts = [text.replace("\n", "\\n") for text in table["text"]]
    for text in sorted(set(texts)):
        note(f"token {text}", class_enrichment(weights, texts, text, ENDS))
    note("correlation with 1 - p", rank_correlation(weights, 1 - probabilities))
    note("correlation with entropy", rank_correlation(weights, entropies))
    mean = {side: float(weights[sides == side].mean()) if (sides == side).any() else np.nan for side in (1, -1)}
    note("mean positive less negative", mean[1] - mean[-1])
    note("deviation", float(weights.std()))
    edges = np.linspace(0.6, 1.5, _BINS + 1)
    for side, name in ((1, "positive"), (-1, "negative")):
        counts = np.histogram(weights[sides == side], bins=edges)[0] / max(1, (sides == side).sum())
        rows += [
            {
                "unit": moment.unit,
                "step": moment.step,
                "quantity": f"histogram {name}",
                "place": float(place),
                "value": float(share),
            }
            for place, share in zip((edges[:-1] + edges[1:]) / 2, counts, strict=True)
        ]
    return rows


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    def values(quantity: str) -> list[float]:
        found: list[float] = series[series["quantity"] == quantity]["value"].tolist()
        return found

    ends = f"share among the {ENDS:.0%} of highest weight less that among the {ENDS:.0%} of lowest"
    return [
        measure(
            "High coefficients stand on results, where rollouts part", f"results: {ends}",
            values("enrichment result"), _UNIT,
        ),
        measure(
            "Low coefficients stand on format, which rollouts share", f"format: {ends}",
            values("enrichment format"), _UNIT, direction="below",
        ),
        measure(
            "Coefficients go with uncertainty", "rank correlation of weight and entropy",
            values("correlation with entropy"), _UNIT,
        ),
        measure("", "rank correlation of weight and 1 - p", values("correlation with 1 - p"), _UNIT, direction=None),
        measure(
            "", "mean weight of rewarded less that of punished rollouts", values("mean positive less negative"), _UNIT,
            direction=None,
        ),
        measure("", "standard deviation of the weights", values("deviation"), _UNIT, direction=None),
    ]  # fmt: skip


def draw(findings: Findings) -> Figure:
    """Distributions by side, and which tokens stand at either end."""
    figure = new_figure(10.5, 3.2)
    histogram, classes, cloud = figure.subplots(1, 3)
    for side, colour in (("positive", POSITIVE), ("negative", NEGATIVE)):
        rows = findings.series[findings.series["quantity"] == f"histogram {side}"]
        mean = rows.groupby("place")["value"].mean()
        name = "rewarded" if side == "positive" else "punished"
        histogram.step(mean.index.to_numpy(), mean.to_numpy(), where="mid", color=colour, label=name)
    histogram.set(title="Weights by side", xlabel="weight (mean 1 over all tokens)", ylabel="fraction of the side")
    histogram.set_yscale("log")
    histogram.legend(fontsize=7)
    for place, name in enumerate(CLASSES):
        values = findings.series[findings.series["quantity"] == f"enrichment {name}"]["value"].tolist()
        each = measure("", "", values, _UNIT)
        classes.hlines(place, each.low, each.high, color=SERIES[0], linewidth=1.8)
        classes.plot(each.estimate, place, "o", color=SERIES[0], markersize=5)
    classes.axvline(0, color="#9a9a9a", linewidth=0.8)
    classes.set_yticks(range(len(CLASSES)), CLASSES)
    classes.set(title="Classes at the two ends", xlabel=f"share in top {ENDS:.0%} less share in bottom {ENDS:.0%}")
    _draw_cloud(cloud, findings.series)
    result, form = findings.measurements[:2]
    finding = (
        f"Format makes up {points(form.estimate)} of DelTA's highest coefficients than of its lowest, results "
        f"{points(result.estimate)}"
    )
    return finish(figure, finding, findings.measurements)


def _draw_cloud(axes: Axes, series: pd.DataFrame) -> None:
    """Tokens that stand at one end more than at the other, the larger the more."""
    rows = series[series["quantity"].str.startswith("token ")]
    # A token that an update's rollouts do not hold stands at neither end.
    shares = rows.groupby("quantity")["value"].sum() / rows["unit"].nunique()
    shares.index = shares.index.str.removeprefix("token ")
    largest = max(float(shares.abs().max()), 1e-9)
    columns = (
        ("high", POSITIVE, 0.25, shares.sort_values(ascending=False)),
        ("low", NEGATIVE, 0.75, -shares.sort_values()),
    )
    for name, colour, x, ordered in columns:
        axes.text(x, 0.97, f"{name} weight", ha="center", va="top", fontsize=8)
        kept = ordered[ordered >= _SMALLEST_SHARE].head(_CLOUD_TOKENS)
        for place, (text, share) in enumerate(kept.items()):
            size = 8 + 10 * float(share) / largest
            axes.text(
                x, 0.86 - 0.105 * place, f"{text}  {share:+.0%}", ha="center", va="center", color=colour, fontsize=size,
                family="DejaVu Sans Mono", parse_math=False,
            )  # fmt: skip
    axes.set_axis_off()
    axes.set_title("Tokens at the two ends")


_METHOD = (
    "The weights that DelTA gave each token (normalised to mean 1) at the kept steps of its runs, tokens of advantage "
    "0 aside. Tokens are classed by their place in a worked line: operands, operators, the result after `=`, the "
    "answer in the box, and format. The rewards are means over the last ten rollout steps."
)
