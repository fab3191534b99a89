"""verl's FSDP engine with what the methods need in its workers: token weights, and the method's loss.

Token weights are computed at the end of the pass that computes the old log-probs, from the inputs of the language-model
head that this pass saw: no forward pass is added. Each rank keeps its own tokens' vectors, and the few sums over tokens
are reduced over all ranks, so that every rank finds the weights of the whole batch.

verl averages the gradients of its data-parallel ranks, so a rank's part of the loss is multiplied by their number. A
loss that couples the rollouts of a mini-batch is computed once on the whole mini-batch, all ranks' log-probs together;
its gradient with respect to them then goes through the ordinary micro-batches. That costs one more forward pass, and is
exact however the mini-batch is cut.
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
from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

from evals.core.files import write_json
from evals.core.random import generator_for
from rlvr.engines.verl.adapters import ADAPTERS
from rlvr.engines.verl.checkpoints import OPTIMIZER
from rlvr.engines.verl.gathering import HeadInputs, MiniBatchLoss, Ranks, fields_of_tokens
from rlvr.engines.verl.launch import ENGINE_VENDOR
from rlvr.engines.verl.metrics import PREFIX
from rlvr.engines.verl.registered import Field, current_run, nested, packed_metrics
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.rollout_batch import RolloutBatch

_GRADIENT = "rlvr_gradient_of_"
"""The beginning of the names of a mini-batch loss's derivatives with respect to what the model gives of each token."""
_OF_PEFT = "base_model.model."
"""The prefix that peft puts before a model's own names."""
_LONGEST_WAIT = timedelta(hours=3)
"""Of one rank for another. verl hands its workers no limit of its own; torch's ends a run while weights are read or
400 GB are saved."""


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda"], vendor=ENGINE_VENDOR)
class MethodEngine(FSDPEngineWithLMHead):
    """The engine of one worker."""

    _head_inputs: HeadInputs | None = None
    _loss: MiniBatchLoss
    _step = 0
    _update = 0

    def initialize(self) -> Any:
        """verl's; ranks wait longer for one that still loads weights or writes its shard than torch lets them."""
        _set_pg_timeout(_LONGEST_WAIT)
        return super().initialize()

    def infer_batch(self, data: Any, loss_function: Callable[..., Any] | None = None) -> Any:
        """verl's, and token weights with it in the pass for the old log-probs, if the method needs hidden states."""
        # The reference policy's pass asks for no entropies.
        if not (current_run().method.needs_hidden_states and tensordict_utils.get(data, "calculate_entropy")):
            return super().infer_batch(data, loss_function)
        with self._watching(data) as kept:
            outputs = super().infer_batch(data, loss_function)
        started, of_model = self._now(), outputs["model_output"]
        weights, metrics = self._weigh(data, of_model, kept.joined())
        metrics["seconds_token_weights"] = self._now() - started
        of_model[Field.TOKEN_WEIGHTS] = weights
        of_model[Field.WEIGHT_METRICS] = nested([packed_metrics(metrics)] * len(data[Field.ROW]))
        return outputs

    def prepare_model_outputs(self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any) -> Any:
        """verl's; the head's inputs of the micro-batch are kept on the way."""
        of_model = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        if self._head_inputs is not None:
            self._head_inputs.keep(micro_batch, output_args, self._gather_and_unpad_packed)
        return of_model

    def forward_step(self, micro_batch: Any, loss_function: Callable[..., Any] | None, forward_only: bool) -> Any:
        """verl's, with the method's loss in an update."""
        return super().forward_step(micro_batch, loss_function if forward_only else self._part_of_loss, forward_only)

    def forward_backward_batch(self, data: Any, loss_function: Callable[..., Any], forward_only: bool = False) -> Any:
        """verl's, with the update's learning rate, and after a pass for the log-probs if the loss couples rollouts."""
        if forward_only:
            return super().forward_backward_batch(data, loss_function, forward_only)
        current, step = current_run(), tensordict_utils.get(data, Field.STEP)
        self._update = self._update + 1 if step == self._step else 0
        self._step = step
        number = (step - 1) * current.run.training.updates_per_step + self._update
        rate = current.run.training.learning_rate_of(step - 1, number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        rollouts = self._ranks.gather(data["response_mask"], groups=data[Field.GROUP])
        self._loss = MiniBatchLoss(
            current.method,
            Normaliser.of(rollouts.mask, rollouts.joined("groups")),
            generator_for("loss", current.run.seed, number),
            tensordict_utils.get(data, Field.ENTROPY_COEFFICIENT),
        )
        metrics = {"learning_rate": rate}
        if current.method.loss.coupling != "rollout":
            metrics |= self._couple(data)
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
            f"{name.removeprefix(_OF_PEFT)}.weight": module
            for name, module in adapted.named_modules()
            if isinstance(module, LoraLayer)
            and not module.get_base_layer().weight.is_meta  # else they are sent by rank 0
        }
        draw(layers, current_run().run.seed, torch.device("cpu"))
        return adapted

    def save_checkpoint(self, local_path: str, *arguments: Any, **named: Any) -> None:
        """verl's, with the optimizer's constants beside it, and adapters whole in float32: its merger rounds them."""
        super().save_checkpoint(local_path, *arguments, **named)
        adapters = None if current_run().run.training.lora is None else self._adapters()
        if distributed.get_rank() != 0:
            return
        constants = self.optimizer.param_groups[0]
        of_optimizer = {"betas": list(constants.get("betas", ())), "epsilon": constants.get("eps")}
        if adapters is not None:
            save_file(adapters, Path(local_path) / ADAPTERS)
        write_json(Path(local_path) / OPTIMIZER, {"name": type(self.optimizer).__name__, **of_optimizer})

    def _adapters(self) -> dict[str, Tensor]:
        """What is trained beside weights that stay as they are, whole and under the local engine's names."""
        adapters = {}
        for name, weights in self.module.named_parameters():
            if weights.requires_grad:
                whole = weights.full_tensor() if isinstance(weights, DTensor) else weights
                adapters[name.removeprefix(_OF_PEFT).replace(".default.", ".")] = whole.detach().cpu().contiguous()
        return adapters

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

    def _weigh(self, data: Any, of_model: Any, hidden: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The weights [length] of each of this rank's responses, and the whole batch's metrics."""
        current, mask, device = current_run(), data["response_mask"], hidden.device
        rollouts = self._ranks.gather(
            mask,
            advantages=data[Field.ADVANTAGE],
            groups=data[Field.GROUP],
            mini_batches=data[Field.MINI_BATCH],
            tokens=data["responses"].values(),
            log_probs=response_from_nested(of_model["log_probs"], mask).values().float(),
            entropies=response_from_nested(of_model["entropy"], mask).values().float(),
        )
        if not bool((counted := mask.values().bool().cpu()).all()):  # no copy of all states where none is left out
            hidden = hidden[counted.nonzero()[:, 0].to(device)]
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
            share=self._ranks.share([int(part["mask"].sum()) for part in rollouts.parts]),
        )
        weights, metrics = current.method.weigh(batch)
        return rollouts.own(weights.float()), metrics

    def _part_of_loss(self, model_output: Any, data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Metric]]:
        """This micro-batch's part of the loss [], with the signature of verl's losses."""
        ranks, method = self.get_data_parallel_size(), self._loss.method
        of_model = {name: no_padding_2_padding(values, data) for name, values in model_output.items()}
        if method.loss.coupling != "rollout":
            parts = [(data[_GRADIENT + name].to_padded_tensor(0.0) * values).sum() for name, values in of_model.items()]
            return ranks * torch.stack(parts).sum(), {}
        given = {name: data[name].to_padded_tensor(0.0) for name in fields_of_tokens(method)}
        mask = data["response_mask"].to_padded_tensor(0).bool()
        value, means = self._loss(of_model, given, mask, data[Field.GROUP])
        metrics = {
            PREFIX + name: Metric(value=ranks * mean, aggregation=AggregationType.SUM) for name, mean in means.items()
        }
        return ranks * value, metrics

    def _couple(self, data: Any) -> dict[str, float]:
        """Put the derivatives with respect to this rank's log-probs and entropies into ``data``; the loss's metrics."""
        mask = data["response_mask"]
        with torch.no_grad():
            of_model = super().forward_backward_batch(data, None, forward_only=True)["model_output"]
        names = list(of_model)
        rollouts = self._ranks.gather(
            mask,
            groups=data[Field.GROUP],
            **{name: response_from_nested(of_model[name], mask).values().float() for name in names},
            **{name: data[name].values().float() for name in fields_of_tokens(self._loss.method)},
        )
        variables = {name: rollouts.padded(name).requires_grad_() for name in names}
        given = {name: rollouts.padded(name) for name in fields_of_tokens(self._loss.method)}
        value, metrics = self._loss(variables, given, rollouts.mask, rollouts.joined("groups"))
        for name, gradient in zip(names, torch.autograd.grad(value, list(variables.values())), strict=True):
            data[_GRADIENT + name] = rollouts.own(gradient)
        return {"loss": float(value.detach()), **metrics}

    def _now(self) -> float:
        """Seconds, once the device has done what it was told."""
        get_torch_device().synchronize()
        return time.monotonic()

    @property
    def _ranks(self) -> Ranks:
        """The data-parallel ranks."""
        number, count = self.get_data_parallel_rank(), self.get_data_parallel_size()
        device = torch.device(get_device_id())  # a number is that of an accelerator
        return Ranks(self.get_data_parallel_group(), number, count, device)
