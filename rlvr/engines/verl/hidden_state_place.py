"""Where the hidden states of a rollout batch go: a device's memory, its node's, or nowhere, to be computed anew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from evals.core.run_spec import Cluster, VerlRun
from rlvr.methods.method import Method

Place = Literal["device", "host", "recomputed"]


@dataclass(frozen=True)
class HiddenStateSize:
    """What they take.

    Attributes:
        tokens: response tokens of the device that has most of them.
        width: numbers of a token.
        itemsize: bytes of a number.
    """

    tokens: int
    width: int
    itemsize: int

    @property
    def of_device(self) -> int:
        """Bytes of one device's."""
        return self.tokens * self.width * self.itemsize

    def of_node(self, cluster: Cluster) -> int:
        """Bytes of all devices of a node; devices that share sequences keep their own copies."""
        return self.of_device * cluster.gpus_per_node

    def place(self, cluster: Cluster) -> Place:
        """Where they go, by the two budgets of ``cluster``, in MiB."""
        if self.of_device <= cluster.hidden_state_budget << 20:
            return "device"
        return "host" if self.of_node(cluster) <= cluster.hidden_state_host_budget << 20 else "recomputed"

    def told(self, cluster: Cluster) -> str:
        """One line."""
        where = {
            "device": "kept in the device's memory",
            "host": "kept in host memory",
            "recomputed": "not kept: each reading of the token weights is another forward pass",
        }[self.place(cluster)]
        return (
            f"hidden states of {self.tokens} tokens a device, {_gibibytes(self.of_device)} GiB "
            f"({_gibibytes(self.of_node(cluster))} GiB a node): {where}"
        )


def numbers_of_a_token(method: Method, hidden_size: int, dtype: str) -> tuple[int, int]:
    """Width and bytes a number of what ``method`` keeps of a token: its hidden state, or the sketch of it."""
    if method.sketch_dimensions is not None:
        return method.sketch_dimensions, torch.float32.itemsize
    return hidden_size, getattr(torch, dtype).itemsize


def longest(run: VerlRun, cluster: Cluster, method: Method, config: Mapping[str, Any]) -> HiddenStateSize | None:
    """The size if every response is as long as it may be; None for a method without need of them.

    Args:
        run: the run.
        cluster: where it is carried out.
        method: the run's.
        config: the model's config.json.
    """
    hidden_size = config.get("hidden_size")
    if not method.needs_hidden_states or not isinstance(hidden_size, int):
        return None
    rollouts = math.ceil(run.training.rollouts_per_step / cluster.data_parallel)
    width, itemsize = numbers_of_a_token(method, hidden_size, run.dtype)
    return HiddenStateSize(rollouts * run.training.max_new_tokens, width, itemsize)


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:.3g}"
