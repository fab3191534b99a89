"""Claim 11: past a policy trained by natural gradients, in the direction of its training, rewards are higher still.

arXiv 2603.22117, theorem 4.1, of a tabular softmax policy. A step of natural policy gradient multiplies a response's
probability by exp(step size x reward) and a constant, so to extrapolate is to train on: the expected reward cannot
fall, and stays only where all responses have one reward.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, by_name, select
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import SERIES, Layout, Level, Means, panel
from rlvr_claims.measures import FloatArray
from rlvr_claims.policy import PolicySnapshot

Responses = Sequence[tuple[int, ...]]
"""A different responses, as token ids; none is the beginning of another."""


# The policy is a table of log-probabilities log pi [A] of A responses, so that every expectation is a sum over them.


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


_STEPS, _STEP_SIZE = 4, 0.25
_GAMMAS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_COMPARED_AT = 0.5
NATURAL, PLAIN = "natural gradient", "plain gradient"
WHOLE, BY_TOKEN = "whole responses", "token by token"
_UPDATES = {NATURAL: natural_gradient_step, PLAIN: policy_gradient_step}


class TabularExtrapolation(Claim):
    """Expected reward of the extrapolated policy, by the update it was trained with and what is extrapolated."""

    size = (6.4, 3.6)
    columns = ("unit", "step", "update", "extrapolated", "gamma", "gain", "least")

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        for snapshot in inputs.snapshots():
            arms = arms_of(snapshot)
            for update, way, gamma in ((u, w, g) for u in _UPDATES for w in (WHOLE, BY_TOKEN) for g in _GAMMAS):
                gains = [gain(*prompt, update, way, gamma) for prompt in arms]
                if gains:
                    names = {"update": update, "extrapolated": way, "gamma": gamma}
                    yield {**snapshot.identity, **names, "gain": float(np.mean(gains)), "least": min(gains)}

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        rows = select(series, gamma=_COMPARED_AT)
        least = select(rows, update=NATURAL, extrapolated=WHOLE)["least"]
        return {"least": least, **by_name(rows, "update", "extrapolated", value="gain")}

    def panels(self, findings: Findings) -> Layout:
        marks = []
        for update, colour, marker in ((NATURAL, SERIES[0], "o"), (PLAIN, SERIES[1], "s")):
            for way, line in ((WHOLE, "-"), (BY_TOKEN, ":")):
                rows = select(findings.series, update=update, extrapolated=way)
                marks.append(Means(rows, "gamma", "gain", colour, f"{update}, {way}", marker, line))
        return [[panel("Past the trained policy", *marks, Level(0), x="gamma", y="gain in expected reward")]]


def arms_of(snapshot: PolicySnapshot) -> list[tuple[Responses, FloatArray, FloatArray]]:
    """List for each prompt with both rewards its different responses, their log-probabilities [A] and rewards [A]."""
    log_probs = np.zeros(len(snapshot.groups))
    np.add.at(log_probs, snapshot.rollout_of.numpy(), snapshot.rows["old_log_prob"].to_numpy(dtype=np.float64))
    rewards = snapshot.of_rollouts("reward").numpy()
    of_prompts: list[tuple[Responses, FloatArray, FloatArray]] = []
    for group in snapshot.groups.unique().tolist():
        # Equal responses are one arm; -1 ends each, so that none is the beginning of another.
        arms = {
            (*snapshot.tokens.responses[rollout], -1): rollout
            for rollout in (snapshot.groups == group).nonzero()[:, 0].tolist()
        }
        rollouts = list(arms.values())
        if np.ptp(rewards[rollouts]) > 0:
            of_prompts.append((list(arms), log_softmax(log_probs[rollouts]), rewards[rollouts]))
    return of_prompts


def gain(responses: Responses, log_base: FloatArray, rewards: FloatArray, update: str, way: str, gamma: float) -> float:
    """Return the expected reward of the extrapolated policy less that of the trained one."""
    log_trained = log_base
    for _ in range(_STEPS):
        log_trained = _UPDATES[update](log_trained, rewards, _STEP_SIZE)
    if way == WHOLE:
        pushed = extrapolated(log_base, log_trained, gamma)
    else:
        pushed = extrapolated_by_token(responses, log_base, log_trained, gamma)
    return expected_reward(pushed, rewards) - expected_reward(log_trained, rewards)
