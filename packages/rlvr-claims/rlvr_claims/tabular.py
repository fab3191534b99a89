"""A tabular policy over a few responses to one prompt: exact updates, extrapolation and expected reward.

The policy is a table of log-probabilities log pi [A] of A responses, so that every expectation is a sum over them.
"""

from collections.abc import Sequence

import numpy as np

from rlvr_claims.measures import FloatArray

Responses = Sequence[tuple[int, ...]]
"""A different responses, as token ids; none is the beginning of another."""


def log_softmax(values: FloatArray) -> FloatArray:
    """Return values [A] less the logarithm of the sum of their exponentials."""
    return np.asarray(values - np.logaddexp.reduce(values))


def expected_reward(log_policy: FloatArray, rewards: FloatArray) -> float:
    """Return sum_y pi(y) R(y) of [A] and [A]."""
    return float(np.exp(log_policy) @ rewards)


def natural_gradient_step(log_policy: FloatArray, rewards: FloatArray, step_size: float) -> FloatArray:
    """Return log pi [A] after a step of natural policy gradient on the logits: they move by the advantages."""
    return log_softmax(log_policy + step_size * (rewards - expected_reward(log_policy, rewards)))


def policy_gradient_step(log_policy: FloatArray, rewards: FloatArray, step_size: float) -> FloatArray:
    """Return log pi [A] after a step of plain policy gradient: the logits move by probability times advantage."""
    advantages = rewards - expected_reward(log_policy, rewards)
    return log_softmax(log_policy + step_size * np.exp(log_policy) * advantages)


def extrapolated(log_base: FloatArray, log_trained: FloatArray, gamma: float) -> FloatArray:
    """Return log pi [A] of the policy proportional to trained^(1 + gamma) / base^gamma, of whole responses."""
    return log_softmax((1.0 + gamma) * log_trained - gamma * log_base)


def extrapolated_by_token(
    responses: Responses, log_base: FloatArray, log_trained: FloatArray, gamma: float
) -> FloatArray:
    """Return log pi [A] of the policy that extrapolates each next token's distribution, as decoding does.

    The conditional probability of a token is the mass of the responses that go on with it over that of those that
    share what is before it.
    """
    shared: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    masses: dict[tuple[int, ...], FloatArray] = {}  # beginning -> log mass under base and trained policy
    both = np.stack([log_base, log_trained])
    for number, response in enumerate(responses):
        for length in range(len(response) + 1):
            beginning = response[:length]
            masses[beginning] = np.logaddexp(masses.get(beginning, np.full(2, -np.inf)), both[:, number])
            if length:
                shared.setdefault(response[: length - 1], set()).add(beginning)
    pushed: dict[tuple[int, ...], float] = {}
    for before, nexts in shared.items():
        ordered = sorted(nexts)
        base, trained = np.array([masses[arm] - masses[before] for arm in ordered]).T
        pushed |= dict(zip(ordered, extrapolated(base, trained, gamma).tolist(), strict=True))
    return np.array([sum(pushed[arm[: length + 1]] for length in range(len(arm))) for arm in responses])
