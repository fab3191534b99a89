"""Slow float64 references of losses: plain loops over plain numbers, written from the equations.

A reference returns, for every real token, its loss and the derivative of the mini-batch's summed token losses with
respect to its log-probability. ``loss`` is whatever has the loss's hyper-parameters as attributes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Token = tuple[int, int]
Slope = tuple[float, float]
"""A token's loss, and the derivative of the summed token losses by its log-probability."""
Reference = dict[Token, Slope]
Rows = list[list[float]]
Mode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"]
"""The ways in which token losses become the loss of a mini-batch."""


@dataclass(frozen=True)
class Batch:
    """A mini-batch as plain numbers, rows of one response each; what stands beyond a response's length is not read."""

    lengths: list[int]
    new: Rows  # log-probabilities under the present policy
    old: Rows  # under the policy before the update
    advantage: Rows
    group: list[int]  # the prompt of each response
    mode: Mode = "token-mean"  # by which token losses are aggregated
    sampler: Rows = field(default_factory=list)  # log-probabilities under what drew the tokens
    reference: Rows = field(default_factory=list)  # and under the reference policy

    @classmethod
    def of(cls, inputs: Any, mode: Mode = "token-mean") -> "Batch":
        """Read tensors: response_mask, log_probs, old_log_probs and advantages [B, T], group_ids [B]."""
        lengths = [int(row.sum()) for row in inputs.response_mask]
        new, old, advantage = (
            values.tolist() for values in (inputs.log_probs, inputs.old_log_probs, inputs.advantages)
        )
        return cls(lengths, new, old, advantage, inputs.group_ids.tolist(), mode)

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

    def moves(self, i: int, t: int) -> bool:
        """Tell whether the limit of the log-ratio leaves its gradient."""
        return self.limited(i, t) == self.delta(i, t)

    def mean_delta(self, i: int) -> float:
        """The mean log-ratio of a response."""
        return math.fsum(self.delta(i, t) for t in range(self.lengths[i])) / self.lengths[i]

    def shares(self, constant: float | None = None) -> list[float]:
        """The factor of each response's token losses in the loss of the mini-batch, by ``mode``."""
        sequences = sum(length > 0 for length in self.lengths)
        if self.mode == "token-mean":
            return [1 / sum(self.lengths)] * len(self.lengths)
        if self.mode == "seq-mean-token-mean":
            return [1 / (sequences * length) if length else 0.0 for length in self.lengths]
        if self.mode == "prompt-mean":
            tokens = {group: 0 for group in self.group}
            for group, length in zip(self.group, self.lengths, strict=True):
                tokens[group] += length
            prompts = sum(count > 0 for count in tokens.values())
            return [1 / (prompts * max(1, tokens[group])) for group in self.group]
        return [1 / (sequences * (constant or 1.0))] * len(self.lengths)


REFERENCES: dict[str, Callable[[Any, Batch], Reference]] = {}
"""The reference of each loss, by its name: that of the function."""


def by_batch(reference: Callable[[Any, Batch], Reference]) -> Callable[[Any, Batch], Reference]:
    """Declare the reference of a loss."""
    REFERENCES[reference.__name__] = reference
    return reference


def by_token(of_token: Callable[[Any, Batch, int, int], Slope]) -> Callable[[Any, Batch, int, int], Slope]:
    """Declare the reference of a loss whose tokens are computed one by one."""
    REFERENCES[of_token.__name__] = lambda loss, batch: {(i, t): of_token(loss, batch, i, t) for i, t in batch.tokens}
    return of_token


