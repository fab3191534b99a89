"""Claim 6: the tokens that an update boosts are worth more than those that it suppresses, on either side."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from evals.grading import GradingPool
from rlvr.diagnostics.claims.drawing import NEGATIVE, POSITIVE, QUIET, SERIES, draw_estimate, draw_estimates
from rlvr.diagnostics.claims.findings import Claim, Findings, Measurement, beside, measure
from rlvr.diagnostics.claims.inputs import Inputs
from rlvr.diagnostics.counterfactual import MAX_PROBABILITY, PLACES_PER_SIDE, SAMPLES, SIDES, value_tokens
from rlvr.diagnostics.policy import PolicySnapshot, numbers_within_groups
from rlvr.diagnostics.probes import Probed, ascend, log_probs_of, restored, score_gradient, stepped
from rlvr.methods.method import compose

_THRESHOLD = 1e-5
_TOP_ENTROPY = 0.4
_GROUP_SIZES = (2, 4)
_REPEATS = (2, 4, 8)
_COMPARED_AFTER = 4
_OF_PARTS = tuple(f"group_of_{size}" for size in _GROUP_SIZES)
_OF_REPEATS = tuple(f"repeated_{steps}" for steps in _REPEATS)
_UPDATES = ("as_trained", "joint", *_OF_PARTS, *_OF_REPEATS)


class TokenValue(Claim):
    """Values of sampled tokens, and their displacements under each update."""

    size = (10.5, 6.0)
    columns = ("unit", "step", "side", "value", "standard_error", "entropy", "class", *_UPDATES)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        with GradingPool(workers=1) as pool:
            for snapshot, probed in inputs.probed:
                valued = value_tokens(snapshot, pool)
                moved = _moved(snapshot, probed) if valued else {}
                for place, value in valued:
                    row = snapshot.rows.iloc[place]
                    yield {
                        **snapshot.identity,
                        "side": int(row["side"]),
                        "value": value.value,
                        "standard_error": value.standard_error,
                        "entropy": float(row["entropy"]),
                        "class": row["token_class"],
                        **{name: float(displacement[place]) for name, displacement in moved.items()},
                    }
                print(f"{snapshot.unit}: valued", flush=True)

    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        ranks = series.groupby("unit")["entropy"].rank(pct=True, ascending=False)
        top, rest = series[ranks <= _TOP_ENTROPY], series[ranks > _TOP_ENTROPY]
        comparable = top["unit"].nunique() == rest["unit"].nunique()
        difference = "gap in value, boosted less suppressed"
        for side, name in SIDES.items():
            yield measure(
                f"Boosted tokens are worth more than suppressed ones in {name} rollouts",
                f"{difference}, {name} rollouts, as trained (accuracy)",
                _gaps(series[series["side"] == side], "as_trained"),
            )
        yield measure(
            "The gap is larger among the uncertain",
            f"{difference}, top {_TOP_ENTROPY:.0%} by entropy less the rest, as trained",
            _gaps(top, "as_trained") - _gaps(rest, "as_trained") if comparable else [],
        )
        yield measure(
            "The gap grows with the number of rollouts in a group",
            f"{difference}, groups of all rollouts less groups of {_GROUP_SIZES[0]}, one SGD step",
            _gaps(series, "joint") - _gaps(series, f"group_of_{_GROUP_SIZES[0]}"),
        )
        yield measure(
            "The gap grows over repeated updates on one batch",
            f"{difference}, {_COMPARED_AFTER} SGD steps less one",
            _gaps(series, f"repeated_{_COMPARED_AFTER}") - _gaps(series, "joint"),
        )
        yield beside(
            f"mean standard error of one token's value, {SAMPLES} continuations on either side",
            series.groupby("unit")["standard_error"].mean(),
        )
        yield beside(
            "standard error of one update's gap, as trained, from sampled continuations alone",
            [sampling_error(rows, "as_trained") for _, rows in series.groupby("unit")],
        )
        yield beside(f"{difference}, as trained, all tokens", _gaps(series, "as_trained"))

    def draw(self, figure: Figure, findings: Findings) -> str:
        series = findings.series
        (by_side, by_entropy), (by_group, by_repeats) = figure.subplots(2, 2)
        for place, side in enumerate(SIDES):
            rows = series[series["side"] == side]
            for moved, colour, marker, sign in (("boosted", POSITIVE, "o", 1), ("suppressed", NEGATIVE, "s", -1)):
                chosen = rows[sign * rows["as_trained"] > _THRESHOLD]
                each = beside("", chosen.groupby("unit")["value"].mean())
                draw_estimate(by_side, place + 0.08 * sign, each, colour, marker, moved if place == 0 else None)
        by_side.set_xticks(range(2), [f"{name}\nrollouts" for name in SIDES.values()])
        by_side.set(title="Value of moved tokens, as trained", ylabel="accuracy with the token\nless with another")
        by_side.axhline(0, color=QUIET, linewidth=0.8)
        by_side.legend(fontsize=7)
        fifths = np.ceil(5 * series.groupby("unit")["entropy"].rank(pct=True, ascending=False))
        _draw_gaps(
            by_entropy,
            {f"{20 * q - 20}-\n{20 * q} %": _gaps(series[fifths == q], "as_trained") for q in range(1, 6)},
            "Gap by entropy of the token",
            "from the most uncertain fifth on",
        )
        groups = {str(size): _gaps(series, f"group_of_{size}") for size in _GROUP_SIZES}
        groups["all"] = _gaps(series, "joint")
        _draw_gaps(by_group, groups, "Gap by group size, one SGD step", "rollouts of a group")
        repeats = {"1": _gaps(series, "joint")}
        repeats |= {str(steps): _gaps(series, f"repeated_{steps}") for steps in _REPEATS}
        _draw_gaps(by_repeats, repeats, "Gap over repeated updates", "SGD steps on one batch")
        rewarded, punished = findings.measurements[:2]
        return (
            f"Boosted tokens are worth {rewarded.estimate:+.2f} more accuracy than suppressed ones in rewarded "
            f"rollouts, {punished.estimate:+.2f} in punished ones"
        )

    method = (
        f"Of each kept step up to {PLACES_PER_SIDE} tokens of either side with probability below "
        f"{MAX_PROBABILITY:g} were drawn. From each, {SAMPLES} continuations were sampled after the token and "
        f"{SAMPLES} before it, graded by the training's grader; the token's value is the difference of the two "
        "accuracies over one minus its probability, hence against its alternatives. Tokens count as boosted or "
        f"suppressed beyond {_THRESHOLD:g} nats under the run's own update. The gap's interval is over updates and "
        "so holds the sampling error of the values. The budget: the standard error of a value is at most sqrt(1 / "
        "2N) / (1 - p) with N continuations on either side; the last rows say what it was, what of it is left in "
        "the gap of one update, and the gap itself. For smaller groups the advantages were computed anew from the "
        "first rollouts of each group, and one SGD step was made of the size of the joint probe; for repeated "
        "updates such steps were made on one batch."
    )


def _moved(snapshot: PolicySnapshot, probed: Probed) -> dict[str, Tensor]:
    """Displacements [N] under each update: the run's, one step, steps on parts of the groups, several steps."""
    model, tokens, temperature = snapshot.model, snapshot.tokens, snapshot.temperature
    before = log_probs_of(model, tokens, temperature)
    found = {name: probed.displacements[name] for name in ("as_trained", "joint")}
    for size in _GROUP_SIZES:
        gradient = score_gradient(model, tokens, temperature, coefficients_of_smaller_groups(snapshot, size))
        with stepped(model, gradient, probed.step_size) as after:
            found[f"group_of_{size}"] = log_probs_of(after, tokens, temperature) - before
    with restored(model):
        for steps in range(1, max(_REPEATS) + 1):
            ascend(model, score_gradient(model, tokens, temperature, snapshot.coefficients), probed.step_size)
            if steps in _REPEATS:
                found[f"repeated_{steps}"] = log_probs_of(model, tokens, temperature) - before
    return found


