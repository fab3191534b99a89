"""Claim 6: the tokens that an update boosts are worth more than those that it suppresses, on either side."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from evals.grading import GradingPool
from rlvr.methods.method import compose
from rlvr_claims import counterfactual
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, select
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import NEGATIVE, POSITIVE, SERIES, Estimates, Layout, Level, Means, Panel, panel
from rlvr_claims.counterfactual import SIDES
from rlvr_claims.policy import PolicySnapshot, numbers_within_groups
from rlvr_claims.probes import Probed, ascend, log_probs_of, restored, score_gradient, stepped

GROUP_SIZES = (2, 4)
PARTS_OF_BATCH = (8, 4, 2)
"""Batches of an eighth, a quarter and a half of a rollout batch's prompts."""
COMPOSITIONS = ("sparse", "balanced", "saturated")
SPARSE_UP_TO, SATURATED_FROM = 0.25, 0.75
REPEATS = (2, 4, 8)
OF_BATCHES = tuple(f"batch_part_{parts}" for parts in PARTS_OF_BATCH)
UPDATES = (
    "as_trained",
    "joint",
    *(f"group_of_{size}" for size in GROUP_SIZES),
    *(f"repeated_{steps}" for steps in REPEATS),
    *OF_BATCHES,
    "own_composition",
)


def all_displacements(snapshot: PolicySnapshot, probed: Probed, compositions: Tensor) -> dict[str, Tensor]:
    """Return displacements [N] under each of :data:`UPDATES`; ``compositions`` [B] are those of the rollouts."""
    model, tokens, temperature = snapshot.model, snapshot.tokens, snapshot.temperature
    before = log_probs_of(model, tokens, temperature)
    displacements = {name: probed.displacements[name] for name in ("as_trained", "joint")}
    for size in GROUP_SIZES:
        gradient = score_gradient(model, tokens, temperature, coefficients_of_smaller_groups(snapshot, size))
        with stepped(model, gradient, probed.step_size) as after:
            displacements[f"group_of_{size}"] = log_probs_of(after, tokens, temperature) - before
    for parts, name in zip(PARTS_OF_BATCH, OF_BATCHES, strict=True):
        displacements[name] = displacements_by_block(
            snapshot, parts_of_batch(snapshot.groups, parts), probed.step_size, before
        )
    displacements["own_composition"] = displacements_by_block(snapshot, compositions, probed.step_size, before)
    with restored(model):
        for steps in range(1, max(REPEATS) + 1):
            ascend(model, score_gradient(model, tokens, temperature, snapshot.coefficients), probed.step_size)
            if steps in REPEATS:
                displacements[f"repeated_{steps}"] = log_probs_of(model, tokens, temperature) - before
    return displacements


def coefficients_of_smaller_groups(snapshot: PolicySnapshot, size: int) -> Tensor:
    """Return the coefficients [N] if every group had only its first ``size`` rollouts, weights aside."""
    kept = numbers_within_groups(snapshot.groups) < size
    rewards, lengths = snapshot.of_rollouts("reward").float(), snapshot.lengths
    advantages = torch.zeros(len(kept), dtype=torch.float64)
    advantage = compose(snapshot.run.method, longest=snapshot.run.training.max_new_tokens).advantage
    advantages[kept] = advantage(rewards[kept], snapshot.groups[kept], lengths[kept]).double()
    return advantages[snapshot.rollout_of] / int(lengths[kept].sum())


def parts_of_batch(groups: Tensor, parts: int) -> Tensor:
    """Number the part [B] of the batch that each rollout's group [B] falls into, of ``parts`` nearly equal ones."""
    numbers: Tensor = groups.unique(return_inverse=True)[1]
    return numbers * parts // (int(numbers.max()) + 1)


