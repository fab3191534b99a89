"""The places of rollouts in a batch, so that verl's workers slice the mini-batches that the method asks for.

verl gives every data-parallel rank a contiguous share of the batch, and each rank slices its share into mini-batches of
one size. So the batch is ordered by rank, then by mini-batch. Mini-batches whose sizes differ are one to verl, and
the engine cuts it: every rank has as many rollouts of the batch, and of each mini-batch as many as any other or one
fewer. A rank that has none of a small one takes part with a rollout whose mask is empty, because all ranks have to do
as many forward passes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlvr.engines.verl.registered import Field, nested
from rlvr.methods.assignments import balanced_shares
from rlvr.methods.method import Method


def lay_out(method: Method, mini_batches: Sequence[Tensor], lengths: Tensor, ranks: int) -> Tensor:
    """The order [B] in which the rollouts have to stand for the method's mini-batches; lengths [B] are in tokens."""
    in_order = rank_layout if method.assignment.equal_sizes else dealt_layout
    return in_order(mini_batches, lengths, ranks)


def rank_layout(mini_batches: Sequence[Tensor], lengths: Tensor, ranks: int) -> Tensor:
    """The order [B] for mini-batches of one size; the ranks' tokens are balanced within each of them."""
    sizes = sorted({part.numel() for part in mini_batches})
    if len(sizes) != 1 or sizes[0] % ranks:
        raise ValueError(f"mini-batches have {sizes} rollouts; accepted: one size that {ranks} ranks divide")
    shares = [[part[shard] for shard in balanced_shares(lengths[part], ranks)] for part in mini_batches]
    return torch.cat([of_rank[rank] for rank in range(ranks) for of_rank in shares])


def dealt_layout(mini_batches: Sequence[Tensor], lengths: Tensor, ranks: int) -> Tensor:
    """The order [B] for mini-batches of any sizes: dealt to the ranks one by one, the longest of each first."""
    dealt = torch.cat([part[lengths[part].argsort(descending=True, stable=True)] for part in mini_batches])
    if len(dealt) % ranks:
        raise ValueError(f"the batch has {len(dealt)} rollouts; accepted: a multiple of the {ranks} ranks")
    return dealt.view(-1, ranks).T.flatten()


def whole_groups_fraction(ids: Tensor, groups: Tensor) -> float:
    """Part of the prompts whose rollouts all share a mini-batch."""
    whole: list[bool] = [ids[groups == group].unique().numel() == 1 for group in groups.unique()]
    return sum(whole) / len(whole)


def prompt_of(key: str) -> str:
    """The prompt in verl's name of a rollout, ``{prompt}_{number}_{part}``."""
    return key.rsplit("_", 2)[0]


def rollout_number(key: str) -> int:
    """The number of the rollout in its prompt's group, from verl's name of it."""
    return int(key.rsplit("_", 2)[1])


def truncations(extra_fields: Iterable[Any]) -> Tensor:
    """[B] bool, which rollouts were cut off at the longest length; from what the reward manager said beside rewards."""
    plain = [getattr(fields, "data", fields) for fields in extra_fields]  # tensordict wraps them or not
    return torch.tensor([bool(fields["reward_extra_info"]["truncated"]) for fields in plain])


def cut_mini_batch(data: Any, number: int, size: int) -> Any:
    """The part of a mini-batch that this rank has of its rollouts ``data``; all ranks together have ``size`` of it."""
    from verl.utils import tensordict_utils

    own = (data[Field.MINI_BATCH] == number).nonzero()[:, 0]
    part = tensordict_utils.index_select_tensor_dict(data, own if len(own) else torch.tensor([0]))
    if not len(own):
        for name in ("response_mask", "loss_mask"):
            part[name] = nested([row * 0 for row in part[name].unbind()])
    tensordict_utils.assign_non_tensor(part, global_batch_size=size)
    return part


def joined_outputs(outputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The outputs of verl's engine for several mini-batches as one: every metric is their mean, as verl takes it."""
    metrics = {name: _mean([output["metrics"][name] for output in outputs]) for name in outputs[0]["metrics"]}
    losses = [value / len(outputs) for output in outputs for value in output["loss"]]  # verl adds these up
    return {"model_output": {}, "loss": losses, "metrics": metrics}


def _mean(values: Sequence[Any]) -> Any:
    """The mean, left to verl where it has not put ranks and micro-batches together yet."""
    from verl.utils.metric import AggregationType, Metric

    first = values[0]
    if isinstance(first, Metric):
        parts = len(values) if first.aggregation is AggregationType.SUM else 1
        mean = Metric(first.aggregation)
        mean.extend([each / parts for value in values for each in value.values])
        return mean
    if isinstance(first, list):
        return [each for value in values for each in value]
    return sum(values) / len(values)
