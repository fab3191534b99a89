"""verl's replay buffer, which makes the batches that the method asks for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from evals.core.random import generator_for
from evals.grading import Reason, Verdict
from rlvr.engines.unjudged import count_unjudged, require_some, training_rewards
from rlvr.engines.verl.metrics import PREFIX
from rlvr.engines.verl.registered import current_run, group_ids, prompt_of, rollout_number
from rlvr.methods.rollout_batch import rollout_metrics
from rlvr.methods.selections import GroupFilter

LARGEST_FAILED_SHARE = 0.1
"""The part of the prompts that a step samples that may lose a rollout; one prompt may, whatever its part."""


class MethodReplayBuffer(ReplayBuffer):
    """Gives the trainer whole batches: prompts that lost a rollout are replaced, and the method's selection is content.

    A prompt is replaced as soon as it is known to be of no use, while others are still sampled. Which prompts are
    trained on follows from the order in which they were asked for and from rewards, not from which of them ended first.
    Advantages are those of whole groups, hence computed here, before anything is dropped; they travel as tags.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._judged: dict[str, bool] = {}  # prompt of this step -> whether the selection keeps it

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, float]]:
        """The selected rollouts of ``batch_size`` prompts' size, and metrics of everything that the step judged."""
        if partition_id == "val":
            batch_of_verl: tuple[Any, dict[str, float]] = super().sample(global_steps, partition_id, batch_size)
            return batch_of_verl
        method, run = current_run().method, current_run().run
        size, step = batch_size * run.training.samples_per_prompt, global_steps - 1
        self._judged.clear()
        rounds = method.selection.max_rounds if isinstance(method.selection, GroupFilter) else 1
        while True:
            keys, tags, failed = self._whole_groups(partition_id, batch_size, rounds)
            outcomes = Outcomes.of(partition_id, keys, tags)
            if method.selection is None:
                chosen = set(keys[:size])
                break
            selection = method.select(outcomes.rewards, outcomes.groups, size, rounds, run.seed, step)
            if selection is not None:
                chosen = {keys[row] for row in selection.tolist()}
                break
            rounds += 1
        longest, generator = run.training.max_new_tokens, generator_for("rewards", run.seed, step)
        advantages = method.advantages(
            outcomes.rewards, outcomes.groups, outcomes.lengths, longest, outcomes.counted, generator=generator
        )
        rest = [key for key in self.partitions[partition_id] if key not in chosen]
        tq.kv_clear(partition_id=partition_id, keys=[*self.prompt_global_steps[partition_id], *rest])
        kept = [row for row, key in enumerate(keys) if key in chosen]
        judged = {"reward": outcomes.rewards, "counted": outcomes.counted, "advantage": advantages}
        batch = KVBatchMeta(
            partition_id=partition_id,
            keys=[keys[row] for row in kept],
            tags=[{**tags[row], **{name: values[row].item() for name, values in judged.items()}} for row in kept],
        )
        rows = torch.tensor(kept)
        require_some(run.run, global_steps, outcomes.counted[rows])
        of_rollouts = outcomes.rewards, outcomes.groups, outcomes.lengths, outcomes.truncated, outcomes.counted
        of_all = rollout_metrics(*of_rollouts, rows if method.selection else None)
        of_all |= count_unjudged(outcomes.reasons) | {"prompts_failed": failed}
        return batch, {PREFIX + name: float(value) for name, value in of_all.items()}

    def _whole_groups(
        self, partition_id: str, batch_size: int, rounds: int
    ) -> tuple[list[str], list[dict[str, Any]], int]:
        """Wait for ``rounds`` batches of prompts with all of their rollouts, or for one that the selection keeps.

        Returns names and tags of the rollouts, in the order in which their prompts were asked for, and how many prompts
        failed.
        """
        size, selection, failed = current_run().run.training.samples_per_prompt, current_run().method.selection, 0
        while True:
            self._sync_metadata_from_transfer_queue()
            items, asked = self.partitions[partition_id], self.prompt_global_steps[partition_id]
            ended = self.finished_keys[partition_id] | self.failure_keys[partition_id]
            under_way = len(self.pending_keys[partition_id] | self.running_keys[partition_id])
            # verl lists prompts as they were asked for, but rollouts as they ended.
            rollouts: dict[str, list[str]] = {prompt: [] for prompt in sorted(asked, key=asked.__getitem__)}
            for key in sorted(items, key=rollout_number):
                rollouts[prompt_of(key)].append(key)
            whole = {prompt: keys for prompt, keys in rollouts.items() if prompt in ended and len(keys) == size}
            if (now := len(ended) - len(whole)) > failed:
                failed = now
                message = f"{failed} of {len(rollouts)} prompts lack some of their {size} rollouts"
                if failed > max(1.0, LARGEST_FAILED_SHARE * len(rollouts)):
                    accepted = f"{LARGEST_FAILED_SHARE:.0%} at most"
                    raise RuntimeError(f"{message}; accepted: {accepted}; their workers' errors are above")
                print(f"{message}; others are sampled", flush=True)
            missing = rounds * batch_size - len(whole) - under_way
            if isinstance(selection, GroupFilter):
                missing = min(missing, batch_size - self._of_use(selection, partition_id, whole) - under_way)
            if missing > 0:
                assert self.refill_fn is not None
                self.refill_fn(missing)
                continue
            if not under_way:
                keys = [key for group in whole.values() for key in group]
                return keys, [items[key] for key in keys], failed
            time.sleep(self.poll_interval)

    def _of_use(self, selection: GroupFilter, partition_id: str, groups: Mapping[str, Sequence[str]]) -> int:
        """Count the ``groups``, prompt -> rollouts, that the selection keeps."""
        if new := {prompt: keys for prompt, keys in groups.items() if prompt not in self._judged}:
            keys = [key for group in new.values() for key in group]
            items = self.partitions[partition_id]
            rewards = Outcomes.of(partition_id, keys, [items[key] for key in keys]).rewards
            self._judged |= dict(zip(new, selection.keeps(rewards.view(len(new), -1)).tolist(), strict=True))
        return sum(self._judged.values())


@dataclass(frozen=True)
class Outcomes:
    """What the reward manager said of the B rollouts of whole groups, [B] each."""

    rewards: Tensor  # with what the run makes of a response that nobody could judge
    counted: Tensor  # bool, whether a rollout counts in the training
    groups: Tensor  # int64
    lengths: Tensor  # in tokens
    truncated: Tensor  # bool, whether a rollout was cut off at the longest length
    reasons: list[str]  # of the verdicts

    @classmethod
    def of(cls, partition_id: str, keys: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> Outcomes:
        read = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["rm_scores", "extra_fields"])
        # tensordict wraps them or not
        fields = [getattr(extra, "data", extra)["reward_extra_info"] for extra in read["extra_fields"]]
        verdicts = [
            Verdict.of(None, Reason(extra["reason"]), 0.0, verified=reward)
            for extra, reward in zip(fields, rewards_of(read).tolist(), strict=True)
        ]
        groups = group_ids(map(prompt_of, keys))
        rewards, counted = training_rewards(verdicts, groups, current_run().run.training.unjudged)
        lengths = torch.tensor([tag["response_len"] for tag in tags])
        truncated = torch.tensor([bool(extra["truncated"]) for extra in fields])
        return cls(rewards, counted, groups, lengths, truncated, [verdict.reason for verdict in verdicts])


def rewards_of(read: Any) -> Tensor:
    """The rewards [B] of rollouts, from verl's scores of their tokens."""
    return torch.stack([scores.sum() for scores in read["rm_scores"].unbind()]).float()