def compositions_of(snapshot: PolicySnapshot) -> Tensor:
    """Number each rollout's group [B] in :data:`COMPOSITIONS`, by the share of its rollouts that are right."""
    right = snapshot.of_rollouts("reward") > 0
    _, members, sizes = snapshot.groups.unique(return_inverse=True, return_counts=True)
    shares = (torch.zeros(len(sizes)).double().index_add(0, members, right.double()) / sizes)[members]
    numbers: Tensor = (shares > SPARSE_UP_TO).long() + (shares >= SATURATED_FROM).long()
    return numbers


def displacements_by_block(snapshot: PolicySnapshot, blocks: Tensor, step_size: float, before: Tensor) -> Tensor:
    """Return the displacement [N] of each token by one SGD step on the rollouts of its own block alone.

    ``blocks`` [B] number them, ``before`` [N] are the log-probabilities without a step. A step is on the mean over its
    tokens, as that of the whole batch is.
    """
    model, temperature = snapshot.model, snapshot.temperature
    displacements = torch.zeros_like(before)
    for block in blocks.unique():
        rollouts = (blocks == block).nonzero()[:, 0]
        of_block = (blocks == block)[snapshot.rollout_of]
        tokens = snapshot.tokens.select(rollouts)
        coefficients = snapshot.weighted_advantages[of_block] / int(of_block.sum())
        with stepped(model, score_gradient(model, tokens, temperature, coefficients), step_size) as after:
            displacements[of_block] = log_probs_of(after, tokens, temperature) - before[of_block]
    return displacements


_THRESHOLD = 1e-5
_TOP_ENTROPY = 0.4
_TOP_ENTROPIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
_MOST_VALUED = 0.25


class TokenValue(Claim):
    """Values of sampled tokens, and their displacements under each update."""

    size = (13.0, 6.0)
    columns = ("unit", "step", "side", "value", "standard_error", "entropy", "class", "composition", *UPDATES)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        with GradingPool(workers=1) as pool:
            for snapshot, probed in inputs.probed:
                valued = counterfactual.value_tokens(snapshot, pool)
                compositions = compositions_of(snapshot)
                moved = all_displacements(snapshot, probed, compositions) if valued else {}
                for token, value in valued:
                    row = snapshot.rows.iloc[token]
                    yield {
                        **snapshot.identity,
                        "side": int(row["side"]),
                        "value": value.value,
                        "standard_error": value.standard_error,
                        "entropy": float(row["entropy"]),
                        "class": row["token_class"],
                        "composition": COMPOSITIONS[compositions[snapshot.rollout_of[token]]],
                        **{name: float(displacement[token]) for name, displacement in moved.items()},
                    }
                print(f"{snapshot.unit}: valued", flush=True)

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        ranks = series.groupby("unit")["entropy"].rank(pct=True, ascending=False)
        top, rest = series[ranks <= _TOP_ENTROPY], series[ranks > _TOP_ENTROPY]
        comparable = top["unit"].nunique() == rest["unit"].nunique()
        by_unit = series.groupby("unit")
        return {
            **{name: _gaps(series[series["side"] == side], "as_trained") for side, name in SIDES.items()},
            "uncertain": _gaps(top, "as_trained") if comparable else np.array([]),
            "certain": _gaps(rest, "as_trained") if comparable else np.array([]),
            "peak": gaps_of_top(series, _TOP_ENTROPY),
            "most uncertain": gaps_of_top(series, 0.1),
            "all of top": gaps_of_top(series, 1.0),
            **{update: _gaps(series, update) for update in UPDATES},
            "share boosted, joint": shares_boosted(series, "joint"),
            "share boosted, part": shares_boosted(series, OF_BATCHES[0]),
            **{name: _gaps_of_composition(series, name) for name in COMPOSITIONS},
            "standard error": by_unit["standard_error"].mean(),
            "standard error of the gap": [sampling_error(rows, "as_trained") for _, rows in by_unit],
        }

    def panels(self, findings: Findings) -> Layout:
        series, moved = findings.series, list[Estimates]()
        for name, colour, marker, sign in (("boosted", POSITIVE, "o", 1), ("suppressed", NEGATIVE, "s", -1)):
            rows = series[sign * series["as_trained"] > _THRESHOLD]
            values = {words: select(rows, side=side).groupby("unit")["value"].mean() for side, words in SIDES.items()}
            moved.append(Estimates(values, colour, marker, name, 0.08 * sign))

        def gaps(title: str, x: str, values: Mapping[str, np.ndarray]) -> Panel:
            return panel(title, Estimates(values), Level(0), x=x, y="gap in value")

        every = _gaps(series, "joint")
        batches = {f"1/{parts}": _gaps(series, f"batch_part_{parts}") for parts in PARTS_OF_BATCH}
        groups = {str(size): _gaps(series, f"group_of_{size}") for size in GROUP_SIZES}
        repeats = {str(steps): _gaps(series, f"repeated_{steps}") for steps in REPEATS}
        compositions = {name: _gaps_of_composition(series, name) for name in COMPOSITIONS}
        value: Any = {"x": "rollouts", "y": "accuracy with the token\nless with another"}
        return [
            [
                panel("Value of moved tokens, as trained", *moved, Level(0), **value),
                _entropy_panel(series),
                gaps("Gap by a group's rewards, one SGD step", "of the update and its tokens", compositions),
            ],
            [
                gaps("Gap by group size, one SGD step", "rollouts of a group", groups | {"all": every}),
                gaps("Gap by batch size, one SGD step", "part of the prompts", batches | {"all": every}),
                gaps("Gap over repeated updates", "SGD steps on one batch", {"1": every} | repeats),
            ],
        ]


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


