"""Claim 3: what boosts a token of a punished rollout is, above all, uncertain occurrences of the same token.

arXiv 2605.08666, Table 1: E_j(M) = log pi_full(y_j) - log pi_masked(y_j), where the masked update is the full one with
the tokens of M taken out of the loss. Plain SGD, for the first step of Adam is nearly that of the gradient's signs.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, product
from typing import Any

import pandas as pd
import torch
from matplotlib.scale import LogScale, SymmetricalLogScale
from torch import Tensor

from evals.core.random import generator_for
from rlvr.engines.local.policy import token_log_probs
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, select
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import SERIES, Dots, Estimates, Layout, Level, Means, panel
from rlvr_claims.measures import rank_correlation
from rlvr_claims.policy import PolicySnapshot
from rlvr_claims.probes import Gradient, HeadView, gradient_of_few, head_view, score_gradient, stepped

SETS = ("random", "same token", "low confidence", "both")
_SIZE = 8  # tokens in every set
_SIZES = (1, 2, 4, 8, 16)  # tokens masked one after the other, as far as there are so many
_FROM, _TO = 4, 16  # sizes that are compared
_PROGRESSIVE = ("random", "both")  # the sets that are masked progressively under full-parameter updates too
_LOW_CONFIDENCE = 0.9  # probability below which a token is of low confidence
_CANDIDATES, _FULL_CANDIDATES = 60, 10
_LINEAR_BELOW = 1e-3  # nats; effects are drawn on a scale that is logarithmic beyond
_MODES = ("head only", "full parameters")
Masked = tuple[str, int]  # name of a set, and the number of its tokens that are masked
Candidates = Mapping[int, Mapping[Masked, Tensor]]  # token j -> set -> indices of the masked tokens


class MaskingEffect(Claim):
    """E_j(M) of the four kinds of set under updates of the head and of all parameters, and the dose beside it."""

    size = (12.0, 3.4)
    columns = ("unit", "step", "mode", "set", "masked", "candidate", "effect", "dose")

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        for snapshot, probed in inputs.probed:
            candidates, step_size = _candidates(snapshot), probed.step_size
            if not candidates:
                continue
            coefficients, view = snapshot.coefficients, head_view(snapshot)
            gradient = score_gradient(snapshot.model, snapshot.tokens, snapshot.temperature, coefficients)
            few = {
                candidate: {
                    key: masked for key, masked in sets.items() if len(masked) == _SIZE or key[0] in _PROGRESSIVE
                }
                for candidate, sets in islice(candidates.items(), _FULL_CANDIDATES)
            }
            effects = (
                head_effects(view, coefficients, step_size, candidates),
                full_effects(snapshot, gradient, coefficients, step_size, few),
            )
            for mode, by_candidate in zip(_MODES, effects, strict=True):
                for candidate, sets in by_candidate.items():
                    for key, effect in sets.items():
                        masked = candidates[candidate][key]
                        dose = coupling_strength(view, coefficients, step_size, candidate, masked)
                        numbers = {"masked": len(masked), "candidate": candidate, "effect": effect, "dose": dose}
                        yield {**snapshot.identity, "mode": mode, "set": key[0], **numbers}

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        of_size = select(series, masked=_SIZE)
        means = of_size.assign(rate=of_size["effect"] > 0).groupby(["mode", "set", "unit"])[["rate", "effect"]].mean()
        values: dict[str, Any] = {
            f"{column}, {mode}, {name}": means[column].get((mode, name), pd.Series(dtype=float))
            for column, mode, name in product(means, _MODES, SETS)
        }
        values["correlation"] = [
            rank_correlation(group["dose"].to_numpy(), group["effect"].to_numpy())
            for _, group in select(of_size, mode=_MODES[1]).groupby("unit")
        ]
        return values | {f"growth, {mode}": growth(select(series, mode=mode, set="both")) for mode in _MODES}

    def panels(self, findings: Findings) -> Layout:
        measured = {measurement.quantity: measurement for measurement in findings.measurements}
        rates, doses, progressive = list[Estimates](), list[Dots](), list[Means]()
        for mode, colour, marker, shift in ((_MODES[0], SERIES[0], "o", -0.08), (_MODES[1], SERIES[1], "s", 0.08)):
            by_set = {name.replace(" ", "\n"): measured[f"boost rate, {name}, {mode}"] for name in SETS}
            rates.append(Estimates(by_set, colour, marker, mode, shift))
            doses.append(Dots(select(findings.series, mode=mode, masked=_SIZE), "dose", "effect", colour, marker, mode))
            for name, line in zip(_PROGRESSIVE, ":-", strict=True):
                rows = select(findings.series, mode=mode, set=name)
                # One set of candidates along the whole curve: those that have as many as are compared.
                rows = rows[rows.groupby(["unit", "candidate"])["masked"].transform("max") >= _TO]
                means = rows.groupby(["unit", "masked"])["effect"].mean().reset_index()
                label = f"{mode}, {'uncertain, same token' if name == 'both' else name}"
                progressive.append(Means(means, "masked", "effect", colour, label, marker, line))
        boosted: Any = {"y": "fraction of candidates boosted", "ylim": (-0.03, 1.05)}
        scale, ticks = SymmetricalLogScale(None, linthresh=_LINEAR_BELOW), [-0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1]
        response: Any = {"x": "coupling strength (nats)", "y": "effect E(M) (nats)", "xscale": scale, "yscale": scale}
        response |= {"xticks": ticks, "yticks": ticks, "formats": {"x": "{x:g}", "y": "{x:g}"}}
        masked: Any = {"x": "tokens masked", "y": "mean effect (nats)", "formats": {"x": "{x:g}"}}
        # Limits of its own, for an update may have no candidates to draw.
        masked |= {"xlim": (0.8 * _SIZES[0], 1.25 * _SIZES[-1]), "xscale": LogScale(None, base=2)}
        return [
            [
                panel("Boost rate by what is masked", *rates, Level(0.5), **boosted),
                panel("Dose and response", *doses, **response),
                panel("Progressive masking", *progressive, Level(0), **masked),
            ]
        ]


def _candidates(snapshot: PolicySnapshot) -> dict[int, dict[Masked, Tensor]]:
    """Low-confidence tokens of punished rollouts, with the sets of tokens of rewarded rollouts that are masked."""
    generator = generator_for("masking", snapshot.unit)
    probability = snapshot.column("old_log_prob").exp()
    sides = snapshot.column("side")
    pool = (sides > 0).nonzero()[:, 0]
    uncertain = ((sides < 0) & (probability < _LOW_CONFIDENCE)).nonzero()[:, 0]
    candidates: dict[int, dict[Masked, Tensor]] = {}
    for candidate in uncertain[torch.randperm(len(uncertain), generator=generator)].tolist():
        sets = mask_sets(candidate, pool, snapshot.token_ids, probability, _SIZE, generator)
        if sets is not None:
            candidates[candidate] = {
                (name, size): order[:size] for name, order in sets.items() for size in _SIZES if size <= len(order)
            }
        if len(candidates) == _CANDIDATES:
            break
    return candidates


def mask_sets(
    candidate: int, pool: Tensor, token_ids: Tensor, probability: Tensor, size: int, generator: torch.Generator
) -> dict[str, Tensor] | None:
    """List each set's tokens in ``pool`` [P] in random order; None if one of the sets has fewer than ``size``.

    ``both`` are low-confidence occurrences of the candidate's token, ``same token`` occurrences of any confidence,
    ``low confidence`` low-confidence tokens of any kind, ``random`` any.
    """
    same = token_ids[pool] == token_ids[candidate]
    low = probability[pool] < _LOW_CONFIDENCE
    chosen = {}
    for name, members in zip(SETS, (torch.ones_like(same), same, low, same & low), strict=True):
        places = members.nonzero()[:, 0]
        if len(places) < size:
            return None
        chosen[name] = pool[places[torch.randperm(len(places), generator=generator)]]
    return chosen


def growth(series: pd.DataFrame) -> pd.Series:
    """Return the mean effect at the larger of the compared sizes less that at the smaller, by unit.

    Over the candidates that have both.
    """
    effects = series.pivot(index=["unit", "candidate"], columns="masked", values="effect")
    if not {_FROM, _TO} <= set(effects):
        return pd.Series(dtype=float)
    return (effects[_TO] - effects[_FROM]).dropna().groupby("unit").mean()


def head_effects(
    view: HeadView, coefficients: Tensor, step_size: float, candidates: Candidates
) -> dict[int, dict[Masked, float]]:
    """Return E_j(M) in nats of each candidate and set when the update is of the head alone."""
    full = view.gradient(coefficients)

    def effect(candidate: int, masked: Tensor) -> float:
        without = full - view.select(masked).gradient(coefficients[masked])
        alone = view.select(torch.tensor([candidate]))
        after, after_masked = (alone.log_probs(view.weight + step_size * update) for update in (full, without))
        return float(after - after_masked)

    return _of_each(candidates, effect)


def coupling_strength(view: HeadView, coefficients: Tensor, step_size: float, candidate: int, masked: Tensor) -> float:
    """Return the dose eta sum_M c_k K_jk in nats: the kernel's prediction of E_j(M)."""
    part = view.select(torch.cat([torch.tensor([candidate]), masked]))
    kernel = part.coupling(torch.tensor([0]), torch.arange(1, len(masked) + 1))
    return step_size * float(kernel[0] @ coefficients[masked])


