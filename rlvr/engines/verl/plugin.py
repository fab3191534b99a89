"""The module that every process of verl imports: puts the run's components into verl's registries.

The run comes from the run.json that the environment variable RLVR_RUN names. Nothing of verl is changed.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from verl.experimental.reward_loop.reward_manager import register as register_reward_manager
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1 import trainer_base

import evals.grading.workers  # noqa: F401 (now, not at the first answer that needs algebra)
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.verl import engine  # noqa: F401 (it registers itself with verl's engines)
from rlvr.engines.verl.checkpoints import record, remove_old
from rlvr.engines.verl.launch import CHECKPOINTS_VARIABLE, REWARD_MANAGER
from rlvr.engines.verl.registered import current_run, grade
from rlvr.engines.verl.trainer import MethodTrainer


class GradingRewardManager(RewardManagerBase):
    """The grader that scores evaluation, as verl's reward: 1 for a correct answer, 0 otherwise; or a verifier's reward.

    It grades in processes that can be killed, with a limit on time. verl's own scorers rely on ``signal.alarm``, which
    does nothing in a worker's thread (verl #5635, #5839).
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_unused: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        self._longest = int(config.data.max_response_length)
        self._checkpoint = Checkpoint(Path(config.actor_rollout_ref.model.path))

    async def run_single(self, data: Any) -> dict[str, Any]:
        item = data[-1]
        prompt, response, mask = (item.batch[name] for name in ("prompts", "responses", "attention_mask"))
        tokens = response[: int(mask[-len(response) :].sum())].tolist()
        asked = prompt[mask[: len(prompt)].bool()].tolist()
        truth = str(item.non_tensor_batch["reward_model"]["ground_truth"])
        finished = len(tokens) < self._longest or tokens[-1] in self._checkpoint.end_tokens
        verdict = await asyncio.to_thread(grade, self._checkpoint, asked, tokens, finished, truth)
        info = {"acc": float(verdict.correct), "truncated": float(not finished), "reason": verdict.reason.value}
        return {"reward_score": verdict.reward, "reward_extra_info": info}


class RecordShards(CheckpointCallback):
    """Writes the manifest of every state that verl saves, and removes old states."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_unused: Any
    ) -> None:
        """Act after all ranks have written their shards."""
        state = Path(checkpoint_dir)
        record(state, global_step)
        wanted = [int(step) for step in os.environ.get(CHECKPOINTS_VARIABLE, "").split(",") if step]
        remove_old(state.parent, current_run().cluster.checkpoints_kept, wanted)


register_reward_manager(REWARD_MANAGER)(GradingRewardManager)
# verl keeps trainers in a public table, and ties to their names what a saved state has.
trainer_base.TRAINER_REGISTRY |= {"sync": MethodTrainer}