def _gaps(series: pd.DataFrame, update: str, units: pd.Series | None = None) -> np.ndarray:
    """The gap of each unit [U]; of ``units``, where rows of some units may have been left out."""
    units = series["unit"] if units is None else units
    return np.array([gap(series[series["unit"] == unit], update) for unit in units.unique()])


def gaps_of_top(series: pd.DataFrame, fraction: float) -> np.ndarray:
    """Return the gap of each unit [U], as trained, among the ``fraction`` of its valued tokens of highest entropy."""
    ranks = series.groupby("unit")["entropy"].rank(pct=True, ascending=False)
    return _gaps(series[ranks <= fraction], "as_trained", series["unit"])


def shares_boosted(series: pd.DataFrame, update: str) -> np.ndarray:
    """Return the share [U] of each unit's most valued tokens that ``update`` boosts."""
    ranks = series.groupby("unit")["value"].rank(pct=True, ascending=False)
    top = series[ranks <= _MOST_VALUED]
    boosted = (top[update] > _THRESHOLD).groupby(top["unit"]).mean()
    return boosted.reindex(series["unit"].unique()).to_numpy(dtype=np.float64)


def _gaps_of_composition(series: pd.DataFrame, composition: str) -> np.ndarray:
    return _gaps(series[series["composition"] == composition], "own_composition", series["unit"])


def _entropy_panel(series: pd.DataFrame) -> Panel:
    """The gap among the most uncertain tokens, up to each share of them, and in each fifth alone."""
    curve = [(100 * fraction, gap) for fraction in _TOP_ENTROPIES for gap in gaps_of_top(series, fraction)]
    fifths = np.ceil(5 * series.groupby("unit")["entropy"].rank(pct=True, ascending=False))
    by_fifth = {
        20.0 * fifth - 10: _gaps(series[fifths == fifth], "as_trained", series["unit"]) for fifth in range(1, 6)
    }
    shares = Means(pd.DataFrame(curve, columns=["share", "gap"]), "share", "gap", SERIES[0], "top share")
    parts = Estimates(by_fifth, SERIES[1], "s", "each fifth")
    words = "% of the valued tokens, the most uncertain first"
    return panel("Gap by entropy, as trained", shares, parts, Level(0), x=words, y="gap in value")
