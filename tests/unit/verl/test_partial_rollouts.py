"""Partial rollouts: settings, which prompts a step waits for, weights of tokens that earlier policies drew."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from evals.core.errors import UserError
from evals.core.training_settings import PartialRollouts
from rlvr.engines.verl.metrics import PREFIX, check_rollout_kl, token_metrics
from rlvr.engines.verl.partial_rollouts import importance_weights, rollout_ages
from tests.unit.verl.conftest import make_run


def make_partial(**changes: Any) -> PartialRollouts:
    return PartialRollouts.parse({"batches_ahead": 1, "policies": 3, **changes}, "test")


def test_a_run_without_the_key_is_what_it_was() -> None:
    assert "partial_rollouts" not in make_run().to_json()["training"]
    found = make_run(partial_rollouts={"batches_ahead": 0.5, "policies": 2}).to_json()["training"]["partial_rollouts"]
    assert found == {"batches_ahead": 0.5, "policies": 2}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"policies": 1}, "policies"),
        ({"batches_ahead": 0}, "batches_ahead"),
        ({"batches_ahead": 2.5}, r"policies: is 3; accepted: at least 4, batches_ahead \+ 1"),
        ({"importance_limit": 0.5}, "importance_limit"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(UserError, match=found):
        make_partial(**changes)
    make_partial(batches_ahead=2.5, policies=4, importance_limit=1)


@pytest.mark.parametrize(
    ("batch", "ahead", "policies"), [(1, 1.0, 2), (2, 1.0, 2), (2, 3.0, 4), (3, 1.5, 3), (4, 0.5, 2)]
)
def test_no_prompt_is_trained_by_more_policies_than_allowed(batch: int, ahead: float, policies: int) -> None:
    """A step waits for the oldest prompts that are due, and trains what has ended, the oldest first."""
    partial, oldest = make_partial(batches_ahead=ahead, policies=policies), 0
    for seed in range(20):
        draw, prompts = random.Random(seed), [1] * math.floor(ahead * batch)  # the step of each, oldest first
        for step in range(1, 30):
            prompts += [step] * batch
            ages = [step - asked + 1 for asked in prompts]
            due = partial.due(ages, batch)
            assert due <= batch, "more than a step trains"
            ended = {*range(due), *draw.sample(range(len(prompts)), draw.randint(0, len(prompts)))}
            ended |= set(range(due, batch)) if len(ended) < batch else set()
            chosen = sorted(ended)[:batch]
            oldest = max(oldest, *(ages[place] for place in chosen))
            prompts = [asked for place, asked in enumerate(prompts) if place not in chosen]
    assert oldest == policies, "the bound is reached, and not passed"


def test_a_step_waits_for_no_prompt_before_it_has_to() -> None:
    partial = make_partial(batches_ahead=1, policies=3)
    assert partial.due([1, 1, 1, 1], 2) == 0 and partial.due([2, 2, 1, 1], 2) == 0
    assert partial.due([3, 1, 1, 1], 2) == 1 and partial.due([3, 2, 2, 1], 2) == 1
    assert partial.due([2, 2, 2, 1], 2) == 1, "three have to be trained in this step and the next, two in each"


def test_a_bound_that_is_none_costs_nothing() -> None:
    assert make_partial(policies=10**9).due([2] * 512 + [1] * 512, 512) == 0


def test_a_run_that_could_not_weigh_tokens_or_has_no_prompt_ahead_is_refused() -> None:
    weighed = {"batches_ahead": 1, "policies": 2, "importance_limit": 2}
    make_run(partial_rollouts=weighed)
    make_run(partial_rollouts={"batches_ahead": 1 / 128, "policies": 2}, top_p=0.9)
    with pytest.raises(UserError, match=r"importance_limit: is given with top_p 0\.9"):
        make_run(partial_rollouts=weighed, top_p=0.9)
    with pytest.raises(
        UserError, match=r"batches_ahead: is 0\.005; accepted: at least 1 / prompts_per_step, 0\.0078125"
    ):
        make_run(partial_rollouts={"batches_ahead": 0.005, "policies": 2})


def test_ages_are_counted_from_verl_s_tags() -> None:
    tags = [{"min_global_steps": first, "max_global_steps": last} for first, last in ((4, 4), (2, 3), (3, 4))]
    ages, metrics = rollout_ages(tags, 5)  # which starts from policy 4
    assert ages.tolist() == [0, 2, 1]
    assert metrics == {
        PREFIX + "rollout_age_mean": 1.0,
        PREFIX + "rollout_age_max": 2.0,
        PREFIX + "rollouts_interrupted_fraction": pytest.approx(2 / 3),
    }


def test_the_policies_are_compared_where_one_drew_enough() -> None:
    """Rollouts of older policies do not count, and a few tokens of the current one can say nothing."""
    mask = torch.ones(3, 1000, dtype=torch.bool)
    log_probs, name = -torch.ones(3, 1000), PREFIX + "rollout_kl"
    sampler = log_probs.clone()
    sampler[1] -= 1.0  # an older policy's
    for of_current, found in (([True, False, True], 0.0), ([False, True, False], 0.72), ([False] * 3, None)):
        metrics = token_metrics(log_probs, sampler, -log_probs, mask, torch.tensor(of_current))
        assert metrics.get(name) == (found if found is None else pytest.approx(found, abs=0.01))
        if found:
            with pytest.raises(RuntimeError, match="step 2"):
                check_rollout_kl(metrics, 2, 0.1, 1.0)
        else:
            check_rollout_kl(metrics, 2, 0.1, 1.0)
    mask[2, 500:] = False
    assert name not in token_metrics(log_probs, sampler, -log_probs, mask, torch.tensor([False, False, True]))


def test_weighted_tokens_have_the_expectation_of_the_policy_that_is_trained() -> None:
    """The weights turn the probabilities of the policy that drew into those of the policy that is trained."""
    torch.manual_seed(0)
    drawn_by, trained = (torch.log_softmax(torch.randn(1, 50, dtype=torch.float64), -1) for _ in range(2))
    mask = torch.ones(1, 50, dtype=torch.bool)
    weights, metrics = importance_weights(trained, drawn_by, mask, make_partial(importance_limit=1e6))
    torch.testing.assert_close(drawn_by.exp() * weights, trained.exp(), rtol=1e-6, atol=0)
    assert metrics[PREFIX + "importance_limited_fraction"] == 0.0
    limited, metrics = importance_weights(trained, drawn_by, mask, make_partial(importance_limit=1.5))
    assert float(limited.max()) == 1.5 and metrics[PREFIX + "importance_limited_fraction"] > 0
    assert torch.equal(limited < 1.5, weights < 1.5) and torch.equal(limited[limited < 1.5], weights[weights < 1.5])
    mask[0, 7] = False
    assert importance_weights(trained, drawn_by, mask, make_partial(importance_limit=2))[0][0, 7] == 0
    plain, metrics = importance_weights(trained, drawn_by, mask, make_partial())
    assert torch.equal(plain, mask.float()) and metrics == {}