def surrogate(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> tuple[float, float]:
    """Compute PPO's clipped loss and its derivative with respect to the ratio."""
    if advantage > 0 and ratio > 1 + high:
        return -advantage * (1 + high), 0.0
    if advantage < 0 and ratio < 1 - low:
        return -advantage * (1 - low), 0.0
    if advantage < 0 and dual is not None and ratio > dual:
        return -advantage * dual, 0.0
    return -advantage * ratio, -advantage


@by_token
def cispo(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute -sg[clip(r)] A log pi: the weight has no gradient."""
    weight = min(max(math.exp(batch.limited(i, t)), 1 - loss.epsilon_low), 1 + loss.epsilon_high)
    coefficient = -weight * batch.advantage[i][t]
    return coefficient * batch.new[i][t], coefficient


@by_token
def reinforce(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute -A log pi."""
    return -batch.advantage[i][t] * batch.new[i][t], -batch.advantage[i][t]


@by_token
def grpo_fix(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute -clip(r) A: no gradient outside the range, on either side."""
    ratio = math.exp(batch.limited(i, t))
    inside = 1 - loss.epsilon_low <= ratio <= 1 + loss.epsilon_high
    kept = min(max(ratio, 1 - loss.epsilon_low), 1 + loss.epsilon_high)
    return -batch.advantage[i][t] * kept, -batch.advantage[i][t] * ratio if inside else 0.0


@by_token
def gspo_token(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute PPO's loss of the response's mean ratio, whose gradient passes through each token alone."""
    mean = batch.mean_delta(i)
    ratio = math.exp(min(mean, 10.0))
    value, slope = surrogate(ratio, batch.advantage[i][t], loss.epsilon_low, loss.epsilon_high, None)
    return value, slope * ratio if mean <= 10 else 0.0


@by_batch
def gmpo(loss: Any, batch: Batch) -> Reference:
    """Compute -A times the geometric mean of clipped ratios."""
    result = {}
    for i, length in enumerate(batch.lengths):
        logs, free = [], []
        for t in range(length):
            value, advantage = batch.limited(i, t), batch.advantage[i][t]
            stopped = (advantage > 0 and value > loss.epsilon_high) or (advantage < 0 and value < -loss.epsilon_low)
            bound = loss.epsilon_high if advantage > 0 else -loss.epsilon_low
            logs.append(bound if stopped else value)
            free.append(not stopped and batch.moves(i, t))
        for t in range(length):
            ratio = math.exp(math.fsum(logs) / length)
            response_advantage = math.fsum(batch.advantage[i][:length]) / length
            # Every one of the response's tokens carries the loss, and each of them moves with every free token.
            result[i, t] = (-response_advantage * ratio, -response_advantage * ratio if free[t] else 0.0)
    return result


def future_weight(loss: Any, batch: Batch, i: int, t: int) -> float:
    """Compute f_t by the sum over the future, not by the recursion."""
    drift = 0.0
    for k in range(t, batch.lengths[i]):
        if math.exp(batch.limited(i, k)) <= loss.dual_clip:
            drift += 2.0 ** (-(k - t) / loss.half_life) * batch.limited(i, k)
    highest = 10.0 if loss.future_high is None else 1 + loss.future_high
    weight: float = min(max(math.exp(min(drift, 700.0)), 1 - loss.future_low), highest)
    if batch.advantage[i][t] < 0 and math.exp(batch.limited(i, t)) > loss.safety_ratio:
        return min(max(weight, 0.8), 1.0) if loss.safety_rule == "limit" else 1.0
    return weight


@by_batch
def fipo(loss: Any, batch: Batch) -> Reference:
    """Compute DAPO's loss on f_t A; responses with more than one token over the dual clip are dropped."""

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
        moves = batch.moves(i, t)
        result[i, t] = (value * correction, slope * ratio * correction * moves) if i in kept else (0.0, 0.0)
    return result


@by_batch
def dfpo(loss: Any, batch: Batch) -> Reference:
    """Compute -w A of the group's transformed weights."""
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
    """Compute (A - mean A)(log pi - mean log pi) of every token."""
    tokens = batch.tokens
    mean_advantage = math.fsum(batch.advantage[i][t] for i, t in tokens) / len(tokens)
    mean_log_prob = math.fsum(batch.new[i][t] for i, t in tokens) / len(tokens)
    return {(i, t): (batch.advantage[i][t] - mean_advantage) * (batch.new[i][t] - mean_log_prob) for i, t in tokens}


@by_batch
def kl_cov(loss: Any, batch: Batch) -> Reference:
    """Compute -r A, plus a penalty of the tokens with the largest covariances."""
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


@by_batch
def clip_cov(loss: Any, batch: Batch) -> Reference:
    """Compute Clip-Cov with clip_fraction 1: every eligible token is drawn, so that nothing is random."""
    covariance = covariances(batch)
    result = {}
    for i, t in batch.tokens:
        ratio, advantage = math.exp(batch.limited(i, t)), batch.advantage[i][t]
        value, slope = surrogate(ratio, advantage, loss.epsilon_low, loss.epsilon_high, None)
        clipped = (advantage > 0 and ratio > 1 + loss.epsilon_high) or (advantage < 0 and ratio < 1 - loss.epsilon_low)
        drawn = not clipped and loss.covariance_low < covariance[i, t] < loss.covariance_high
        moves = batch.moves(i, t)
        result[i, t] = (0.0, 0.0) if drawn else (value, slope * ratio * moves)
    return result


@by_token
def clipped(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute PPO's clipped loss of each token's own ratio."""
    ratio, moves = math.exp(batch.limited(i, t)), batch.moves(i, t)
    value, slope = surrogate(ratio, batch.advantage[i][t], loss.epsilon_low, loss.epsilon_high, loss.dual_clip)
    return value, slope * ratio * moves


@by_token
def sapo(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute -(4 / tau) sigmoid(tau (r - 1)) A."""
    ratio, advantage = math.exp(batch.limited(i, t)), batch.advantage[i][t]
    tau = loss.tau_positive if advantage > 0 else loss.tau_negative
    exponent = -tau * (ratio - 1)
    gate = 1 / (1 + math.exp(exponent)) if exponent < 700 else 0.0
    moves = batch.moves(i, t)
    return -advantage * 4 / tau * gate, -advantage * 4 * gate * (1 - gate) * ratio * moves


@by_batch
def gspo(loss: Any, batch: Batch) -> Reference:
    """Compute PPO's loss of the mean ratio; every token's depends on all log-probabilities of its response."""
    result: Reference = {}
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
