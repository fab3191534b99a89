"""One data-parallel rank of verl's engine with a method's components, without Ray or vLLM.

The engine is the one that verl's workers build, from the same configuration, and is called as they call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine import EngineRegistry
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.registered import Field, nested, unpacked_metrics
from rlvr.methods.method import compose


@dataclass(frozen=True)
class RankBatch:
    """The B rollouts of one rank."""

    prompts: Sequence[Sequence[int]]  # token ids of each
    responses: Sequence[Sequence[int]]  # token ids of each
    advantages: Tensor  # [B]
    groups: Tensor  # [B] int64
    mini_batches: Tensor  # [B] int64
    rows: Tensor  # [B] int64, their places in the whole batch
    sampler: Sequence[Sequence[float]]  # what the log-probs of others differ by from the policy's before the update
    reference: Sequence[Sequence[float]]
    counted: Sequence[bool]  # false of what is left out

    def select(self, rows: slice) -> RankBatch:
        return RankBatch(*(getattr(self, each.name)[rows] for each in fields(self)))


@dataclass(frozen=True)
class Scores:
    """The results of the passes before the updates, [length] of each rollout."""

    log_probs: list[Tensor]
    entropies: list[Tensor]
    weights: list[Tensor]  # ones if workers compute none
    metrics: dict[str, float]  # of the weights


class EngineRank:
    """The engine of this process; the process group has to be there."""

    def __init__(self, run: VerlRun, cluster: Cluster, config: Any) -> None:
        """Build it from verl's composed configuration, and load the model."""
        self._run, self._cluster = run, cluster
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self._actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self._actor.model_config = model
        self._remove_padding = bool(config.actor_rollout_ref.model.use_remove_padding)
        self._actor.engine.use_remove_padding = self._remove_padding
        self.engine = EngineRegistry.new(
            model_type="language_model",
            backend=self._actor.engine.strategy,
            model_config=model,
            engine_config=self._actor.engine,
            optimizer_config=self._actor.optim,
            checkpoint_config=self._actor.checkpoint,
        )
        self.engine.initialize()

    def score(self, batch: RankBatch) -> Scores:
        """Old log-probs, and token weights if the method takes them from hidden states."""
        data = self._data(batch, {}, {"calculate_entropy": True})
        with self.engine.eval_mode():
            found = self.engine.infer_batch(data)["model_output"]
        log_probs, entropies = (
            list(response_from_nested(found[name], data["response_mask"]).unbind()) for name in ("log_probs", "entropy")
        )
        if Field.TOKEN_WEIGHTS not in found:
            return Scores(log_probs, entropies, [torch.ones(len(row)) for row in log_probs], {})
        metrics = unpacked_metrics(found[Field.WEIGHT_METRICS].unbind()[0])
        return Scores(log_probs, entropies, [row.float() for row in found[Field.TOKEN_WEIGHTS].unbind()], metrics)

    def update(self, batch: RankBatch, old_log_probs: Sequence[Tensor], advantages: Sequence[Tensor]) -> dict[str, Any]:
        """One optimizer step on this rank's part of a mini-batch; verl's metrics of it.

        ``old_log_probs`` and ``advantages``, with their token weights, are [length] of each rollout.
        """
        more = {"old_log_probs": nested(old_log_probs), "advantages": nested(advantages)}
        for name, differences in (("rollout_log_probs", batch.sampler), ("ref_log_prob", batch.reference)):
            rows = zip(old_log_probs, differences, strict=True)
            more[name] = nested([row.cpu() + torch.tensor(apart) for row, apart in rows])
        whole = len(batch.prompts) * self.engine.get_data_parallel_size()
        bonus = compose(self._run.method, longest=self._run.training.max_new_tokens).entropy_bonus
        coefficient = 0.0 if bonus is None else bonus.coefficient_at(0.0, {})[0]
        settings = {Field.ENTROPY_COEFFICIENT: coefficient, "calculate_entropy": bonus is not None}
        data = self._data(batch, more, {"global_batch_size": whole, **settings})
        metrics: dict[str, Any] = self.engine.train_batch(data, partial(ppo_loss, config=self._actor))["metrics"]
        return metrics

    def _data(self, batch: RankBatch, more: dict[str, Tensor], settings: dict[str, Any]) -> Any:
        """The batch as verl's workers are handed it."""
        whole = [[*prompt, *response] for prompt, response in zip(batch.prompts, batch.responses, strict=True)]
        of_rows = zip(batch.responses, batch.counted, strict=True)
        ones = [[int(counted)] * len(response) for response, counted in of_rows]
        tensors = {
            "prompts": nested(batch.prompts),
            "responses": nested(batch.responses),
            "input_ids": nested(whole),
            "position_ids": nested([range(len(tokens)) for tokens in whole]),
            "response_mask": nested(ones),
            "loss_mask": nested(ones),
            Field.ADVANTAGE: batch.advantages,
            Field.GROUP: batch.groups,
            Field.MINI_BATCH: batch.mini_batches,
            Field.ROW: batch.rows,
            **more,
        }
        plain = {
            "temperature": self._run.training.temperature,
            "use_remove_padding": self._remove_padding,
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": self._cluster.tokens_per_device,
            "use_fused_kernels": False,
            Field.STEP: 1,
            Field.FIRST_METRICS: {},
            **settings,
        }
        return tensordict_utils.get_tensordict(tensors, plain)
