"""verl's FSDP engine with what the methods need in its workers: token weights, and losses that couple rollouts.

Token weights are computed at the end of the pass that computes the old log-probs, from the inputs of the language-model
head that this pass saw: no forward pass is added. Each rank keeps its own tokens' vectors, and the few sums over tokens
are reduced over all ranks, so that every rank finds the weights of the whole batch.

A loss that couples the rollouts of a mini-batch is computed once on the whole mini-batch, all ranks' log-probs
together; its gradient with respect to them then goes through the ordinary micro-batches. That costs one more forward
pass, and is exact however the mini-batch is cut.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils
from verl.utils.device import get_device_id, get_torch_device
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.padding import response_from_nested

from evals.core.random import generator_for
from rlvr.engines.verl.adapters import ADAPTERS
from rlvr.engines.verl.gathering import Ranks
from rlvr.engines.verl.hidden_states import HeadInputs, response_rows
from rlvr.engines.verl.launch import ENGINE_VENDOR
from rlvr.engines.verl.metrics import PREFIX
from rlvr.engines.verl.registered import Field, current_run, nested, packed_metrics
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.rollout_batch import RolloutBatch

_GRADIENT = "rlvr_log_prob_gradient"
_OF_PEFT = "base_model.model."
"""The prefix that peft puts before a model's own names."""
_LONGEST_WAIT = timedelta(hours=3)
"""Of one rank for another. verl hands its workers no limit of its own; torch's ends a run while weights are read or
400 GB are saved."""


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda"], vendor=ENGINE_VENDOR)
class MethodEngine(FSDPEngineWithLMHead):
    """The engine of one worker."""

    _head_inputs: HeadInputs | None = None
    _step = 0
    _update = 0

    def initialize(self) -> Any:
        """verl's; ranks wait longer for one that still loads weights or writes its shard than torch lets them."""
        _set_pg_timeout(_LONGEST_WAIT)
        return super().initialize()

    def infer_batch(self, data: Any, loss_function: Callable[..., Any] | None = None) -> Any:
        """verl's, and token weights with it if the batch brings advantages and the method needs hidden states."""
        current = current_run()
        if not current.method.needs_hidden_states or Field.ADVANTAGE not in data:
            return super().infer_batch(data, loss_function)
        with self._watching(data) as kept:
            outputs = super().infer_batch(data, loss_function)
        started, found = self._now(), outputs["model_output"]
        weights, metrics = self._weigh(data, found, kept.joined())
        metrics["seconds_token_weights"] = self._now() - started
        found[Field.TOKEN_WEIGHTS] = weights
        found[Field.WEIGHT_METRICS] = nested([packed_metrics(metrics)] * len(data[Field.ROW]))
        return outputs

    def prepare_model_outputs(self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any) -> Any:
        """verl's; the head's inputs of the micro-batch are kept on the way."""
        found = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        if self._head_inputs is not None:
            packed = self._head_inputs.packed(micro_batch, output_args, self._gather_and_unpad_packed)
            self._head_inputs.keep(micro_batch[Field.ROW].tolist(), response_rows(packed, micro_batch))
        return found

    def forward_step(self, micro_batch: Any, loss_function: Callable[..., Any] | None, forward_only: bool) -> Any:
        """verl's; the loss's metrics are summed over tokens exactly, where verl averages micro-batches."""
        loss = current_run().loss
        loss.gradient = None
        if _GRADIENT in micro_batch:
            loss.gradient = micro_batch[_GRADIENT].to_padded_tensor(0.0)
        value, output = super().forward_step(micro_batch, loss_function, forward_only)
        if loss_function is not None and not forward_only and loss.token_sums:
            scale = tensordict_utils.get(micro_batch, "dp_size") / tensordict_utils.get(micro_batch, "batch_num_tokens")
            for name, total in loss.token_sums.items():
                output["metrics"][PREFIX + name] = Metric(value=total * scale, aggregation=AggregationType.SUM)
        return value, output

    def forward_backward_batch(self, data: Any, loss_function: Callable[..., Any], forward_only: bool = False) -> Any:
        """verl's, with the step's learning rate, and after a pass for the log-probs if the loss couples rollouts."""
        metrics: dict[str, float] = {}
        if not forward_only:
            step = tensordict_utils.get(data, Field.STEP)
            self._update = self._update + 1 if step == self._step else 0
            self._step = step
            if current_run().method.loss.coupling != "rollout":
                metrics = self._couple(data)
            metrics["learning_rate"] = float(self.optimizer.param_groups[0]["lr"])
        outputs = super().forward_backward_batch(data, loss_function, forward_only)
        for name, value in metrics.items():
            outputs["metrics"][PREFIX + name] = Metric(value=value, aggregation=AggregationType.MEAN)
        return outputs

    def optimizer_step(self) -> float:
        """verl's, which leaves an update out whose gradient is not finite; the run ends there instead.

        Raises:
            RuntimeError: on all ranks, with the weights before that update.
        """
        norm = float(super().optimizer_step())
        if not math.isfinite(norm):
            raise RuntimeError(f"step {self._step}: update {self._update + 1}: the gradient's norm is {norm}")
        return norm

    def _build_lora_module(self, module: Any) -> Any:
        """verl's; the first numbers of adapters follow from the run's seed, as the local engine's do."""
        from peft.tuners.lora import LoraLayer

        from rlvr.engines.local.lora import draw

        adapted = super()._build_lora_module(module)
        layers = {
            f"{name.removeprefix(_OF_PEFT)}.weight": each
            for name, each in adapted.named_modules()
            if isinstance(each, LoraLayer) and not each.get_base_layer().weight.is_meta  # else they are sent by rank 0
        }
        draw(layers, current_run().run.seed, torch.device("cpu"))
        return adapted

    def _build_lr_scheduler(self, optimizer: Any) -> Any:
        """verl's, which counts rollout steps and raises the learning rate, with the run's decay on top."""
        scheduler = super()._build_lr_scheduler(optimizer)
        training = current_run().run.training
        if training.falling_steps is not None:  # step 0 has the full rate, so that nothing is set anew
            scheduler.lr_lambdas = [
                lambda step, warmup=warmup: warmup(step) * training.decay_factor(step)
                for warmup in scheduler.lr_lambdas
            ]
        return scheduler

    def save_checkpoint(self, local_path: str, *arguments: Any, **named: Any) -> None:
        """verl's, with adapters whole and in float32 beside it: verl's merger would round them."""
        super().save_checkpoint(local_path, *arguments, **named)
        if current_run().run.training.lora is not None:
            adapters = self._adapters()
            if distributed.get_rank() == 0:
                save_file(adapters, Path(local_path) / ADAPTERS)

    def _adapters(self) -> dict[str, Tensor]:
        """What is trained beside weights that stay as they are, whole and under the local engine's names."""
        found = {}
        for name, weights in self.module.named_parameters():
            if weights.requires_grad:
                whole = weights.full_tensor() if isinstance(weights, DTensor) else weights
                found[name.removeprefix(_OF_PEFT).replace(".default.", ".")] = whole.detach().cpu().contiguous()
        return found

    @contextmanager
    def _watching(self, data: Any) -> Iterator[HeadInputs]:
        """Keep the head's inputs at the response tokens of ``data`` that the passes of the block see."""
        lengths = data["response_mask"].offsets().diff().tolist()
        self._head_inputs = HeadInputs(data[Field.ROW].tolist(), lengths, current_run())
        hook = self.module.get_output_embeddings().register_forward_pre_hook(self._head_inputs.see)
        try:
            yield self._head_inputs
        finally:
            hook.remove()
            self._head_inputs = None

    def _weigh(self, data: Any, found: Any, hidden: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The weights [length] of each of this rank's responses, and the whole batch's metrics."""
        current, mask, device = current_run(), data["response_mask"], hidden.device
        rollouts = self._ranks.gather(
            mask,
            advantages=data[Field.ADVANTAGE],
            groups=data[Field.GROUP],
            mini_batches=data[Field.MINI_BATCH],
            tokens=data["responses"].values(),
            log_probs=response_from_nested(found["log_probs"], mask).values().float(),
            entropies=response_from_nested(found["entropy"], mask).values().float(),
        )
        head: Any = self.module.get_output_embeddings().weight.detach()
        batch = RolloutBatch(
            advantages=rollouts.joined("advantages").to(device),
            old_log_probs=rollouts.padded("log_probs").to(device),
            entropies=rollouts.padded("entropies").to(device),
            response_mask=rollouts.mask.to(device),
            mini_batch_ids=rollouts.joined("mini_batches").to(device),
            group_ids=rollouts.joined("groups").to(device),
            token_ids=rollouts.padded("tokens").to(device),
            temperature=current.run.training.temperature,
            generator=generator_for("token_weights", current.run.seed, tensordict_utils.get(data, Field.STEP) - 1),
            first_metrics=tensordict_utils.get(data, Field.FIRST_METRICS) or {},
            # [V, D], put together from its shards.
            head_weight=(head.full_tensor() if hasattr(head, "full_tensor") else head).to(device),
            hidden_states=hidden,
            share=self._ranks.share([int(part["lengths"].sum()) for part in rollouts.parts]),
        )
        assert current.method.token_weights is not None
        weights, metrics = current.method.token_weights(batch)
        return rollouts.own(weights.float()), metrics

    def _couple(self, data: Any) -> dict[str, float]:
        """Put the gradient with respect to this rank's log-probs into ``data``; the loss's metrics."""
        current = current_run()
        with torch.no_grad():
            found = super().forward_backward_batch(data, None, forward_only=True)
        log_probs = response_from_nested(found["model_output"]["log_probs"], data["response_mask"])
        rollouts = self._ranks.gather(
            data["response_mask"],
            log_probs=log_probs.values().float(),
            old_log_probs=data["old_log_probs"].values().float(),
            advantages=data["advantages"].values().float(),
            groups=data[Field.GROUP],
        )
        variable, mask = rollouts.padded("log_probs").requires_grad_(), rollouts.mask
        updates = (tensordict_utils.get(data, Field.STEP) - 1) * current.run.training.updates_per_step + self._update
        aggregation = current.method.aggregation
        token_loss, metrics = current.method.loss(
            variable,
            rollouts.padded("old_log_probs"),
            rollouts.padded("advantages"),
            mask,
            rollouts.joined("groups"),
            generator_for("loss", current.run.seed, updates),
            aggregation,
        )
        normaliser = Normaliser.of(mask)
        value = aggregation(token_loss, mask, normaliser)
        (gradient,) = torch.autograd.grad(value, variable)
        data[_GRADIENT] = rollouts.own(gradient)
        tokens = max(1, normaliser.tokens)
        means = {name: float(values.detach()[mask].sum()) / tokens for name, values in metrics.items()}
        return {"loss": float(value.detach()), **means}

    def _now(self) -> float:
        """Seconds, once the device has done what it was told."""
        get_torch_device().synchronize()
        return time.monotonic()

    @property
    def _ranks(self) -> Ranks:
        """The data-parallel ranks."""
        number, count = self.get_data_parallel_rank(), self.get_data_parallel_size()
        return Ranks(self.get_data_parallel_group(), number, count, self._communication_device)

    @property
    def _communication_device(self) -> torch.device:
        return torch.device(get_device_id())  # a number is that of an accelerator
