"""Slow float64 references of the losses: plain loops written from the equations.

A reference returns, for every real token, its loss and the derivative of the mini-batch's summed token losses with
respect to its log-probability.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlvr.methods.aggregation import Aggregation, Mode
from rlvr.methods.losses.base import PolicyLoss
from rlvr.methods.losses.cov import ClipCov, KLCov
from rlvr.methods.losses.fipo import FIPO
from rlvr.methods.losses.sequence_ratios import DFPO, GMPO, GSPO, GSPOToken
from rlvr.methods.losses.token_ratios import CISPO, SAPO, Clipped, GRPOFix, Reinforce

Token = tuple[int, int]
Reference = dict[Token, tuple[float, float]]


class Batch:
    """Plain numbers of a mini-batch that is aggregated by ``mode``."""

    def __init__(self, inputs: Any, mode: Mode = "token-mean") -> None:
        self.mode = mode
        self.lengths = [int(row.sum()) for row in inputs.response_mask]
        self.new = inputs.log_probs.tolist()
        self.old = inputs.old_log_probs.tolist()
        self.advantage = inputs.advantages.tolist()
        self.group = inputs.group_ids.tolist()

    @property
    def tokens(self) -> list[Token]:
        """All real tokens."""
        return [(i, t) for i, length in enumerate(self.lengths) for t in range(length)]

    def delta(self, i: int, t: int) -> float:
        """The log-ratio."""
        return float(self.new[i][t] - self.old[i][t])

    def limited(self, i: int, t: int) -> float:
        """The log-ratio within +-20."""
        return min(max(self.delta(i, t), -20.0), 20.0)

    def mean_delta(self, i: int) -> float:
        """Mean log-ratio of a response."""
        return math.fsum(self.delta(i, t) for t in range(self.lengths[i])) / self.lengths[i]


def surrogate(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> tuple[float, float]:
    """PPO's clipped loss and its derivative with respect to the ratio."""
    if advantage > 0 and ratio > 1 + high:
        return -advantage * (1 + high), 0.0
    if advantage < 0 and ratio < 1 - low:
        return -advantage * (1 - low), 0.0
    if advantage < 0 and dual is not None and ratio > dual:
        return -advantage * dual, 0.0
    return -advantage * ratio, -advantage


