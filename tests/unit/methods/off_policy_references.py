"""Slow float64 references of the losses with trust regions and of those made for samples of another policy."""

import math

from rlvr.methods.losses.off_policy import DRO, TOPR, VESPO
from rlvr.methods.losses.trust_regions import DPPOKL, DPPOTV, IPO, M2PO
from tests.unit.methods.loss_references import Batch, Case, Reference, Token


def probabilities(batch: Batch, i: int, t: int) -> tuple[float, float]:
    """p_old and p; some drawn log-probabilities are above 0."""
    return math.exp(batch.old[i][t]), math.exp(batch.new[i][t])


def moves(batch: Batch, i: int, t: int) -> bool:
    """Whether the limit of the log-ratio leaves its gradient."""
    return batch.limited(i, t) == batch.delta(i, t)


def dppo(loss: DPPOTV | DPPOKL, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        old, new = probabilities(batch, i, t)
        advantage = batch.advantage[i][t]
        if isinstance(loss, DPPOTV):
            divergence = abs(new - old)
        else:
            divergence = old * (batch.old[i][t] - batch.new[i][t])
            divergence += (1 - old) * math.log((1 - old + 1e-8) / (1 - new + 1e-8)) if new < 1 else math.nan
        outside = (advantage > 0 and new > old and not divergence <= loss.delta_high) or (
            advantage < 0 and new < old and not divergence <= loss.delta_low
        )
        weight = 0.0 if outside else min(math.exp(batch.limited(i, t)), loss.ratio_cap)
        result[i, t] = (-weight * advantage * batch.new[i][t], -weight * advantage)
    return result


def ipo(loss: IPO, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        old, new = probabilities(batch, i, t)
        limited, ratio = batch.limited(i, t), math.exp(batch.limited(i, t))
        policy = 0.0 if abs(new - old) > loss.epsilon else -batch.advantage[i][t] * ratio
        value = policy + loss.kl_coefficient * limited**2
        result[i, t] = (value, (policy + 2 * loss.kl_coefficient * limited) * moves(batch, i, t))
    return result


def m2po(loss: M2PO, batch: Batch) -> Reference:
    rest = sorted(batch.tokens, key=lambda token: -(batch.delta(*token) ** 2))
    dropped: set[Token] = set()
    while rest and math.fsum(batch.delta(*token) ** 2 for token in rest) / len(rest) >= loss.tau:
        size = batch.delta(*rest[0]) ** 2
        dropped |= {token for token in rest if batch.delta(*token) ** 2 == size}
        rest = [token for token in rest if token not in dropped]
    result = {}
    for i, t in batch.tokens:
        value = 0.0 if (i, t) in dropped else -batch.advantage[i][t] * math.exp(batch.limited(i, t))
        result[i, t] = (value, value * moves(batch, i, t))
    return result


def topr(loss: TOPR, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        advantage = batch.advantage[i][t]
        total = math.fsum(batch.delta(i, k) for k in range(batch.lengths[i]))
        log_weight = total if loss.level == "sequence" else batch.delta(i, t)
        weight = math.exp(max(min(log_weight, 0.0), -20.0)) if advantage < 0 else 1.0
        result[i, t] = (-weight * advantage * batch.new[i][t], -weight * advantage)
    return result


def dro(loss: DRO, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        limited, advantage = batch.limited(i, t), batch.advantage[i][t]
        value = -(advantage * batch.new[i][t] - loss.beta / 2 * limited**2)
        result[i, t] = (value, -advantage + loss.beta * limited * moves(batch, i, t))
    return result


def vespo(loss: VESPO, batch: Batch) -> Reference:
    result = {}
    for i, t in batch.tokens:
        advantage = batch.advantage[i][t]
        total = math.fsum(batch.limited(i, k) for k in range(batch.lengths[i]))
        ratio = math.exp(min(max(total, math.log(1e-8)), 20.0))
        k, decay = (loss.power_positive, loss.decay_positive)
        if advantage < 0:
            k, decay = (loss.power_negative, loss.decay_negative)
        weight = ratio**k * math.exp(decay * (1 - ratio))
        result[i, t] = (-weight * advantage * batch.new[i][t], -weight * advantage)
    return result


CASES = [
    Case(DPPOTV(), dppo),
    Case(DPPOTV(delta_low=0.01, delta_high=0.02, ratio_cap=1.5), dppo, "seq-mean-token-mean"),
    Case(DPPOKL(), dppo),
    Case(DPPOKL(delta_low=0.001, delta_high=0.002, ratio_cap=1.5), dppo),
    Case(IPO(), ipo),
    Case(IPO(epsilon=0.02, kl_coefficient=0.3), ipo, "seq-mean-token-mean"),
    Case(M2PO(), m2po),
    Case(M2PO(tau=1.0), m2po),
    Case(TOPR(), topr),
    Case(TOPR(level="token"), topr, "token-mean"),
    Case(DRO(), dro),
    Case(DRO(beta=2.0), dro),
    Case(VESPO(), vespo),
    Case(VESPO(power_positive=1.0, decay_positive=0.5, power_negative=0.5, decay_negative=4.0), vespo),
]
