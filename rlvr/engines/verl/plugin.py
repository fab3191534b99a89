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
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est, register_policy_loss
from verl.trainer.ppo.v1 import trainer_base

from rlvr.engines.verl import engine  # registers itself with verl's engines
from rlvr.engines.verl.reward import GradingRewardManager
from rlvr.engines.verl.trainer import MethodTrainer

__all__ = ["engine", "register_method"]


def register_method() -> None:
    """Register this run's loss and advantage; a run that is validated after another one replaces its."""
    ours = this_run()
    register_policy_loss(NAME_PREFIX + str(ours.run.method["loss"]["name"]))(ours.loss)
    name = NAME_PREFIX + str(ours.run.method["advantage"]["name"])
    ADV_ESTIMATOR_REGISTRY.pop(name, None)  # verl refuses a second one of a name
    register_adv_est(name)(ours.advantage)


register_method()
register_reward_manager(REWARD_MANAGER)(GradingRewardManager)
# verl keeps trainers in a public table; "sync" is the mode whose semantics its replay buffer ties to that name.
trainer_base.TRAINER_REGISTRY["sync"] = MethodTrainer
