"""Mini-batches of unequal sizes: verl's workers slice equal ones, so they are handed all of them as one, cut here.

Every rank has as many rollouts of the batch, and of each mini-batch as many as any other or one fewer (layout.py). A
rank that has none of a small one takes part with a rollout whose mask is empty, because all ranks have to do as many
forward passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor
from verl.utils import tensordict_utils
from verl.utils.metric import AggregationType, Metric

from rlvr.engines.verl.worker_fields import MINI_BATCH

_MASKS = ("response_mask", "loss_mask")


def mini_batch(data: Any, number: int, sizes: Tensor) -> Any:
    """This rank's part of a mini-batch.

    Args:
        data: this rank's rollouts.
        number: of the mini-batch.
        sizes: [U] rollouts of each mini-batch on all ranks together.
    """
    own = (data[MINI_BATCH] == number).nonzero()[:, 0]
    part = tensordict_utils.index_select_tensor_dict(data, own if len(own) else torch.tensor([0]))
    if not len(own):
        for name in _MASKS:
            part[name] = torch.nested.as_nested_tensor([row * 0 for row in part[name].unbind()], layout=torch.jagged)
    tensordict_utils.assign_non_tensor(part, global_batch_size=int(sizes[number]))
    return part


def sizes_of_mini_batches(data: Any, updates: int, device: torch.device, group: Any) -> Tensor:
    """[U] rollouts of each mini-batch of ``data``, all ranks of the data-parallel ``group`` together."""
    sizes = torch.bincount(data[MINI_BATCH].cpu(), minlength=updates).to(device)
    distributed.all_reduce(sizes, group=group)
    return sizes.cpu()


def joined(outputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What verl's engine returns of one mini-batch, of several: every metric is their mean, as verl takes it."""
    metrics: dict[str, Any] = {}
    for name in outputs[0]["metrics"]:
        metrics[name] = _mean([output["metrics"][name] for output in outputs])
    losses = [value / len(outputs) for output in outputs for value in output["loss"]]  # verl adds these up
    return {"model_output": {}, "loss": losses, "metrics": metrics}


def _mean(values: Sequence[Any]) -> Any:
    """The mean, left to verl where it has not put ranks and micro-batches together yet."""
    first = values[0]
    if isinstance(first, Metric):
        every = [each for value in values for each in value.values]
        if first.aggregation is AggregationType.SUM:
            every = [each / len(values) for each in every]
        mean = Metric(first.aggregation)
        mean.extend(every)
        return mean
    if isinstance(first, list):
        return [each for value in values for each in value]
    return sum(values) / len(values)
