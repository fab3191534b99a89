"""verl's synchronous trainer and replay buffer with the method's batches, mini-batches and token weights.

Two steps of the trainer are extended: ordering the batch, which becomes the method's mini-batches and tells the workers
what they need to weigh tokens while they compute the old log-probs; and the advantages, which the weights multiply. The
replay buffer replaces prompts that lost a rollout, and holds rollouts back until a method that chooses its batch is
content.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from evals.core.files import write_json
from evals.core.random import generator_for
from rlvr.engines.rollouts import StepRollouts, is_kept, keep_rollouts
from rlvr.engines.verl.checkpoints import REWARDS, read_rewards
from rlvr.engines.verl.launch import RUN_VARIABLE
from rlvr.engines.verl.metrics import PREFIX, check_rollout_kl, token_metrics
from rlvr.engines.verl.mini_batches import lay_out, prompt_of, rollout_number, truncations, whole_groups_fraction
from rlvr.engines.verl.registered import Field, current_run, group_ids, nested, unpacked_metrics
from rlvr.methods.assignments import mini_batch_ids
from rlvr.methods.rollout_batch import RolloutBatch, rollout_metrics
from rlvr.methods.selections import GroupFilter

LARGEST_FAILED_SHARE = 0.1
"""The part of the prompts that a step samples that may lose a rollout; one prompt may, whatever its part."""


class MethodTrainer(PPOTrainerSync):
    """The trainer of one run."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._current = current_run()
        self._state = Path(config.trainer.default_local_dir)
        self._first_metrics_path = self._state / "first_metrics.json"

    def _balance_batch(
        self, batch: Any, metrics: dict[str, Any], logging_prefix: str = "global_seqlen", keep_minibatch: bool = False
    ) -> Any:
        """Order the batch by rank and mini-batch, and give every rollout what its worker needs."""
        run, method = self._current.run, self._current.method
        rewards, groups, lengths, _ = _outcomes(batch.partition_id, batch.keys, batch.tags)
        updates, step = run.training.updates_per_step, self.global_steps - 1
        mini_batches = method.assign(rewards, groups, lengths, updates, run.seed, step)
        ids = mini_batch_ids(mini_batches, len(batch.keys))
        self._end_early(metrics[PREFIX + "reward_mean"])
        metrics[PREFIX + "groups_whole_fraction"] = whole_groups_fraction(ids, groups)
        advantages = torch.tensor([tag["advantage"] for tag in batch.tags])
        info = self.actor_rollout_wg._dispatch_info  # asked for as verl's own _balance_batch does
        if "actor" not in info:
            info["actor"] = self.actor_rollout_wg._query_dispatch_info("actor")
        layout = lay_out(method, mini_batches, lengths, int(max(info["actor"])) + 1)
        batch.reorder(layout.tolist())
        fields = {
            Field.ADVANTAGE: advantages[layout],
            Field.GROUP: groups[layout],
            Field.MINI_BATCH: ids[layout],
            Field.ROW: torch.arange(len(layout)),
        }
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(layout))
        )
        batch.extra_info[Field.STEP] = self.global_steps
        batch.extra_info[Field.FIRST_METRICS] = self._first_metrics()
        return batch

    def _end_early(self, reward: float) -> None:
        """Make this step, of this mean reward, the last one and save it, if the run's rule says so."""
        training = self._current.run.training
        if training.early_stop is None:
            return
        rewards = [*read_rewards(self._state, self.global_steps - 1), reward]
        write_json(self._state / REWARDS, rewards)
        if training.last_step(rewards) == self.global_steps:
            self.total_training_steps = self.global_steps
            self.config.trainer.save_freq = 1

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Tell the workers which step it is, by which losses draw their random numbers; metadata does not last."""
        batch.extra_info[Field.STEP] = self.global_steps
        return super()._update_actor(batch, metrics)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's, whose advantages are replaced by the method's times the token weights."""
        batch = super()._compute_advantage(batch, metrics)
        method = self._current.method
        wanted = ["response_mask", Field.ADVANTAGE, "old_log_probs", "rollout_log_probs", "entropy"]
        kept = is_kept(self.global_steps, self._current.cluster.rollouts_kept_every)
        if method.needs_hidden_states:  # the workers have weighed the tokens
            wanted += [Field.TOKEN_WEIGHTS, Field.WEIGHT_METRICS]
        if kept or (method.token_weights is not None and not method.needs_hidden_states):
            wanted += ["responses", Field.GROUP, Field.MINI_BATCH]
        if kept:
            wanted += ["rm_scores", "extra_info"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=wanted)
        lengths = [row.numel() for row in data["response_mask"].unbind()]
        mask = data["response_mask"].to_padded_tensor(0).bool()
        old, rollout, entropies = (data[name].to_padded_tensor(0.0) for name in wanted[2:5])
        metrics.update(token_metrics(old, rollout, entropies, mask))
        limit, top_p = self._current.cluster.rollout_kl_limit, self._current.run.training.top_p
        check_rollout_kl(metrics, self.global_steps, limit, top_p)
        weights, found, started = mask.float(), {}, time.monotonic()
        if method.needs_hidden_states:
            weights = data[Field.TOKEN_WEIGHTS].to_padded_tensor(0.0)
            found = unpacked_metrics(data[Field.WEIGHT_METRICS][0])
        elif method.token_weights is not None:
            weights, found = method.token_weights(self._rollout_batch(data, mask, old, entropies))
        found.setdefault("seconds_token_weights", time.monotonic() - started)
        if kept:
            self._keep_rollouts(data, self._rollout_batch(data, mask, old, entropies), weights)
        if not self._first_metrics():
            write_json(self._first_metrics_path, {"step": self.global_steps, **found})
        metrics.update({PREFIX + name: value for name, value in found.items()})
        weighted = (data[Field.ADVANTAGE][:, None] * weights * mask).float()
        rows = nested([row[:length] for row, length in zip(weighted, lengths, strict=True)])
        fields = TensorDict({"advantages": rows}, batch_size=len(lengths))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, float], *arguments: Any, **named: Any
    ) -> None:
        """verl's; the token weights are not counted among the log-probs that some of them are computed with."""
        super()._compute_metrics(batch, metrics, timing_raw, *arguments, **named)
        of_weights = metrics[PREFIX + "seconds_token_weights"] if self._current.method.needs_hidden_states else 0.0
        metrics[PREFIX + "seconds_log_probs"] = timing_raw["old_log_prob"] - of_weights

    def _rollout_batch(self, data: Any, mask: Tensor, old: Tensor, entropies: Tensor) -> RolloutBatch:
        """The whole batch of this step; what is known of its tokens is [B, T]."""
        run = self._current.run
        return RolloutBatch(
            advantages=data[Field.ADVANTAGE],
            old_log_probs=old,
            entropies=entropies,
            response_mask=mask,
            mini_batch_ids=data[Field.MINI_BATCH],
            group_ids=data[Field.GROUP],
            token_ids=data["responses"].to_padded_tensor(0),
            temperature=run.training.temperature,
            generator=generator_for("token_weights", run.seed, self.global_steps - 1),
            first_metrics=self._first_metrics(),
        )

    def _keep_rollouts(self, data: Any, rollouts: RolloutBatch, weights: Tensor) -> None:
        """Write the rollouts of this step, whose tokens have the weights [B, T]."""
        problems = [str(getattr(about, "data", about)["id"]) for about in data["extra_info"]]
        step = StepRollouts(self._current.run.run, self.global_steps, problems, _rewards(data), rollouts, weights)
        keep_rollouts(
            Path(os.environ[RUN_VARIABLE]).parent,
            self._state.name,  # begins the training's fingerprint
            step,
            lambda token: str(self.tokenizer.decode([token], skip_special_tokens=False)),
        )

    def _first_metrics(self) -> dict[str, float]:
        """The weighting's metrics on the run's first batch; they outlive the process."""
        if not self._first_metrics_path.is_file():
            return {}
        content: dict[str, float] = json.loads(self._first_metrics_path.read_text(encoding="utf-8"))
        return {} if content.pop("step") == self.global_steps else content


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
        """The selected rollouts of ``batch_size`` prompts' size, and metrics of everything that was sampled."""
        if partition_id == "val":
            found: tuple[Any, dict[str, float]] = super().sample(global_steps, partition_id, batch_size)
            return found
        method, run = current_run().method, current_run().run
        size, step = batch_size * run.training.samples_per_prompt, global_steps - 1
        self._judged.clear()
        rounds = method.selection.max_rounds if isinstance(method.selection, GroupFilter) else 1
        while True:
            keys, tags, failed = self._whole_groups(partition_id, batch_size, rounds)
            rewards, groups, lengths, truncated = _outcomes(partition_id, keys, tags)
            if method.selection is None:
                kept, own = list(range(size)), {"rollouts_discarded_fraction": 0.0}
                break
            selection = method.select(rewards, groups, size, rounds, run.seed, step)
            if selection is not None:
                kept = selection.indices.tolist()
                own = {"rollouts_discarded_fraction": selection.discarded_fraction}
                break
            rounds += 1
        advantages = method.advantages(rewards, groups, lengths, run.training.max_new_tokens)
        chosen = {keys[row] for row in kept}
        uids = [*self.finished_keys[partition_id], *self.failure_keys[partition_id]]
        rest = [key for key in self.partitions[partition_id] if key not in chosen]
        tq.kv_clear(partition_id=partition_id, keys=[*uids, *rest])
        batch = KVBatchMeta(
            partition_id=partition_id,
            keys=[keys[row] for row in kept],
            tags=[{**tags[row], "advantage": float(advantages[row])} for row in kept],
        )
        of_all = rollout_metrics(rewards, groups, lengths, truncated, 0.0) | {"prompts_failed": failed, **own}
        return batch, {PREFIX + name: float(value) for name, value in of_all.items()}

    def _whole_groups(
        self, partition_id: str, batch_size: int, rounds: int
    ) -> tuple[list[str], list[dict[str, Any]], int]:
        """Wait for ``rounds`` batches of prompts with all of their rollouts, or for one that the selection keeps.

        Returns names and tags of the rollouts, in the order in which their prompts were asked for, and how many prompts
        failed.
        """
        size, failed = current_run().run.training.samples_per_prompt, 0
        while True:
            self._sync_metadata_from_transfer_queue()
            items = self.partitions[partition_id]
            ended = self.finished_keys[partition_id] | self.failure_keys[partition_id]
            under_way = len(self.pending_keys[partition_id] | self.running_keys[partition_id])
            # verl lists prompts as they were asked for, but rollouts as they ended.
            rollouts: dict[str, list[str]] = {prompt: [] for prompt in self.prompt_global_steps[partition_id]}
            for key in sorted(items, key=rollout_number):
                rollouts[prompt_of(key)].append(key)
            whole = {prompt: keys for prompt, keys in rollouts.items() if prompt in ended and len(keys) == size}
            if (now := len(ended) - len(whole)) > failed:
                failed = now
                found = f"{failed} of {len(rollouts)} prompts lack some of their {size} rollouts"
                if failed > max(1.0, LARGEST_FAILED_SHARE * len(rollouts)):
                    accepted = f"{LARGEST_FAILED_SHARE:.0%} at most"
                    raise RuntimeError(f"{found}; accepted: {accepted}; their workers' errors are above")
                print(f"{found}; others are sampled", flush=True)
            missing = rounds * batch_size - len(whole) - under_way
            if (of_use := self._of_use(partition_id, whole)) is not None:
                missing = min(missing, batch_size - of_use - under_way)
            if missing > 0:
                assert self.refill_fn is not None
                self.refill_fn(missing)
            elif under_way:
                time.sleep(self.poll_interval)
            else:
                keys = [key for group in whole.values() for key in group]
                return keys, [items[key] for key in keys], failed

    def _of_use(self, partition_id: str, groups: Mapping[str, Sequence[str]]) -> int | None:
        """Count the ``groups``, prompt -> rollouts, that are kept; None for a selection that judges them together."""
        selection = current_run().method.selection
        if not isinstance(selection, GroupFilter):
            return None
        if new := {prompt: keys for prompt, keys in groups.items() if prompt not in self._judged}:
            keys = [key for group in new.values() for key in group]
            read = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["rm_scores"])
            self._judged |= dict(zip(new, selection.keeps(_rewards(read).view(len(new), -1)).tolist(), strict=True))
        return sum(self._judged.values())


def _outcomes(
    partition_id: str, keys: Sequence[str], tags: Sequence[dict[str, Any]]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, prompts, lengths and whether they were cut off, [B], of rollouts."""
    read = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["rm_scores", "extra_fields"])
    lengths = torch.tensor([tag["response_len"] for tag in tags])
    return _rewards(read), group_ids(map(prompt_of, keys)), lengths, truncations(read["extra_fields"])


def _rewards(read: Any) -> Tensor:
    """The rewards [B] of rollouts, from verl's scores of their tokens."""
    return torch.stack([scores.sum() for scores in read["rm_scores"].unbind()]).float()
