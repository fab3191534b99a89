"""The paper's loss of a mini-batch, and its gradient, from the slow references."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from rlvr_conform import off_policy_references
from rlvr_conform.loss_references import REFERENCES, Batch, Mode, Rows, Token

__all__ = ["REFERENCES", "Objective", "off_policy_references"]


@dataclass(frozen=True)
class Objective:
    """A paper's objective: a loss, how it is aggregated, and what is added to it or multiplied with it.

    Attributes:
        loss: the name of its reference.
        numbers: the loss's hyper-parameters.
        constant: the tokens that seq-mean-token-sum-norm divides by.
        kl: the estimator of the divergence from the reference policy, and its coefficient, of a term that is added.
        cap: of the truncated importance weight min(pi_old / mu, cap) of each token, mu the sampler's probability.
        undivided: the numbers of the loss that a trainer holds to advantages divided by the mini-batch's tokens.
    """

    loss: str
    numbers: Mapping[str, Any]
    mode: Mode
    constant: float | None = None
    kl: tuple[str, float] | None = None
    cap: float | None = None
    undivided: Collection[str] = ()

    def gradient(self, batch: Batch) -> Rows:
        """Compute the gradient by the log-probabilities, 0 at padding; rows as long as those of the batch."""
        gradient = [[0.0] * len(row) for row in batch.new]
        for (i, t), (_, slope) in self._of_tokens(batch):
            gradient[i][t] = slope
        return gradient

    def values(self, batch: Batch) -> list[float]:
        """Compute each response's part of the loss."""
        values = [0.0] * len(batch.lengths)
        for (i, _), (loss, _) in self._of_tokens(batch):
            values[i] += loss
        return values

    def _of_tokens(self, batch: Batch) -> Iterator[tuple[Token, tuple[float, float]]]:
        """List each token's part of the loss, and of the gradient."""
        batch = replace(batch, mode=self.mode)
        shares = batch.shares(self.constant)
        numbers = SimpleNamespace(**self.numbers)
        for name in self.undivided:
            setattr(numbers, name, self.numbers[name] * sum(batch.lengths))
        for (i, t), (loss, slope) in REFERENCES[self.loss](numbers, batch).items():
            if self.cap is not None:
                weight = min(math.exp(batch.old[i][t] - batch.sampler[i][t]), self.cap)
                loss, slope = loss * weight, slope * weight
            if self.kl is not None:
                values = (batch.new[i][t], batch.old[i][t], batch.reference[i][t])
                kl, moves = divergence(self.kl[0], *values)
                loss, slope = loss + self.kl[1] * kl, slope + self.kl[1] * moves
            yield (i, t), (shares[i] * loss, shares[i] * slope)


def divergence(estimator: str, new: float, old: float, reference: float) -> tuple[float, float]:
    """Estimate KL(pi || reference) of one token, and its derivative by log pi; log-ratios within +-20.

    ``scored_k3`` is k3 pi / sg pi: the gradient of unbiased_k3 as if the tokens were the present policy's.
    """
    d = min(max(new - reference, -20.0), 20.0)
    moves = float(abs(new - reference) <= 20)
    r, r_moves = math.exp(min(max(new - old, -20.0), 20.0)), float(abs(new - old) <= 20)
    k3, slope = math.exp(-d) - (-d) - 1, (1 - math.exp(-d)) * moves
    return {
        "k1": (d, moves),
        "k2": (d * d / 2, d * moves),
        "k3": (k3, slope),
        "unbiased_k3": (r * k3, r * slope + r * k3 * r_moves),
        "scored_k3": (k3, slope + k3),
    }[estimator]


def advantages(name: str, rewards: list[float], groups: list[int], epsilon: float, less: int) -> list[float]:
    """Compute the advantages of rollouts: grpo, dr_grpo or rloo.

    ``epsilon`` is added to the standard deviation, whose denominator is the group's size less ``less``.
    """
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [other for other, of in zip(rewards, groups, strict=True) if of == group]
        mean = math.fsum(members) / len(members)
        deviation = math.sqrt(math.fsum((other - mean) ** 2 for other in members) / (len(members) - less))
        scale = {"grpo": deviation + epsilon, "dr_grpo": 1.0, "rloo": (len(members) - 1) / len(members)}[name]
        result.append(0.0 if len(set(members)) == 1 else (reward - mean) / scale)
    return result
