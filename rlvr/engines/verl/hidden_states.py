"""Hidden states for the token weights: where those of a rollout batch go, and how they are seen in a forward pass.

They go into a device's memory, its node's, or nowhere, to be computed anew.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl import RESPONSE_FRACTION
from rlvr.engines.verl.registered import CurrentRun
from rlvr.methods.method import Method
from rlvr.methods.rollout_batch import RecomputedRows, Visit, in_parts


@dataclass(frozen=True)
class HiddenStateSize:
    """The size of a rollout batch's hidden states."""

    tokens: int  # response tokens of the device that has most of them
    width: int  # numbers of a token
    itemsize: int  # bytes of a number

    @property
    def of_device(self) -> int:
        """Bytes of one device's."""
        return self.tokens * self.width * self.itemsize

    def of_node(self, cluster: Cluster) -> int:
        """Bytes of all devices of a node; devices that share sequences keep their own copies."""
        return self.of_device * cluster.gpus_per_node

    def place(self, cluster: Cluster) -> Literal["device", "host", "recomputed"]:
        """The place that the two budgets of ``cluster``, in MiB, leave for them."""
        if self.of_device <= cluster.hidden_state_budget << 20:
            return "device"
        return "host" if self.of_node(cluster) <= cluster.hidden_state_host_budget << 20 else "recomputed"

    def description(self, cluster: Cluster) -> str:
        where = {
            "device": "kept in the device's memory",
            "host": "kept in host memory, copied to the device for each reading",
            "recomputed": "not kept: each reading of the token weights is another forward pass",
        }[self.place(cluster)]
        return (
            f"hidden states of {self.tokens} tokens a device, {self.of_device / 2**30:.3g} GiB "
            f"({self.of_node(cluster) / 2**30:.3g} GiB a node): {where}"
        )


def token_size(method: Method, hidden_size: int, dtype: str) -> tuple[int, int]:
    """Width and bytes a number of what ``method`` keeps of a token: its hidden state, or the sketch of it."""
    if method.sketch_dimensions is not None:
        return method.sketch_dimensions, torch.float32.itemsize
    return hidden_size, getattr(torch, dtype).itemsize


def hidden_state_size(
    run: VerlRun, cluster: Cluster, method: Method, config: Mapping[str, Any], fraction: float
) -> HiddenStateSize | None:
    """The size if every response has a ``fraction`` of the longest length; None where none are needed.

    ``config`` is the content of the model's config.json.
    """
    hidden_size = config.get("hidden_size")
    if not method.needs_hidden_states or not isinstance(hidden_size, int):
        return None
    rollouts = math.ceil(run.training.rollouts_per_step / cluster.data_parallel)
    tokens = round(rollouts * run.training.max_new_tokens * fraction)
    return HiddenStateSize(tokens, *token_size(method, hidden_size, run.dtype))


def hidden_state_places(run: VerlRun, cluster: Cluster, method: Method, config: Mapping[str, Any]) -> list[str]:
    """Say where hidden states go, at the mean length that the plan assumes and at the longest; nothing if not needed.

    ``config`` is the content of the model's config.json.
    """
    return [
        f"with responses of {share:.0%} of the longest, {size.description(cluster)}"
        for share in (RESPONSE_FRACTION, 1.0)
        if (size := hidden_state_size(run, cluster, method, config, share)) is not None
    ]


class HeadInputs:
    """Gives the vectors of this rank's n response tokens to ``visit``, by their places in the order of its rollouts.

    A method's sketch is taken of them on the way.
    """

    def __init__(self, spans: Mapping[int, tuple[int, int]], current: CurrentRun, visit: Visit) -> None:
        """Expect the rollouts whose places in the batch are the keys of ``spans``."""
        self._spans, self._current, self._visit = spans, current, visit
        self._seen: Tensor | None = None

    def see(self, _head: Any, inputs: tuple[Tensor, ...]) -> None:
        """The hook before the language-model head."""
        self._seen = inputs[0].detach()

    def packed(self, micro_batch: Any, output_args: Any, gather_and_unpad: Callable[..., Tensor]) -> Tensor:
        """The recorded vectors [tokens of the micro-batch's sequences, D], without padding."""
        seen, self._seen = self._seen, None
        if seen is None:
            raise RuntimeError("the language-model head was not called; fused kernels bypass it")
        if "pad_size" in output_args:
            return gather_and_unpad(seen.squeeze(0), output_args["pad_size"])
        lengths = micro_batch["input_ids"].offsets().diff().tolist()
        return torch.cat([sequence[:length] for sequence, length in zip(seen, lengths, strict=True)])

    def give(self, rows: Sequence[int], responses: Sequence[Tensor]) -> None:
        """Hand on the vectors [length, D] of the rollouts at ``rows``."""
        for row, vectors in zip(rows, responses, strict=True):
            # verl is in the middle of its forward pass, whose autocast would round every product of theirs to bfloat16.
            with torch.autocast(vectors.device.type, enabled=False):
                sketch = self._current.method.sketched(vectors, self._current.run.seed)
                self._visit(torch.arange(*self._spans[row]), sketch)


class KeptRows:
    """[n, D] in the model's precision, on its device or in host memory."""

    def __init__(self, tokens: int, in_host_memory: bool) -> None:
        """Make room for ``tokens`` rows once the first of them is there."""
        self._tokens, self._in_host_memory = tokens, in_host_memory
        self._kept: Tensor | None = None
        self._filled = 0

    def on(self, device: torch.device) -> Tensor | RecomputedRows:
        """Return all rows on ``device``; those in host memory are copied there in parts at every reading."""
        if self._kept is None or self._filled != self._tokens:
            raise RuntimeError(f"{self._filled} of {self._tokens} hidden states were kept")
        return self._kept if self._kept.device == device else in_parts(self._kept, device)

    def put(self, at: Tensor, rows: Tensor) -> None:
        """Keep rows [k, D] at consecutive places [k]."""
        if self._kept is None:
            device = torch.device("cpu") if self._in_host_memory else rows.device
            self._kept = rows.new_empty(self._tokens, rows.shape[1], device=device)
        self._kept[int(at[0]) : int(at[-1]) + 1] = rows
        self._filled += len(rows)


def spans_of(rows: Sequence[int], lengths: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Rollout -> where its tokens begin and end among this rank's; ``rows`` are places in the batch."""
    ends = list(accumulate(lengths))
    return {row: (end - length, end) for row, length, end in zip(rows, lengths, ends, strict=True)}


def response_rows(packed: Tensor, micro_batch: Any) -> list[Tensor]:
    """The rows of ``packed`` [tokens, D] that predict each response's tokens: those one place before them."""
    ends = micro_batch["input_ids"].offsets()[1:].tolist()
    lengths = micro_batch["responses"].offsets().diff().tolist()
    return [packed[end - length - 1 : end - 1] for end, length in zip(ends, lengths, strict=True)]