def coefficients_of_smaller_groups(snapshot: PolicySnapshot, size: int) -> Tensor:
    """Return the coefficients [N] if every group had only its first ``size`` rollouts, weights aside."""
    kept = numbers_within_groups(snapshot.groups) < size
    rewards, lengths = snapshot.of_rollouts("reward").float(), snapshot.lengths
    advantages = torch.zeros(len(kept), dtype=torch.float64)
    advantage = compose(snapshot.run.method).advantage
    advantages[kept] = advantage(rewards[kept], snapshot.groups[kept], lengths[kept]).double()
    return advantages[snapshot.rollout_of] / int(lengths[kept].sum())


def gap(rows: pd.DataFrame, update: str) -> float:
    """Return the mean value of boosted tokens less that of suppressed ones under ``update``; NaN without either."""
    boosted = rows["value"][rows[update] > _THRESHOLD]
    suppressed = rows["value"][rows[update] < -_THRESHOLD]
    return float(boosted.mean() - suppressed.mean()) if len(boosted) and len(suppressed) else math.nan


def sampling_error(rows: pd.DataFrame, update: str) -> float:
    """Return the standard error of :func:`gap` from sampled continuations, the tokens held fixed; NaN without one."""
    variances = rows["standard_error"] ** 2
    boosted, suppressed = variances[rows[update] > _THRESHOLD], variances[rows[update] < -_THRESHOLD]
    if not len(boosted) or not len(suppressed):
        return math.nan
    return math.sqrt(boosted.sum() / len(boosted) ** 2 + suppressed.sum() / len(suppressed) ** 2)


def _gaps(series: pd.DataFrame, update: str) -> np.ndarray:
    """The gap of each unit [U]."""
    return np.array([gap(series[series["unit"] == unit], update) for unit in series["unit"].unique()])


def _draw_gaps(axes: Axes, gaps: Mapping[str, np.ndarray], title: str, xlabel: str) -> None:
    draw_estimates(axes, gaps, SERIES[0])
    axes.axhline(0, color=QUIET, linewidth=0.8)
    axes.set(title=title, xlabel=xlabel, ylabel="gap in value")
