"""A training on random rewards: true ones in the metrics, drawn ones in the advantages, anew at each step."""

from collections.abc import Callable

import torch

from evals.core.random import generator_for
from evals.core.run_spec import LocalRun
from evals.grading import GradingPool
from rlvr.engines.local.learner import Learner
from rlvr.methods.advantages import GRPO, RandomRewards
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
