"""Trainings on random rewards and on majority votes: true rewards in the metrics, others in the advantages."""

from collections.abc import Callable

import pytest
import torch

from evals.core.random import generator_for
from evals.core.run_spec import LocalRun
from evals.grading import GradingPool
from rlvr.engines.local.learner import Learner
from rlvr.methods.advantages import GRPO, FlippedRewards, MajorityVote, RandomRewards
from rlvr.methods.method import compose
from rlvr.study.catalogue import load_catalogue, resolve_method


def test_a_training_draws_its_rewards_anew_at_each_step(make_run: Callable[..., LocalRun]) -> None:
    entry = resolve_method("dapo_random_rewards", {}, load_catalogue(), "test")
    run = make_run({"prompts_per_step": 8, "samples_per_prompt": 8}, method=entry, method_name="dapo_random_rewards")
    learner, seen = Learner(run, "cpu"), list[torch.Tensor]()
    with GradingPool(workers=1) as pool:
        for step in range(2):
            prepared = learner.prepare(pool)
            rollouts = prepared.rollouts
            drawn = RandomRewards()(prepared.rewards, rollouts.lengths, 16, generator_for("rewards", run.seed, step))
            expected = GRPO()(drawn, rollouts.group_ids, rollouts.lengths)
            torch.testing.assert_close(prepared.batch.advantages, expected)
            assert abs(prepared.metrics["reward_mean"] - float(prepared.rewards.mean())) < 1e-6
            assert not torch.equal(drawn, prepared.rewards)
            seen.append(drawn)
            learner.update(prepared)
    assert not torch.equal(*seen)


def test_a_majority_is_that_of_the_last_boxes_of_a_group() -> None:
    said = [
        "so \\boxed{1} or \\boxed{3}",
        "\\boxed{ 3}",
        "\\boxed{1}",
        "none",
        "\\boxed{3}",
        "\\boxed{7}",
        "\\boxed{8}",
        "no",
    ]
    groups = torch.tensor([5, 5, 5, 5, 2, 2, 2, 9])
    shaped = MajorityVote().of_texts(torch.zeros(8), groups, said)
    assert shaped.tolist() == [1, 1, 0, 0, 1, 0, 0, 0], "of 3, 7 and 8, one each, the first; nothing where none is said"


def test_a_training_on_majority_votes_takes_them_from_the_texts(make_run: Callable[..., LocalRun]) -> None:
    changes = {"reward_shaping": {"name": "majority_vote"}}
    entry = resolve_method("dapo", changes, load_catalogue(), "test")
    learner = Learner(make_run({"prompts_per_step": 8, "samples_per_prompt": 8}, method=entry), "cpu")
    with GradingPool(workers=1) as pool:
        prepared = learner.prepare(pool)
    rollouts, texts = prepared.rollouts, [case.prediction for case in prepared.rollouts.cases]
    votes = MajorityVote().of_texts(prepared.rewards, rollouts.group_ids, texts)
    assert not torch.equal(votes, prepared.rewards) and 0 < float(votes.mean()) < 1
    torch.testing.assert_close(prepared.batch.advantages, GRPO()(votes, rollouts.group_ids, rollouts.lengths))
    of_rollouts = prepared.rewards, rollouts.group_ids, rollouts.lengths, 16
    counted = rollouts.group_ids != 3
    left = compose(entry, "dapo", 16).advantages(*of_rollouts, counted, texts=texts)
    torch.testing.assert_close(left[counted], prepared.batch.advantages[counted])
    with pytest.raises(ValueError, match="texts"):
        compose(entry, "dapo", 16).advantages(*of_rollouts)


def test_flipped_rewards_are_flipped_as_often_as_asked() -> None:
    rewards = torch.tensor([0.0, 1.0]).repeat(5000)
    flipped = FlippedRewards(0.4)(rewards, rewards, 1, generator_for("rewards", 1, 0))
    assert float((flipped != rewards).double().mean()) == pytest.approx(0.4, abs=0.02)
    assert set(flipped.tolist()) == {0.0, 1.0}
