"""Claim 7: DelTA's coefficients are high where tokens tell rewarded from punished rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.core.errors import UserError
from evals.figures.style import new_figure
from evals.grading import GradingPool
from rlvr.diagnostics.coefficients import class_enrichment, rank_correlation
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.phenomena.drawing import NEGATIVE, POSITIVE, SERIES, finish, points
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.run_ends import read_run
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.phenomena.valued_tokens import PLACES_PER_SIDE, SAMPLES, SIDES, value_tokens
from rlvr.diagnostics.token_classes import CLASSES
from rlvr.diagnostics.token_value import MAX_PROBABILITY

ENDS = 0.1
_UNIT = "updates (run, step)"
_BINS, _CLOUD_TOKENS = 40, 8
_SMALLEST_SHARE = 0.005  # of a token in the cloud
_THIRDS = 3


def find(sources: Sources) -> Findings:
    """Distributions of the weights by side, what tokens they favour, and what they go with.

    Raises:
        UserError: no token table of a run that weighs tokens was given.
    """
    if not sources.contrast_moments:
        raise UserError("delta_coefficients: no token table of a run with token weights; name DelTA in diagnostics")
    rows = [row for moment in sources.contrast_moments for row in _rows(moment)]
    with GradingPool(workers=1) as pool:
        for moment in sources.contrast_moments:
            rows += _value_rows(moment, pool)
            print(f"{moment.unit}: valued", flush=True)
    series = pd.DataFrame(rows)
    measurements = [*_measurements(series), *_selection(sources)]
    return Findings("DelTA's coefficients", _METHOD, measurements, series)


def _selection(sources: Sources) -> list[Measurement]:
    """Reward of training on the tokens of highest coefficient alone less that of the lowest, paired by seed.

    The first run's method is the one that trains on the highest.
    """
    ends: dict[str, dict[int, float]] = {}
    for name in sources.runs:
        found = read_run(sources.results / "runs" / name)
        ends.setdefault(found.run.method_name, {})[found.run.seed] = found.end("reward_mean")
    if len(ends) != 2:
        return []
    top, bottom = ends
    differences = [ends[top][seed] - ends[bottom][seed] for seed in sorted(ends[top].keys() & ends[bottom].keys())]
    statement = "Training on the tokens of highest coefficient alone beats training on the lowest"
    return [measure(statement, f"reward at the end, {top} less {bottom}", differences, "seeds")]


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


def _value_rows(moment: Moment, pool: GradingPool) -> list[dict[str, Any]]:
    """Correlation of weight and counterfactual value on either side, and mean values by thirds of the weight."""
    valued = value_tokens(moment, pool)
    chosen = [each.row for each in valued]
    weights = moment.column("weight").numpy()[chosen]
    sides = moment.column("side").numpy()[chosen]
    values = np.array([each.value.value for each in valued])
    rows: list[dict[str, Any]] = []
    for side, name in SIDES.items():
        own = sides == side
        found = {f"correlation with value {name}": (0.0, rank_correlation(weights[own], values[own]))}
        if own.sum() >= _THIRDS:
            order = np.argsort(weights[own], kind="stable")
            for third, part in enumerate(np.array_split(values[own][order], _THIRDS)):
                found[f"value {name} {third}"] = (float(third), float(part.mean()))
        rows += [
            {"unit": moment.unit, "step": moment.step, "quantity": quantity, "place": place, "value": value}
            for quantity, (place, value) in found.items()
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
        measure(
            "High coefficients stand on tokens that are worth more, in rewarded rollouts",
            "rank correlation of weight and counterfactual value, rewarded rollouts",
            values("correlation with value rewarded"), _UNIT,
        ),
        measure(
            "High coefficients stand on tokens that are worth less, in punished rollouts",
            "rank correlation of weight and counterfactual value, punished rollouts",
            values("correlation with value punished"), _UNIT, direction="below",
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
    figure = new_figure(10.0, 6.4)
    (histogram, classes), (cloud, worth) = figure.subplots(2, 2)
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
    for shift, colour, marker, name in ((-0.06, POSITIVE, "o", "rewarded"), (0.06, NEGATIVE, "s", "punished")):
        for third in range(_THIRDS):
            values = findings.series[findings.series["quantity"] == f"value {name} {third}"]["value"].tolist()
            each = measure("", "", values, _UNIT)
            worth.vlines(third + shift, each.low, each.high, color=colour, linewidth=1.8)
            label = name if third == 0 else None
            worth.plot(third + shift, each.estimate, marker, color=colour, markersize=5, label=label)
    worth.axhline(0, color="#9a9a9a", linewidth=0.8)
    worth.set_xticks(range(_THIRDS), ["lowest", "middle", "highest"])
    worth.set(title="Value of tokens by weight", xlabel="third of the side's tokens", ylabel="accuracy against others")
    worth.legend(fontsize=7)
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
    f"answer in the box, and format. Counterfactual values are as in the claim about them, of up to {PLACES_PER_SIDE} "
    f"tokens of either side with probability below {MAX_PROBABILITY:g} and {SAMPLES} continuations with and without "
    "each; their sampling error makes these correlations smaller than those of exact values would be. The rewards are "
    "means over the last ten rollout steps."
)
