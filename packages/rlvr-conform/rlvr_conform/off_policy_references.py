"""Slow float64 references of the losses with trust regions and of those made for samples of another policy."""

import math
from collections.abc import Callable
from typing import Any

from rlvr_conform.loss_references import Batch, Reference, Slope, Token, by_batch, by_token


def total_variation(old: float, new: float) -> float:
    """Compute the distance of a token's probabilities, given as logarithms."""
    return abs(math.exp(new) - math.exp(old))


def binary_kl(old: float, new: float) -> float:
    """Compute the KL divergence of whether a token is drawn, from its log-probabilities."""
    p, q = math.exp(old), math.exp(new)
    return p * (old - new) + (1 - p) * math.log((1 - p + 1e-8) / (1 - q + 1e-8)) if q < 1 else math.nan


def dppo(divergence: Callable[[float, float], float], loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute -A sg[min(r, cap)] log pi of a token within the region of a divergence."""
    old, new, advantage = batch.old[i][t], batch.new[i][t], batch.advantage[i][t]
    far = divergence(old, new)
    outside = (advantage > 0 and new > old and not far <= loss.delta_high) or (
        advantage < 0 and new < old and not far <= loss.delta_low
    )
    weight = 0.0 if outside else min(math.exp(batch.limited(i, t)), loss.ratio_cap)
    return -weight * advantage * new, -weight * advantage


@by_token
def dppo_tv(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute DPPO's loss in the region of the total variation."""
    return dppo(total_variation, loss, batch, i, t)


@by_token
def dppo_kl(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute DPPO's loss in the region of the binary KL divergence."""
    return dppo(binary_kl, loss, batch, i, t)


@by_token
def ipo(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute -r A of the tokens whose probability changed little, plus the squared log-ratio of all."""
    limited, ratio = batch.limited(i, t), math.exp(batch.limited(i, t))
    policy = 0.0 if total_variation(batch.old[i][t], batch.new[i][t]) > loss.epsilon else -batch.advantage[i][t] * ratio
    value = policy + loss.kl_coefficient * limited**2
    return value, (policy + 2 * loss.kl_coefficient * limited) * batch.moves(i, t)


@by_batch
def m2po(loss: Any, batch: Batch) -> Reference:
    """Compute -r A of what is left when tokens of the largest squared log-ratios go.

    Counted, and left out, are tokens that an update has moved as their advantage asks: up where it is positive.
    """
    rest = []
    for i, t in batch.tokens:
        rose, fell = batch.delta(i, t) > 0, batch.delta(i, t) < 0
        if (batch.advantage[i][t] > 0 and rose) or (batch.advantage[i][t] < 0 and fell):
            rest.append((i, t))
    rest.sort(key=lambda token: -(batch.delta(*token) ** 2))
    dropped: set[Token] = set()
    while rest and math.fsum(batch.delta(*token) ** 2 for token in rest) / len(rest) >= loss.tau:
        size = batch.delta(*rest[0]) ** 2
        dropped |= {token for token in rest if batch.delta(*token) ** 2 == size}
        rest = [token for token in rest if token not in dropped]
    result = {}
    for i, t in batch.tokens:
        value = 0.0 if (i, t) in dropped else -batch.advantage[i][t] * math.exp(batch.limited(i, t))
        result[i, t] = (value, value * batch.moves(i, t))
    return result


@by_token
def topr(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute -A log pi, weighted by at most 1 where A < 0."""
    advantage = batch.advantage[i][t]
    total = math.fsum(batch.delta(i, k) for k in range(batch.lengths[i]))
    log_weight = total if loss.level == "sequence" else batch.delta(i, t)
    weight = math.exp(max(min(log_weight, 0.0), -20.0)) if advantage < 0 else 1.0
    return -weight * advantage * batch.new[i][t], -weight * advantage


@by_token
def dro(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute -(A log pi - beta / 2 (log r)^2)."""
    limited, advantage = batch.limited(i, t), batch.advantage[i][t]
    value = -(advantage * batch.new[i][t] - loss.beta / 2 * limited**2)
    return value, -advantage + loss.beta * limited * batch.moves(i, t)


@by_token
def vespo(loss: Any, batch: Batch, i: int, t: int) -> Slope:
    """Compute -W^k exp(lambda (1 - W)) A log pi, W the product of a response's ratios."""
    advantage = batch.advantage[i][t]
    total = math.fsum(batch.limited(i, k) for k in range(batch.lengths[i]))
    ratio = math.exp(min(max(total, math.log(1e-8)), 20.0))
    k, decay = (loss.power_positive, loss.decay_positive)
    if advantage < 0:
        k, decay = (loss.power_negative, loss.decay_negative)
    weight = ratio**k * math.exp(decay * (1 - ratio))
    return -weight * advantage * batch.new[i][t], -weight * advantage
