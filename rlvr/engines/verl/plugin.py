"""The module that every process of verl imports: puts the run's components into verl's registries.

The run comes from the run.json that the environment variable RLVR_RUN names. Nothing of verl is changed.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

from verl.experimental.reward_loop.reward_manager import register as register_reward_manager
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.trainer.ppo.v1 import trainer_base

import evals.grading.workers  # noqa: F401 (now, not at the first answer that needs algebra)
from evals.grading import Verdict
from rlvr.engines.verl import engine  # noqa: F401 (it registers itself with verl's engines)
from rlvr.engines.verl.checkpoints import PROBE, keep, record
from rlvr.engines.verl.launch import CHECKPOINTS_VARIABLE, NAME_PREFIX, REWARD_MANAGER
from rlvr.engines.verl.registered import current_run, grade
from rlvr.engines.verl.trainer import MethodTrainer


class GradingRewardManager(RewardManagerBase):
    """The grader that scores evaluation, as verl's reward: 1 for a correct answer, 0 otherwise; or a verifier's reward.

    A response that was cut off at the length limit is graded as truncated. It grades in processes that can be killed,
    with a limit on time. verl's own scorers rely on ``signal.alarm``, which does nothing in a worker's thread (verl
    #5635, #5839).
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_unused: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        self._longest = int(config.data.max_response_length)

    async def run_single(self, data: Any) -> dict[str, Any]:
        item = data[-1]
        responses = item.batch["responses"]
        length = int(item.batch["attention_mask"][-responses.shape[-1] :].sum())
        tokens = responses[:length].tolist()
        truth = str(item.non_tensor_batch["reward_model"]["ground_truth"])
        verdict, truncated = await asyncio.to_thread(self._grade, tokens, truth)
        info = {"acc": float(verdict.correct), "truncated": float(truncated)}
        return {"reward_score": verdict.reward, "reward_extra_info": info}

    def _grade(self, tokens: list[int], truth: str) -> tuple[Verdict, bool]:
        truncated = len(tokens) >= self._longest and tokens[-1] != self.tokenizer.eos_token_id
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return grade(text, truth, truncated), truncated


class RecordShards(CheckpointCallback):
    """Writes the manifest of every state that verl saves, and keeps the states that are asked for."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_unused: Any
    ) -> None:
        """Act after all ranks have written their shards."""
        state = Path(checkpoint_dir)
        shutil.copyfile(state.parent / PROBE, state / PROBE)
        record(state, global_step)
        if str(global_step) in os.environ.get(CHECKPOINTS_VARIABLE, "").split(","):
            keep(state, global_step)


def register_method() -> None:
    """Register this run's loss; a run that is validated after another one replaces its."""
    current = current_run()
    register_policy_loss(NAME_PREFIX + str(current.run.method["loss"]["name"]))(current.loss)


register_method()
register_reward_manager(REWARD_MANAGER)(GradingRewardManager)
# verl keeps trainers in a public table, and ties to their names what a saved state has.
trainer_base.TRAINER_REGISTRY |= {"sync": MethodTrainer}
