"""Claim 7: DelTA's coefficients are high where tokens tell rewarded from punished rollouts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from evals.grading import GradingPool
from rlvr.tokens.table import CLASSES
from rlvr_claims import counterfactual
from rlvr_claims.claims.base import Need, lacking
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Estimate, Findings, Measurement, by_name, measure, select, unmeasured
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import NEGATIVE, POSITIVE, Estimates, Histogram, Layout, Level, Words, panel
from rlvr_claims.counterfactual import SIDES
from rlvr_claims.measures import FloatArray, rank_correlation
from rlvr_claims.policy import PolicySnapshot

_ENDS = 0.1
_EDGES = np.linspace(0.6, 1.5, 41)
_CLOUD_TOKENS = 8
_SMALLEST_SHARE = 0.005  # of a token in the cloud
_THIRDS = ("lowest", "middle", "highest")


class DeltaCoefficients(Claim):
    """Distributions of the weights by side, the tokens that they favour, and their correlations."""

    size = (10.0, 6.4)

    def measure(self, inputs: Inputs) -> Findings:
        findings = super().measure(inputs)
        return Findings([*findings.measurements, *_selection(inputs)], findings.series)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        snapshots = inputs.snapshots(Need.WEIGHTING_TABLES)
        for snapshot in snapshots:
            yield from _rows(snapshot)
        with GradingPool(workers=1) as pool:
            for snapshot in snapshots:
                yield from value_rows(snapshot, pool)
                print(f"{snapshot.unit}: valued", flush=True)

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        return by_name(series, "quantity")

    def panels(self, findings: Findings) -> Layout:
        def values(quantity: str) -> pd.Series:
            return select(findings.series, quantity=quantity)["value"]

        sides = (("positive", "rewarded", POSITIVE, "o", -0.06), ("negative", "punished", NEGATIVE, "s", 0.06))
        weights, worth = list[Histogram](), list[Estimates]()
        for side, name, colour, marker, shift in sides:
            weights.append(Histogram(select(findings.series, quantity=f"histogram {side}"), "place", colour, name))
            thirds = {words: values(f"value {name} {third}") for third, words in enumerate(_THIRDS)}
            worth.append(Estimates(thirds, colour, marker, name, shift))
        classes = Estimates({name: values(f"enrichment {name}") for name in CLASSES})
        by_weight: Any = {"x": "weight (mean 1 over all tokens)", "y": "fraction of the side", "yscale": "log"}
        by_third: Any = {"x": "third of the side's tokens", "y": "accuracy against others"}
        ends = f"share in top {_ENDS:.0%} less share in bottom {_ENDS:.0%}"
        return [
            [
                panel("Weights by side", *weights, **by_weight),
                panel("Classes at the two ends", classes, Level(0), x=ends, level=True),
            ],
            [
                panel("Tokens at the two ends", Words(words_at_the_ends(findings.series))),
                panel("Value of tokens by weight", *worth, Level(0), **by_third),
            ],
        ]

    def title(self, findings: Findings) -> str:
        result = findings.measurements[0]
        return super().title(findings) + (f", results {Estimate(result.estimate):points}" if result.units else "")


def _selection(inputs: Inputs) -> Iterator[Measurement]:
    """Reward of training on the tokens of highest coefficient alone less that of the lowest, paired by seed.

    The first run's method is the one that trains on the highest.
    """
    ends: dict[str, dict[int, float]] = {}
    for name in inputs.runs:
        metrics = inputs.read_run(name)
        ends.setdefault(metrics.run.method_name, {})[metrics.run.seed] = metrics.end("reward_mean")
    statement = "Training on the tokens of highest coefficient alone beats training on the lowest"
    if len(ends) != 2:
        yield unmeasured(statement, lacking({Need.SELECTED_RUNS}))
    else:
        (top, highest), (bottom, lowest) = ends.items()
        differences = [highest[seed] - lowest[seed] for seed in sorted(highest.keys() & lowest.keys())]
        yield measure(statement, f"reward at the end, {top} less {bottom}", differences, "seeds")


def _row(snapshot: PolicySnapshot, quantity: str, value: float, place: float = 0.0) -> dict[str, Any]:
    return {**snapshot.identity, "quantity": quantity, "place": place, "value": value}


def _rows(snapshot: PolicySnapshot) -> Iterator[dict[str, Any]]:
    table = snapshot.rows[snapshot.rows["side"] != 0]
    if table.empty:  # every group was all correct or all wrong
        return
    weights, log_probs, entropies = table[["weight", "old_log_prob", "entropy"]].to_numpy(dtype=np.float64).T
    sides = table["side"].to_numpy()
    texts = [text.replace("\n", "\\n") for text in table["text"]]
    classes = table["token_class"].tolist()
    mean = {side: float(weights[sides == side].mean()) if (sides == side).any() else np.nan for side in (1, -1)}
    quantities = {
        **{
            f"enrichment {name}": class_enrichment(weights, classes, name, _ENDS) for name in CLASSES if name in classes
        },
        **{f"token {text}": class_enrichment(weights, texts, text, _ENDS) for text in sorted(set(texts))},
        "correlation with 1 - p": rank_correlation(weights, 1 - np.exp(log_probs)),
        "correlation with entropy": rank_correlation(weights, entropies),
        "mean positive less negative": mean[1] - mean[-1],
        "deviation": float(weights.std()),
    }
    for quantity, value in quantities.items():
        yield _row(snapshot, quantity, value)
    for side, name in ((1, "positive"), (-1, "negative")):
        counts = np.histogram(weights[sides == side], bins=_EDGES)[0] / max(1, (sides == side).sum())
        for place, share in zip((_EDGES[:-1] + _EDGES[1:]) / 2, counts, strict=True):
            yield _row(snapshot, f"histogram {name}", float(share), float(place))


def value_rows(snapshot: PolicySnapshot, pool: GradingPool) -> Iterator[dict[str, Any]]:
    """Correlate weight and counterfactual value on either side, and average values by thirds of the weight."""
    valued = counterfactual.value_tokens(snapshot, pool)
    chosen = [row for row, _ in valued]
    weights, sides = (snapshot.column(name).numpy()[chosen] for name in ("weight", "side"))
    values = np.array([value.value for _, value in valued])
    for side, name in SIDES.items():
        of_side = sides == side
        yield _row(snapshot, f"correlation with value {name}", rank_correlation(weights[of_side], values[of_side]))
        if of_side.sum() >= len(_THIRDS):
            order = np.argsort(weights[of_side], kind="stable")
            for third, part in enumerate(np.array_split(values[of_side][order], len(_THIRDS))):
                yield _row(snapshot, f"value {name} {third}", float(part.mean()), float(third))


def class_enrichment(coefficients: FloatArray, classes: Sequence[str], wanted: str, fraction: float) -> float:
    """Return the share of class ``wanted`` among the tokens [N] of highest coefficient, less that among the lowest.

    ``fraction`` is the share of the tokens at either end, at most 0.5. Ties at the border count with the weight that
    makes both ends exactly so large.
    """
    if not 0 < fraction <= 0.5:
        raise ValueError(f"fraction is {fraction}; accepted: above 0, at most 0.5")
    is_wanted = np.array([name == wanted for name in classes], dtype=np.float64)
    return float((end_weights(coefficients, fraction) - end_weights(-coefficients, fraction)) @ is_wanted)


def end_weights(values: FloatArray, fraction: float) -> FloatArray:
    """Return weights [N] that sum to 1 over the ``fraction`` of largest values, shared evenly among ties."""
    size = fraction * len(values)
    threshold = np.sort(values)[::-1][min(len(values), math.ceil(size)) - 1]
    above, tied = values > threshold, values == threshold
    weights = above.astype(np.float64)
    weights[tied] = (size - above.sum()) / tied.sum()
    return np.asarray(weights / size)


def words_at_the_ends(series: pd.DataFrame) -> dict[str, tuple[str, pd.Series]]:
    """Choose the tokens that stand at one end more than at the other, by heading, with a colour."""
    rows = series[series["quantity"].str.startswith("token ")]
    # A token that an update's rollouts do not hold stands at neither end.
    shares = rows.groupby("quantity")["value"].sum() / rows["unit"].nunique()
    shares.index = shares.index.str.removeprefix("token ")
    ordered = {"high weight": (POSITIVE, shares), "low weight": (NEGATIVE, -shares)}
    return {
        heading: (colour, differences[differences >= _SMALLEST_SHARE].sort_values(ascending=False).head(_CLOUD_TOKENS))
        for heading, (colour, differences) in ordered.items()
    }
