"""The masking effect: how much of a token's displacement a set of other tokens is responsible for.

arXiv 2605.08666, Table 1: E_j(M) = log pi_full(y_j) - log pi_masked(y_j), where the masked update is the full one with
the tokens of M taken out of the loss. Plain SGD, for the first step of Adam is nearly that of the gradient's signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.diagnostics.coupling import coupling
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.probes import Gradient, HeadView, score_gradient, stepped
from rlvr.engines.local.policy import score

SETS = ("random", "same token", "low confidence", "both")


@dataclass(frozen=True)
class MaskSetting:
    """Which tokens are looked at, and which are masked.

    Attributes:
        size: tokens in every set.
        low_confidence: a token is of low confidence if its probability is below this.
    """

    size: int = 8
    low_confidence: float = 0.9


def mask_sets(
    candidate: int,
    pool: Tensor,
    token_ids: Tensor,
    probability: Tensor,
    setting: MaskSetting,
    generator: torch.Generator,
) -> dict[str, Tensor] | None:
    """Name -> indices [size] of the set's tokens, drawn from ``pool`` [P]; None if one of the sets cannot be filled.

    ``both`` are low-confidence occurrences of the candidate's token, ``same token`` occurrences of any confidence,
    ``low confidence`` low-confidence tokens of any kind, ``random`` any.
    """
    same = token_ids[pool] == token_ids[candidate]
    low = probability[pool] < setting.low_confidence
    everything = torch.ones_like(same)
    chosen = {}
    for name, members in zip(SETS, (everything, same, low, same & low), strict=True):
        places = members.nonzero()[:, 0]
        if len(places) < setting.size:
            return None
        order = torch.randperm(len(places), generator=generator)[: setting.size]
        chosen[name] = pool[places[order]]
    return chosen


def head_effects(
    view: HeadView, coefficients: Tensor, step_size: float, candidates: Mapping[int, Mapping[str, Tensor]]
) -> dict[int, dict[str, float]]:
    """Candidate -> set -> E_j(M), computing the full update once."""
    full = view.gradient(coefficients)
    return {
        candidate: _head_effects(view, full, coefficients, step_size, candidate, sets)
        for candidate, sets in candidates.items()
    }


def _head_effects(
    view: HeadView,
    full: Tensor,
    coefficients: Tensor,
    step_size: float,
    candidate: int,
    sets: Mapping[str, Tensor],
) -> dict[str, float]:
    alone = _part(view, torch.tensor([candidate]))
    after = alone.log_probs(view.weight + step_size * full)
    effects = {}
    for name, masked in sets.items():
        without = full - _part(view, masked).gradient(coefficients[masked])
        effects[name] = float(after - alone.log_probs(view.weight + step_size * without))
    return effects


def _part(view: HeadView, chosen: Tensor) -> HeadView:
    return HeadView(view.hidden[chosen], view.weight, view.token_ids[chosen], view.temperature)


def coupling_strength(view: HeadView, coefficients: Tensor, step_size: float, candidate: int, masked: Tensor) -> float:
    """The dose eta sum_M c_k K_jk in nats: what the kernel says E_j(M) is."""
    kernel = coupling(
        _part(view, torch.cat([torch.tensor([candidate]), masked])), torch.tensor([0]), torch.arange(1, len(masked) + 1)
    )
    return step_size * float(kernel[0] @ coefficients[masked])


def full_effects(
    moment: Moment,
    full: Gradient,
    coefficients: Tensor,
    step_size: float,
    candidates: Mapping[int, Mapping[str, Tensor]],
) -> dict[int, dict[str, float]]:
    """Candidate -> set -> E_j(M) in nats when the update is of all parameters.

    Args:
        moment: policy and rollouts.
        full: gradient of the whole update.
        coefficients: [N], what it is the gradient of.
        step_size: of SGD.
        candidates: token j -> sets of tokens that are masked.
    """
    temperature = moment.run.training.temperature
    ends = torch.tensor([len(response) for response in moment.tokens.responses]).cumsum(0)

    def log_prob(candidate: int) -> float:
        rollout = moment.rollout_of[candidate]
        batch = moment.tokens.select(rollout[None])
        within = candidate - int(ends[rollout] - len(batch.responses[0]))
        with torch.no_grad():
            return float(score(moment.model, batch, temperature).log_probs[within])

    with stepped(moment.model, full, step_size):
        after = {candidate: log_prob(candidate) for candidate in candidates}
    effects: dict[int, dict[str, float]] = {}
    for candidate, sets in candidates.items():
        effects[candidate] = {}
        for name, masked in sets.items():
            only_masked = torch.zeros_like(coefficients)
            only_masked[masked] = coefficients[masked]
            part = gradient_of_few(moment, only_masked)
            without = {key: full[key] - part[key] for key in full}
            with stepped(moment.model, without, step_size):
                effects[candidate][name] = after[candidate] - log_prob(candidate)
    return effects


def gradient_of_few(moment: Moment, coefficients: Tensor) -> Gradient:
    """The gradient of sum_n c_n log pi(y_n) when few rollouts have a coefficient that is not 0."""
    rollouts = moment.rollout_of[coefficients != 0].unique()
    if len(rollouts) == 0:
        return {name: torch.zeros_like(value) for name, value in moment.model.named_parameters()}
    kept = torch.isin(moment.rollout_of, rollouts)
    temperature = moment.run.training.temperature
    return score_gradient(moment.model, moment.tokens.select(rollouts), temperature, coefficients[kept])
