"""Tabular policies by hand, and theorem 4.1 of arXiv 2603.22117 over drawn tables."""

import math

import numpy as np
import pytest

from rlvr_claims.claims.tabular_extrapolation import (
    BY_TOKEN,
    NATURAL,
    WHOLE,
    arms_of,
    expected_reward,
    extrapolated,
    extrapolated_by_token,
    gain,
    log_softmax,
    natural_gradient_step,
    policy_gradient_step,
)
from rlvr_claims.policy import PolicySnapshot

HALVES, REWARDS = np.log([0.5, 0.5]), np.array([1.0, 0.0])


def odds(log_policy: np.ndarray) -> float:
    return math.exp(log_policy[0] - log_policy[1])


def test_steps_and_extrapolation_of_two_arms_by_hand() -> None:
    """The natural gradient multiplies the odds by e^step. The plain one moves the logits by 1/2 x (+-1/2) x step."""
    natural = natural_gradient_step(HALVES, REWARDS, 0.6)
    assert odds(natural) == pytest.approx(math.exp(0.6))
    assert expected_reward(natural, REWARDS) == pytest.approx(1 / (1 + math.exp(-0.6)))
    assert odds(policy_gradient_step(HALVES, REWARDS, 0.6)) == pytest.approx(math.exp(0.6 * 0.5))
    assert odds(extrapolated(HALVES, natural, 0.5)) == pytest.approx(math.exp(0.9))
    assert np.exp(natural).sum() == pytest.approx(1.0)


def test_extrapolation_after_natural_gradients_is_training_on() -> None:
    """Steps 4 x 0.25 and gamma 0.5 are steps of 1.5 in all, for any table."""
    generator = np.random.default_rng(1)
    for _ in range(50):
        log_base = log_softmax(generator.normal(size=5))
        rewards = generator.normal(size=5)
        trained = log_base
        for _ in range(4):
            trained = natural_gradient_step(trained, rewards, 0.25)
        expected = natural_gradient_step(log_base, rewards, 1.5)
        np.testing.assert_allclose(extrapolated(log_base, trained, 0.5), expected, atol=1e-12)
        responses = [(number, -1) for number in range(5)]
        # Responses that part at their first token are extrapolated alike either way, and no gain is negative.
        gains = [gain(responses, log_base, rewards, NATURAL, way, 0.5) for way in (WHOLE, BY_TOKEN)]
        assert gains[0] == pytest.approx(gains[1], abs=1e-12) and gains[0] > 0
    assert gain(responses, log_base, np.ones(5), NATURAL, WHOLE, 0.5) == pytest.approx(0.0, abs=1e-12)


def test_extrapolation_token_by_token_by_hand() -> None:
    """Responses aa, ab, b: base 1/4, 1/4, 1/2; trained 1/2, 1/4, 1/4. Conditionals: a 1/2 -> 3/4, aa 1/2 -> 2/3.

    With gamma 1 they become (9/16 / 1/2) : (1/16 / 1/2) = 9 : 1 and (4/9 / 1/2) : (1/9 / 1/2) = 4 : 1.
    """
    responses = [(0, 0), (0, 1), (1,)]
    base, trained = np.log([0.25, 0.25, 0.5]), np.log([0.5, 0.25, 0.25])
    found = np.exp(extrapolated_by_token(responses, base, trained, 1.0))
    np.testing.assert_allclose(found, [0.9 * 0.8, 0.9 * 0.2, 0.1])
    np.testing.assert_allclose(np.exp(extrapolated_by_token(responses, base, trained, 0.0)), np.exp(trained))
    # Whole responses: 1, 1/4 and 1/8 over their sum.
    np.testing.assert_allclose(np.exp(extrapolated(base, trained, 1.0)), np.array([1, 0.25, 0.125]) / 1.375)


def test_the_arms_of_a_prompt_are_its_different_responses(snapshots: list[PolicySnapshot]) -> None:
    snapshot = snapshots[0]
    found = arms_of(snapshot)
    rewards = snapshot.of_rollouts("reward")
    mixed = [group for group in snapshot.groups.unique() if len(rewards[snapshot.groups == group].unique()) > 1]
    assert len(found) == len(mixed) > 0
    for group, (responses, log_policy, own) in zip(mixed, found, strict=True):
        texts = {tuple(snapshot.tokens.responses[i]) for i in (snapshot.groups == group).nonzero()[:, 0].tolist()}
        assert {response[:-1] for response in responses} == texts and len(set(responses)) == len(responses)
        assert np.exp(log_policy).sum() == pytest.approx(1.0)
        assert set(own.tolist()) == {0.0, 1.0}