def cispo(loss: CISPO, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        weight = min(max(math.exp(batch.limited(i, t)), 1 - loss.epsilon_low), 1 + loss.epsilon_high)
        coefficient = -weight * batch.advantage[i][t]
        result[i, t] = (coefficient * batch.new[i][t], coefficient)
    return result


def reinforce(loss: Reinforce, batch: Batch) -> Reference:
    return {(i, t): (-batch.advantage[i][t] * batch.new[i][t], -batch.advantage[i][t]) for i, t in batch.tokens}


def grpo_fix(loss: GRPOFix, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        ratio = math.exp(batch.limited(i, t))
        inside = 1 - loss.epsilon_low <= ratio <= 1 + loss.epsilon_high
        kept = min(max(ratio, 1 - loss.epsilon_low), 1 + loss.epsilon_high)
        result[i, t] = (-batch.advantage[i][t] * kept, -batch.advantage[i][t] * ratio if inside else 0.0)
    return result


def gspo_token(loss: GSPOToken, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        mean = batch.mean_delta(i)
        ratio = math.exp(min(mean, 10.0))
        value, slope = surrogate(ratio, batch.advantage[i][t], loss.epsilon_low, loss.epsilon_high, None)
        result[i, t] = (value, slope * ratio if mean <= 10 else 0.0)
    return result


def gmpo(loss: GMPO, batch: Batch) -> Reference:
    result = {}
    for i, length in enumerate(batch.lengths):
        logs, free = [], []
        for t in range(length):
            value, advantage = batch.limited(i, t), batch.advantage[i][t]
            stopped = (advantage > 0 and value > loss.epsilon_high) or (advantage < 0 and value < -loss.epsilon_low)
            bound = loss.epsilon_high if advantage > 0 else -loss.epsilon_low
            logs.append(bound if stopped else value)
            free.append(not stopped and value == batch.delta(i, t))
        for t in range(length):
            ratio = math.exp(math.fsum(logs) / length)
            response_advantage = math.fsum(batch.advantage[i][:length]) / length
            # Every one of the response's tokens carries the loss, and each of them moves with every free token.
            result[i, t] = (-response_advantage * ratio, -response_advantage * ratio if free[t] else 0.0)
    return result


def future_weight(loss: FIPO, batch: Batch, i: int, t: int) -> float:
    """f_t by the sum over the future, not by the recursion."""
    drift = 0.0
    for k in range(t, batch.lengths[i]):
        if math.exp(batch.limited(i, k)) <= loss.dual_clip:
            drift += 2.0 ** (-(k - t) / loss.half_life) * batch.limited(i, k)
    highest = 10.0 if loss.future_high is None else 1 + loss.future_high
    weight = min(max(math.exp(min(drift, 700.0)), 1 - loss.future_low), highest)
    if batch.advantage[i][t] < 0 and math.exp(batch.limited(i, t)) > loss.safety_ratio:
        return min(max(weight, 0.8), 1.0) if loss.safety_rule == "limit" else 1.0
    return weight


def fipo(loss: FIPO, batch: Batch) -> Reference:
    def bounded(i: int) -> int:
        return sum(
            batch.advantage[i][t] < 0 and math.exp(batch.limited(i, t)) > loss.dual_clip
            for t in range(batch.lengths[i])
        )

    kept = [i for i, length in enumerate(batch.lengths) if length and bounded(i) <= 1]
    if batch.mode == "token-mean":
        correction = sum(batch.lengths) / max(1, sum(batch.lengths[i] for i in kept))
    else:
        correction = sum(length > 0 for length in batch.lengths) / max(1, len(kept))
    result = {}
    for i, t in batch.tokens:
        ratio = math.exp(batch.limited(i, t))
        signal = future_weight(loss, batch, i, t) * batch.advantage[i][t]
        value, slope = surrogate(ratio, signal, loss.epsilon_low, loss.epsilon_high, loss.dual_clip)
        moves = batch.limited(i, t) == batch.delta(i, t)
        result[i, t] = (value * correction, slope * ratio * correction * moves) if i in kept else (0.0, 0.0)
    return result


def dfpo(loss: DFPO, batch: Batch) -> Reference:
    present = [i for i, length in enumerate(batch.lengths) if length]
    weights, advantage = {}, {}
    for i in present:
        total = math.fsum(batch.delta(i, t) for t in range(batch.lengths[i]))
        total = total / batch.lengths[i] if loss.weight == "sequence_mean" else total
        weights[i] = math.exp(min(max(total, -20.0), 20.0))
        advantage[i] = math.fsum(batch.advantage[i][: batch.lengths[i]]) / batch.lengths[i]
    result = {}
    for i in present:
        members = [j for j in present if batch.group[j] == batch.group[i]]
        if loss.transform == "min_replace":
            weight = min(weights[j] for j in members)
        else:
            square = math.fsum(advantage[j] ** 2 for j in members)
            along = math.fsum(advantage[j] * weights[j] for j in members) / square if square else 0.0
            weight = weights[i] - along * advantage[i]
        for t in range(batch.lengths[i]):
            result[i, t] = (-weight * batch.advantage[i][t],) * 2
    return result


def covariances(batch: Batch) -> dict[Token, float]:
    tokens = batch.tokens
    mean_advantage = math.fsum(batch.advantage[i][t] for i, t in tokens) / len(tokens)
    mean_log_prob = math.fsum(batch.new[i][t] for i, t in tokens) / len(tokens)
    return {(i, t): (batch.advantage[i][t] - mean_advantage) * (batch.new[i][t] - mean_log_prob) for i, t in tokens}


def kl_cov(loss: KLCov, batch: Batch) -> Reference:
    ranked = sorted(covariances(batch).items(), key=lambda item: -item[1])
    penalised = {token for token, _ in ranked[: max(1, int(loss.top_fraction * len(ranked)))]}
    result = {}
    for i, t in batch.tokens:
        delta, ratio = batch.delta(i, t), math.exp(batch.limited(i, t))
        value = -batch.advantage[i][t] * ratio
        slope = value if batch.limited(i, t) == delta else 0.0
        if (i, t) in penalised:
            value += loss.kl_coefficient * abs(delta)
            slope += loss.kl_coefficient * math.copysign(1.0, delta) * (delta != 0)
        result[i, t] = (value, slope)
    return result


def clip_cov_with_all_drawn(loss: ClipCov, batch: Batch) -> Reference:
    """With clip_fraction 1 every eligible token is drawn, so that nothing is random."""
    covariance = covariances(batch)
    result = {}
    for i, t in batch.tokens:
        ratio, advantage = math.exp(batch.limited(i, t)), batch.advantage[i][t]
        value, slope = surrogate(ratio, advantage, loss.epsilon_low, loss.epsilon_high, None)
        clipped = (advantage > 0 and ratio > 1 + loss.epsilon_high) or (advantage < 0 and ratio < 1 - loss.epsilon_low)
        drawn = not clipped and loss.covariance_low < covariance[i, t] < loss.covariance_high
        moves = batch.limited(i, t) == batch.delta(i, t)
        result[i, t] = (0.0, 0.0) if drawn else (value, slope * ratio * moves)
    return result


def clipped(loss: Clipped, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        ratio, moves = math.exp(batch.limited(i, t)), batch.limited(i, t) == batch.delta(i, t)
        value, slope = surrogate(ratio, batch.advantage[i][t], loss.epsilon_low, loss.epsilon_high, loss.dual_clip)
        result[i, t] = (value, slope * ratio * moves)
    return result


def sapo(loss: SAPO, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        ratio, advantage = math.exp(batch.limited(i, t)), batch.advantage[i][t]
        tau = loss.tau_positive if advantage > 0 else loss.tau_negative
        exponent = -tau * (ratio - 1)
        gate = 1 / (1 + math.exp(exponent)) if exponent < 700 else 0.0
        moves = batch.limited(i, t) == batch.delta(i, t)
        result[i, t] = (-advantage * 4 / tau * gate, -advantage * 4 * gate * (1 - gate) * ratio * moves)
    return result


def gspo(loss: GSPO, batch: Batch) -> Reference:
    """Every token's loss depends on all log-probabilities of its response."""
    result = {}
    for i, length in enumerate(batch.lengths):
        if not length:
            continue
        mean = batch.mean_delta(i)
        ratio = math.exp(min(mean, 10.0))
        of_tokens = [
            surrogate(ratio, batch.advantage[i][t], loss.epsilon_low, loss.epsilon_high, None) for t in range(length)
        ]
        slope = math.fsum(slope for _, slope in of_tokens) * ratio / length * (mean <= 10.0)
        result |= {(i, t): (value, slope) for t, (value, _) in enumerate(of_tokens)}
    return result


def aggregation_of(loss: PolicyLoss, mode: Mode | None = None) -> Aggregation:
    """The aggregation ``mode``, or else the loss's own."""
    return Aggregation(mode or loss.default_aggregation)


@dataclass(frozen=True)
class Case:
    """A loss, its reference, and the mode that it is aggregated by, or None for the loss's own."""

    loss: Any
    reference: Callable[..., Reference]
    mode: Mode | None = None

    @property
    def aggregation(self) -> Aggregation:
        return aggregation_of(self.loss, self.mode)


_MODES: tuple[Mode, ...] = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
_IN_ALL_MODES: list[tuple[Any, Callable[..., Reference]]] = [(Clipped(), clipped), (SAPO(), sapo), (GSPO(), gspo)]
CASES = [
    *(Case(*of_loss, mode) for of_loss in _IN_ALL_MODES for mode in _MODES),
    Case(Clipped(epsilon_high=0.2, dual_clip=None), clipped),
    Case(CISPO(), cispo),
    Case(CISPO(epsilon_low=0.2), cispo, "seq-mean-token-mean"),
    Case(Reinforce(), reinforce),
    Case(GRPOFix(), grpo_fix),
    Case(GSPOToken(), gspo_token),
    Case(GSPOToken(epsilon_low=0.2, epsilon_high=0.3), gspo_token, "token-mean"),
    Case(GMPO(), gmpo),
    Case(FIPO(), fipo),
    Case(FIPO(half_life=2.0, future_low=0.2, safety_ratio=3.0, dual_clip=3.0), fipo),
    Case(FIPO(future_high=None, safety_rule="reset", safety_ratio=1.5), fipo, "seq-mean-token-mean"),
    Case(DFPO(), dfpo),
    Case(DFPO(weight="product"), dfpo, "seq-mean-token-mean"),
    Case(DFPO(transform="advantage_orthogonal"), dfpo),
    Case(DFPO(transform="advantage_orthogonal", weight="product"), dfpo),
    Case(KLCov(), kl_cov),
    Case(KLCov(top_fraction=0.3, kl_coefficient=0.1), kl_cov),
    Case(ClipCov(clip_fraction=1.0, covariance_low=1e-9), clip_cov_with_all_drawn),
]
