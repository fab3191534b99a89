"""verl's trainers with the method's mini-batches and token weights.

Two steps are extended: ordering the batch, which becomes the method's mini-batches and tells the workers what they need
to weigh tokens while they compute the old log-probs; and the advantages, which the weights multiply.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from evals.core.files import write_json
from evals.core.random import generator_for
from rlvr.engines.rollouts import StepRollouts, is_kept, keep_rollouts
from rlvr.engines.unjudged import require_judged
from rlvr.engines.verl.checkpoints import PROBE, SAMPLED, read_steps
from rlvr.engines.verl.launch import RUN_VARIABLE
from rlvr.engines.verl.metrics import PREFIX, check_rollout_kl, token_metrics
from rlvr.engines.verl.mini_batches import prompt_of, rank_layout, whole_groups_fraction
from rlvr.engines.verl.registered import Field, current_run, group_ids, nested, unpacked_metrics
from rlvr.engines.verl.replay_buffer import rewards_of
from rlvr.methods.assignments import mini_batch_ids
from rlvr.methods.rollout_batch import RolloutBatch


class MethodTrainer(PPOTrainerSync):
    """The trainer of one run: every rollout of a step is drawn from the policy that the step starts from."""

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
        rewards, lengths = (torch.tensor([tag[name] for tag in batch.tags]) for name in ("reward", "response_len"))
        groups = group_ids(map(prompt_of, batch.keys))
        updates, step = run.training.updates_per_step, self.global_steps - 1
        mini_batches = method.assign(rewards, groups, lengths, updates, run.seed, step)
        ids = mini_batch_ids(mini_batches, len(batch.keys))
        self._judge_step(metrics)
        metrics[PREFIX + "groups_whole_fraction"] = whole_groups_fraction(ids, groups)
        advantages = torch.tensor([tag["advantage"] for tag in batch.tags])
        info = self.actor_rollout_wg._dispatch_info  # asked for as verl's own _balance_batch does
        if "actor" not in info:
            info["actor"] = self.actor_rollout_wg._query_dispatch_info("actor")
        layout = rank_layout(mini_batches, lengths, int(max(info["actor"])) + 1)
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

    def _judge_step(self, metrics: Mapping[str, float]) -> None:
        """End the run if too many responses were not judged; make this step the last one if the run's rule says so."""
        run, training = self._current.run, self._current.run.training
        own = {name.removeprefix(PREFIX): value for name, value in metrics.items() if name.startswith(PREFIX)}
        steps = [*read_steps(self._state, self.global_steps - 1), own]
        require_judged(run.run, steps, training.samples_per_prompt, training.unjudged_limit)
        write_json(self._state / SAMPLED, steps)
        if training.early_stop and training.last_step([step["reward_mean"] for step in steps]) == self.global_steps:
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
        self._write_probe(batch)
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

    def _write_probe(self, batch: Any) -> None:
        """Leave a rollout with its log-probs, by which the checkpoint that is merged of a state is recognised."""
        names = ["prompts", "responses", "old_log_probs"]
        rollout = tq.kv_batch_get(keys=batch.keys[:1], partition_id=batch.partition_id, select_fields=names)
        prompt, response, log_probs = (rollout[name].unbind()[0].tolist() for name in names)
        write_json(self._state / PROBE, {"tokens": [*prompt, *response], "log_probs": log_probs})

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
        step = StepRollouts(self._current.run.run, self.global_steps, problems, rewards_of(data), rollouts, weights)
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
