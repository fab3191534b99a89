"""verl's replay buffer for methods that choose the batch: rollouts are held back until the selection is content."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from evals.core.random import generator_for
from rlvr.engines.rollout_metrics import rollout_metrics
from rlvr.engines.verl.metrics import OURS
from rlvr.engines.verl.outcomes import canonical_order, truncations
from rlvr.engines.verl.registered import group_ids
from rlvr.engines.verl.this_run import this_run


class SelectingReplayBuffer(ReplayBuffer):
    """Samples another batch of prompts for as long as the method's selection asks for more.

    Advantages are those of whole groups, hence computed here, before anything is dropped; they travel as tags.
    """

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, float]]:
        """The selected rollouts of ``batch_size`` prompts' size, and metrics of everything that was sampled.

        Raises:
            RuntimeError: no prompt has all of its rollouts, so that there is nothing to sample on for.
        """
        method, run = this_run().method, this_run().run
        if partition_id == "val" or method.selection is None:
            found: tuple[Any, dict[str, float]] = super().sample(global_steps, partition_id, batch_size)
            return found
        rounds = 1
        while True:
            self._wait(partition_id)
            keys, tags = self._complete_groups(partition_id, run.training.samples_per_prompt)
            rewards, groups, lengths, truncated = self._outcomes(partition_id, keys, tags)
            selection = method.selection(
                rewards,
                groups,
                batch_size * run.training.samples_per_prompt,
                method.assignment.keeps_groups,
                rounds,
                generator_for("selection", run.seed, global_steps - 1, rounds),
            )
            if selection is not None:
                break
            assert self.refill_fn is not None
            self.refill_fn(batch_size)
            rounds += 1
        advantages = this_run().advantage.of_rollouts(rewards, groups, lengths)
        kept = selection.indices.tolist()
        dropped = set(range(len(keys))) - set(kept)
        uids = [*self.finished_keys[partition_id], *self.failure_keys[partition_id]]
        stray = [key for key in self.partitions[partition_id] if key not in set(keys)]
        tq.kv_clear(partition_id=partition_id, keys=[*uids, *stray, *(keys[row] for row in dropped)])
        batch = KVBatchMeta(
            partition_id=partition_id,
            keys=[keys[row] for row in kept],
            tags=[{**tags[row], "advantage": float(advantages[row])} for row in kept],
        )
        of_all = rollout_metrics(rewards, groups, lengths, truncated, selection.discarded_fraction)
        metrics = {OURS + name: float(value) for name, value in {**of_all, "sampling_rounds": rounds}.items()}
        return batch, metrics

    def _wait(self, partition_id: str) -> None:
        """Until nothing is being generated any more."""
        while True:
            self._sync_metadata_from_transfer_queue()
            if not self.pending_keys[partition_id] and not self.running_keys[partition_id]:
                return
            time.sleep(self.poll_interval)

    def _complete_groups(self, partition_id: str, size: int) -> tuple[list[str], list[dict[str, Any]]]:
        """Names and tags of the rollouts of prompts that have all of theirs, in an order that timing has no part in."""
        items = self.partitions[partition_id]
        counts = Counter(key.split("_")[0] for key in items)
        keys = [key for key in items if counts[key.split("_")[0]] == size]
        if not keys:
            prompts = len(self.finished_keys[partition_id] | self.failure_keys[partition_id])
            raise RuntimeError(
                f"no prompt of {prompts} has all of its {size} rollouts; their workers' errors are above"
            )
        order = canonical_order(keys, group_ids([key.split("_")[0] for key in keys])).tolist()
        return [keys[row] for row in order], [items[keys[row]] for row in order]

    def _outcomes(
        self, partition_id: str, keys: list[str], tags: list[dict[str, Any]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rewards, prompts, lengths and whether they were cut off, [B], of rollouts."""
        read = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["rm_scores", "extra_fields"])
        rewards = torch.stack([scores.sum() for scores in read["rm_scores"].unbind()]).float()
        groups = group_ids([key.split("_")[0] for key in keys])
        lengths = torch.tensor([tag["response_len"] for tag in tags])
        return rewards, groups, lengths, truncations(read["extra_fields"])
