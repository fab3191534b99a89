"""What every process of verl imports: puts our pieces into verl's registries.

The run comes from the run.json that the environment variable RLVR_RUN names. Nothing of verl is changed.
"""

from __future__ import annotations

from rlvr.engines.verl.launch import NAME_PREFIX, REWARD_MANAGER
from rlvr.engines.verl.this_run import this_run

if this_run().cluster.platform == "cpu":
    # Before anything of verl asks which platform it runs on.
    from rlvr.engines.verl.cpu_platform import use_cpu

    use_cpu()

from verl.experimental.reward_loop.reward_manager import register as register_reward_manager
from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss
from verl.trainer.ppo.v1 import trainer_base

from rlvr.engines.verl import engine  # registers itself with verl's engines
from rlvr.engines.verl.reward import GradingRewardManager
from rlvr.engines.verl.trainer import MethodTrainer

__all__ = ["ADVANTAGE_NAME", "LOSS_NAME", "engine"]

LOSS_NAME = NAME_PREFIX + str(this_run().run.method["loss"]["name"])
ADVANTAGE_NAME = NAME_PREFIX + str(this_run().run.method["advantage"]["name"])

register_policy_loss(LOSS_NAME)(this_run().loss)
register_adv_est(ADVANTAGE_NAME)(this_run().advantage)
register_reward_manager(REWARD_MANAGER)(GradingRewardManager)
# verl keeps trainers in a public table; "sync" is the mode whose semantics its replay buffer ties to that name.
trainer_base.TRAINER_REGISTRY["sync"] = MethodTrainer