def full_effects(
    snapshot: PolicySnapshot, full: Gradient, coefficients: Tensor, step_size: float, candidates: Candidates
) -> dict[int, dict[Masked, float]]:
    """Return E_j(M) in nats of each candidate and set when the update is of all parameters.

    ``full`` is the gradient of the whole update, ``coefficients`` [N] are its coefficients.
    """
    ends = snapshot.lengths.cumsum(0)

    def log_prob(candidate: int) -> float:
        rollout = snapshot.rollout_of[candidate]
        batch = snapshot.tokens.select(rollout[None])
        within = candidate - int(ends[rollout] - len(batch.responses[0]))
        with torch.no_grad():
            return float(token_log_probs(snapshot.model, batch, snapshot.temperature)[within])

    with stepped(snapshot.model, full, step_size):
        after = {candidate: log_prob(candidate) for candidate in candidates}

    def effect(candidate: int, masked: Tensor) -> float:
        only_masked = torch.zeros_like(coefficients)
        only_masked[masked] = coefficients[masked]
        part = gradient_of_few(snapshot, only_masked)
        without = {key: full[key] - part[key] for key in full}
        with stepped(snapshot.model, without, step_size):
            return after[candidate] - log_prob(candidate)

    return _of_each(candidates, effect)


def _of_each(candidates: Candidates, effect: Callable[[int, Tensor], float]) -> dict[int, dict[Masked, float]]:
    """The ``effect`` of masking, for each candidate and each of its sets."""
    return {
        candidate: {name: effect(candidate, masked) for name, masked in sets.items()}
        for candidate, sets in candidates.items()
    }
