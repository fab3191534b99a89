"""verl's trainers with the method's mini-batches, token weights and advantages.

Two steps are extended: ordering the batch, which becomes the method's mini-batches and tells the workers what they need
to weigh tokens while they compute the old log-probs; and the advantages, which the weights multiply.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from evals.core.random import generator_for
from rlvr.engines.rollouts import StepRollouts, is_kept, keep_rollouts
from rlvr.engines.unjudged import require_judged
from rlvr.engines.verl.gathering import rank_layout, whole_groups_fraction
from rlvr.engines.verl.launch import RUN_VARIABLE
from rlvr.engines.verl.metrics import PREFIX, check_rollout_kl, columns, read_steps, write_step
from rlvr.engines.verl.registered import Field, current_run, group_ids, nested, prompt_of, unpacked_metrics
from rlvr.engines.verl.replay_buffer import rewards_of
from rlvr.methods.assignments import mini_batch_ids
from rlvr.methods.loss_terms import RewardTerm
from rlvr.methods.rollout_batch import RolloutBatch, sampler_metrics


class MethodTrainer(PPOTrainerSync):
    """The trainer of one run: every rollout of a step is drawn from the policy that the step starts from."""

    _entropy_coefficient = 0.0

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._current = current_run()
        self._state = Path(config.trainer.default_local_dir)

    def _balance_batch(
        self, batch: Any, metrics: dict[str, Any], logging_prefix: str = "global_seqlen", keep_minibatch: bool = False
    ) -> Any:
        """Order the batch by rank and mini-batch, and give every rollout what its worker needs."""
        run, method = self._current.run, self._current.method
        rewards, advantages, counted, lengths = (
            torch.tensor([tag[name] for tag in batch.tags])
            for name in ("reward", "advantage", "counted", "response_len")
        )
        groups = group_ids(map(prompt_of, batch.keys))
        updates, step = run.training.updates_per_step, self.global_steps - 1
        mini_batches = method.assign(rewards, groups, lengths, updates, run.seed, step)
        ids = mini_batch_ids(mini_batches, len(batch.keys))
        metrics[PREFIX + "groups_whole_fraction"] = whole_groups_fraction(ids[counted], groups[counted])
        info = self.actor_rollout_wg._dispatch_info  # asked for as verl's own _balance_batch does
        if "actor" not in info:
            info["actor"] = self.actor_rollout_wg._query_dispatch_info("actor")
        layout = rank_layout(mini_batches, lengths, int(max(info["actor"])) + 1)
        batch.reorder(layout.tolist())
        fields = {
            Field.REWARD: rewards[layout],
            Field.ADVANTAGE: advantages[layout],
            Field.COUNTED: counted[layout],
            Field.GROUP: groups[layout],
            Field.MINI_BATCH: ids[layout],
            Field.ROW: layout,
        }
        if not bool(counted.all()):  # what is left out has no token in any loss, weight or mean
            of_rows = zip(counted[layout].tolist(), lengths[layout].tolist(), strict=True)
            fields["response_mask"] = nested([torch.full((length,), int(row)) for row, length in of_rows])
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(layout))
        )
        batch.extra_info[Field.STEP] = self.global_steps
        batch.extra_info[Field.FIRST_METRICS] = self._first_metrics()
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's; metadata does not last, and the workers are told again which step it is."""
        batch.extra_info[Field.STEP] = self.global_steps
        batch.extra_info[Field.ENTROPY_COEFFICIENT] = self._entropy_coefficient
        return super()._update_actor(batch, metrics)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's, whose advantages are replaced by the method's times the token weights."""
        batch = super()._compute_advantage(batch, metrics)
        run, cluster, method = self._current.run, self._current.cluster, self._current.method
        kept = is_kept(self.global_steps, cluster.rollouts_kept_every)
        names = ["response_mask", "prompts", "responses", "old_log_probs", "rollout_log_probs", "entropy"]
        names += [Field.REWARD, Field.ADVANTAGE, Field.COUNTED, Field.GROUP, Field.MINI_BATCH, Field.ROW]
        names += ["rm_scores", "extra_info"] if kept else []
        names += [Field.TOKEN_WEIGHTS, Field.WEIGHT_METRICS] if method.needs_hidden_states else []
        names += ["ref_log_prob"] if isinstance(method.kl, RewardTerm) else []
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        mask = data["response_mask"].to_padded_tensor(0).bool()
        lengths = mask.sum(dim=1)
        if isinstance(method.kl, RewardTerm):
            data[Field.ADVANTAGE] = self._penalised_advantages(method.kl, data, mask)
        rollouts = self._rollout_batch(data, mask)
        started = time.monotonic()
        if method.needs_hidden_states:  # the workers have weighed the tokens
            weights = data[Field.TOKEN_WEIGHTS].to_padded_tensor(0.0)
            of_weights = unpacked_metrics(data[Field.WEIGHT_METRICS][0])
        else:
            weights, of_weights = method.weigh(rollouts)
        of_weights.setdefault("seconds_token_weights", time.monotonic() - started)
        drawn = data["rollout_log_probs"].to_padded_tensor(0.0)
        of_sampler = sampler_metrics(rollouts.old_log_probs[mask], drawn[mask], lengths, weights[mask])
        check_rollout_kl(of_sampler["rollout_kl"], self.global_steps, cluster.rollout_kl_limit, run.training.top_p)
        self._measure(metrics, {"entropy": float(rollouts.entropies[mask].mean()), **of_sampler, **of_weights})
        if kept:
            self._keep_rollouts(data, rollouts, weights)
        weighted = (rollouts.advantages[:, None] * weights * mask).float()
        whole = data["response_mask"].offsets().diff().tolist()
        rows = nested([row[:length] for row, length in zip(weighted, whole, strict=True)])
        fields = TensorDict({"advantages": rows}, batch_size=len(lengths))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _penalised_advantages(self, term: RewardTerm, data: Any, mask: Tensor) -> Tensor:
        """The advantages [B] of rewards with the divergence from the reference policy, in the batch's order."""
        run, sampled = self._current.run, data[Field.ROW].argsort()
        log_probs, reference = (data[name].to_padded_tensor(0.0) for name in ("old_log_probs", "ref_log_prob"))
        of_batch = data[Field.REWARD], data[Field.GROUP], mask.sum(dim=1), data[Field.COUNTED]
        penalties = term.penalties(log_probs, reference, mask)[sampled]
        rewards, groups, lengths, counted = (values[sampled] for values in of_batch)
        generator = generator_for("rewards", run.seed, self.global_steps - 1)
        longest = run.training.max_new_tokens
        advantages = self._current.method.advantages(rewards, groups, lengths, longest, counted, penalties, generator)
        return advantages[data[Field.ROW]]

    def _measure(self, metrics: dict[str, Any], measured: dict[str, float]) -> None:
        """Add what was ``measured`` to a step's metrics, and what follows from it and from the steps before.

        That is the coefficient of the entropy bonus, the end of a run whose rule says so, or of one with too many
        responses that nobody could judge.
        """
        run, training, method = self._current.run, self._current.run.training, self._current.method
        before = read_steps(self._state, self.global_steps - 1)
        if method.entropy_bonus is not None:
            self._entropy_coefficient, of_bonus = method.entropy_bonus.coefficient_at(
                measured["entropy"], before[-1] if before else {}
            )
            measured = measured | of_bonus
        metrics |= {PREFIX + name: value for name, value in measured.items()}
        steps = write_step(self._state, self.global_steps, columns(metrics))
        sampled = sum(step["prompts_sampled"] + step["prompts_failed"] for step in steps)
        metrics[PREFIX + "training_passes"] = sampled / len(self.train_dataset)
        require_judged(run.run, steps, training.samples_per_prompt, training.unjudged_limit)
        if training.early_stop and training.last_step([step["reward_mean"] for step in steps]) == self.global_steps:
            self.total_training_steps = self.global_steps
            self.config.trainer.save_freq = 1

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, float], *arguments: Any, **named: Any
    ) -> None:
        """verl's; the token weights are not counted among the log-probs that some of them are computed with."""
        super()._compute_metrics(batch, metrics, timing_raw, *arguments, **named)
        of_weights = metrics[PREFIX + "seconds_token_weights"] if self._current.method.needs_hidden_states else 0.0
        metrics[PREFIX + "seconds_log_probs"] = timing_raw["old_log_prob"] - of_weights
        metrics[PREFIX + "optimizer_steps"] = self._current.run.training.updates_per_step
        write_step(self._state, self.global_steps, columns(metrics))

    def _rollout_batch(self, data: Any, mask: Tensor) -> RolloutBatch:
        """The whole batch of this step; what is known of its tokens is [B, T]."""
        run = self._current.run
        return RolloutBatch(
            advantages=data[Field.ADVANTAGE],
            old_log_probs=data["old_log_probs"].to_padded_tensor(0.0),
            entropies=data["entropy"].to_padded_tensor(0.0),
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
        """What was measured of the run's first step; nothing in that step."""
        before = read_steps(self._state, self.global_steps - 1)
        return before[0] if before else {}
