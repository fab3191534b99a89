"""verl's synchronous trainer with the method's mini-batches and token weights.

Two of its steps are extended: ordering the batch, which becomes the method's mini-batches and tells the workers what
they need to weigh tokens while they compute the old log-probs; and the advantages, which the weights multiply.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from evals.core.files import write_json
from evals.core.random import generator_for
from rlvr.engines.rollout_metrics import mini_batch_ids, rollout_metrics
from rlvr.engines.verl.layout import lay_out, whole_groups_fraction
from rlvr.engines.verl.metrics import OURS
from rlvr.engines.verl.outcomes import canonical_order, token_metrics, truncations
from rlvr.engines.verl.registered import group_ids
from rlvr.engines.verl.this_run import this_run
from rlvr.engines.verl.worker_fields import ADVANTAGE, FIRST_METRICS, GROUP, MINI_BATCH, ROW, STEP, WEIGHT_METRICS
from rlvr.methods.rollout_batch import RolloutBatch


class MethodTrainer(PPOTrainerSync):
    """The trainer of one run of ours."""

    def __init__(self, config: Any) -> None:
        """Read the run; ``config`` is verl's whole configuration."""
        super().__init__(config)
        self._ours = this_run()
        self._first_metrics_path = Path(config.trainer.default_local_dir) / "first_metrics.json"

    def _balance_batch(
        self, batch: Any, metrics: dict[str, Any], logging_prefix: str = "global_seqlen", keep_minibatch: bool = False
    ) -> Any:
        """Order the batch by rank and mini-batch, and give every rollout what its worker needs."""
        run, method = self._ours.run, self._ours.method
        wanted = ["uid", "rm_scores", "extra_fields"]
        read = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=wanted)
        expected = run.training.rollouts_per_step
        if len(batch.keys) != expected:
            raise ValueError(
                f"{expected - len(batch.keys)} of {expected} rollouts failed; their workers' errors are above"
            )
        rewards = torch.stack([scores.sum() for scores in read["rm_scores"].unbind()]).float()
        lengths = torch.tensor([tag["response_len"] for tag in batch.tags])
        groups = group_ids(list(read["uid"]))
        order = canonical_order(batch.keys, groups)
        ours = method.assignment(
            rewards[order],
            groups[order],
            lengths[order],
            run.training.updates_per_step,
            generator_for("mini_batches", run.seed, self.global_steps - 1),
        )
        mini_batches = [order[part] for part in ours]
        ids = mini_batch_ids(mini_batches, expected)
        metrics[OURS + "groups_whole_fraction"] = whole_groups_fraction(ids, groups)
        if method.selection is None:  # otherwise the replay buffer has them, of everything that was sampled
            found = rollout_metrics(rewards, groups, lengths, truncations(read["extra_fields"]), 0.0)
            metrics.update({OURS + name: float(value) for name, value in found.items()})
        if "advantage" in batch.tags[0]:  # a selection left rollouts of their groups out
            advantages = torch.tensor([tag["advantage"] for tag in batch.tags])
        else:
            advantages = self._ours.advantage.of_rollouts(rewards, groups, lengths)
        layout = lay_out(method, mini_batches, lengths, self._data_parallel_ranks())
        batch.reorder(layout.tolist())
        fields = {
            ADVANTAGE: advantages[layout],
            GROUP: groups[layout],
            MINI_BATCH: ids[layout],
            ROW: torch.arange(len(layout)),
        }
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(layout))
        )
        batch.extra_info[STEP] = self.global_steps
        batch.extra_info[FIRST_METRICS] = self._first_metrics()
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Tell the workers which step it is, by which losses draw their random numbers; metadata does not last."""
        batch.extra_info[STEP] = self.global_steps
        return super()._update_actor(batch, metrics)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Call our estimator as verl does, then multiply by the token weights."""
        batch = super()._compute_advantage(batch, metrics)
        fields = ["response_mask", ADVANTAGE, "old_log_probs", "rollout_log_probs", "entropy"]
        by_worker = self._ours.method.needs_hidden_states
        if by_worker:
            fields += ["token_weights", "token_weight_metrics"]
        elif self._ours.method.token_weights is not None:
            fields += ["responses", GROUP, MINI_BATCH]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        lengths = [row.numel() for row in data["response_mask"].unbind()]
        mask = data["response_mask"].to_padded_tensor(0).bool()
        old, rollout, entropies = (data[name].to_padded_tensor(0.0) for name in fields[2:5])
        metrics.update(token_metrics(old, rollout, entropies, mask))
        weights, found, started = mask.float(), {}, time.monotonic()
        if by_worker:
            weights = data["token_weights"].to_padded_tensor(0.0)
            named = dict(zip(WEIGHT_METRICS, data["token_weight_metrics"][0].tolist(), strict=True))
            found = {name: value for name, value in named.items() if not math.isnan(value)}
        elif self._ours.method.token_weights is not None:
            weights, found = self._ours.method.token_weights(self._whole_batch(data, mask))
        found.setdefault("seconds_token_weights", time.monotonic() - started)
        if not self._first_metrics():
            write_json(self._first_metrics_path, {"step": self.global_steps, **found})
        metrics.update({OURS + name: value for name, value in found.items()})
        weighted = data[ADVANTAGE][:, None] * weights * mask
        nested = torch.nested.as_nested_tensor(
            [row[:length] for row, length in zip(weighted.float(), lengths, strict=True)], layout=torch.jagged
        )
        fields_out = TensorDict({"advantages": nested}, batch_size=len(lengths))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields_out)

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, float], *arguments: Any, **named: Any
    ) -> None:
        """verl's; the token weights are not counted among the log-probs that some of them are computed with."""
        super()._compute_metrics(batch, metrics, timing_raw, *arguments, **named)
        of_weights = metrics[OURS + "seconds_token_weights"] if self._ours.method.needs_hidden_states else 0.0
        metrics[OURS + "seconds_log_probs"] = timing_raw["old_log_prob"] - of_weights

    def _whole_batch(self, data: Any, mask: Tensor) -> RolloutBatch:
        """The rollout batch for a weighting that needs no hidden states."""
        run = self._ours.run
        return RolloutBatch(
            advantages=data[ADVANTAGE],
            old_log_probs=data["old_log_probs"].to_padded_tensor(0.0),
            entropies=data["entropy"].to_padded_tensor(0.0),
            response_mask=mask,
            mini_batch_ids=data[MINI_BATCH],
            group_ids=data[GROUP],
            token_ids=data["responses"].to_padded_tensor(0),
            temperature=run.training.temperature,
            generator=generator_for("token_weights", run.seed, self.global_steps - 1),
            first_metrics=self._first_metrics(),
        )

    def _first_metrics(self) -> dict[str, float]:
        """The weighting's metrics on the run's first batch; they outlive the process."""
        if not self._first_metrics_path.is_file():
            return {}
        content: dict[str, float] = json.loads(self._first_metrics_path.read_text(encoding="utf-8"))
        return {} if content.pop("step") == self.global_steps else content

    def _data_parallel_ranks(self) -> int:
        """As verl's own ``_balance_batch`` finds it."""
        info = self.actor_rollout_wg._dispatch_info
        if "actor" not in info:
            info["actor"] = self.actor_rollout_wg._query_dispatch_info("actor")
        return int(max(info["actor"])) + 1
