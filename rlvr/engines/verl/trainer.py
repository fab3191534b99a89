"""verl's synchronous trainer and replay buffer with the method's batches, mini-batches and token weights.

Two steps of the trainer are extended: ordering the batch, which becomes the method's mini-batches and tells the workers
what they need to weigh tokens while they compute the old log-probs; and the advantages, which the weights multiply. The
replay buffer replaces prompts that lost a rollout, and holds rollouts back until a method that chooses its batch is
content.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
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
from rlvr.engines.verl.launch import RUN_VARIABLE
from rlvr.engines.verl.metrics import PREFIX, check_rollout_kl, token_metrics
from rlvr.engines.verl.mini_batches import canonical_order, lay_out, truncations, whole_groups_fraction
from rlvr.engines.verl.registered import Field, current_run, group_ids, nested, unpacked_metrics
from rlvr.methods.assignments import mini_batch_ids
from rlvr.methods.rollout_batch import RolloutBatch, rollout_metrics

LARGEST_FAILED_SHARE = 0.1
"""The part of a step's prompts that may lose a rollout; of a small batch one prompt may, whatever its part."""


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
        order = canonical_order(batch.keys, groups)
        updates, step = run.training.updates_per_step, self.global_steps - 1
        assigned = method.assign(rewards[order], groups[order], lengths[order], updates, run.seed, step)
        mini_batches = [order[part] for part in assigned]
        ids = mini_batch_ids(mini_batches, len(batch.keys))
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

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Tell the workers which step it is, by which losses draw their random numbers; metadata does not last."""
        batch.extra_info[Field.STEP] = self.global_steps
        return super()._update_actor(batch, metrics)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Call the advantage as verl does, then multiply by the token weights."""
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
        rewards = torch.stack([scores.sum() for scores in data["rm_scores"].unbind()]).float()
        step = StepRollouts(self._current.run.run, self.global_steps, problems, rewards, rollouts, weights)
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

    Advantages are those of whole groups, hence computed here, before anything is dropped; they travel as tags.
    """

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, float]]:
        """The selected rollouts of ``batch_size`` prompts' size, and metrics of everything that was sampled."""
        if partition_id == "val":
            found: tuple[Any, dict[str, float]] = super().sample(global_steps, partition_id, batch_size)
            return found
        method, run = current_run().method, current_run().run
        rounds, size, step = 1, batch_size * run.training.samples_per_prompt, global_steps - 1
        while True:
            keys, tags, failed = self._whole_groups(partition_id, rounds * batch_size, run.training.samples_per_prompt)
            rewards, groups, lengths, truncated = _outcomes(partition_id, keys, tags)
            if method.selection is None:
                kept, own = list(range(size)), {"rollouts_discarded_fraction": 0.0}
                break
            selection = method.select(rewards, groups, size, rounds, run.seed, step)
            if selection is not None:
                kept = selection.indices.tolist()
                own = {"rollouts_discarded_fraction": selection.discarded_fraction, "sampling_rounds": rounds}
                break
            self._refill(batch_size)
            rounds += 1
        advantages = current_run().advantage.of_rollouts(rewards, groups, lengths)
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

    def _whole_groups(self, partition_id: str, prompts: int, size: int) -> tuple[list[str], list[dict[str, Any]], int]:
        """Wait for ``prompts`` prompts with all of their ``size`` rollouts; those that fail are replaced.

        Returns names and tags of their rollouts, in an order that timing has no part in, and how many prompts failed.
        """
        while True:
            self._sync_metadata_from_transfer_queue()
            if self.pending_keys[partition_id] or self.running_keys[partition_id]:  # some are still being generated
                time.sleep(self.poll_interval)
                continue
            items = self.partitions[partition_id]
            counts = Counter(map(_prompt, items))
            whole = [prompt for prompt, count in counts.items() if count == size]
            asked = len(self.finished_keys[partition_id] | self.failure_keys[partition_id])
            failed = asked - len(whole)
            if failed > max(1.0, LARGEST_FAILED_SHARE * prompts):
                found = f"{failed} of {asked} prompts lack some of their {size} rollouts"
                accepted = f"{LARGEST_FAILED_SHARE:.0%} of {prompts} at most"
                raise RuntimeError(f"{found}; accepted: {accepted}; their workers' errors are above")
            if len(whole) >= prompts:
                break
            print(f"{failed} of {asked} prompts lack some of their {size} rollouts; others are sampled", flush=True)
            self._refill(prompts - len(whole))
        keys = [key for key in items if counts[_prompt(key)] == size]
        order = canonical_order(keys, group_ids(map(_prompt, keys))).tolist()
        return [keys[row] for row in order], [items[keys[row]] for row in order], failed

    def _refill(self, prompts: int) -> None:
        """Ask for so many more prompts."""
        assert self.refill_fn is not None
        self.refill_fn(prompts)


def _prompt(key: str) -> str:
    """The prompt in a rollout's name, ``{prompt}_{number}_{part}``."""
    return key.rsplit("_", 2)[0]


def _outcomes(
    partition_id: str, keys: Sequence[str], tags: Sequence[dict[str, Any]]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, prompts, lengths and whether they were cut off, [B], of rollouts."""
    read = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["rm_scores", "extra_fields"])
    rewards = torch.stack([scores.sum() for scores in read["rm_scores"].unbind()]).float()
    lengths = torch.tensor([tag["response_len"] for tag in tags])
    return rewards, group_ids(map(_prompt, keys)), lengths, truncations(read["extra_fields"])
