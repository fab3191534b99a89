"""What data-parallel ranks exchange to see the whole batch: its rollouts' values, and sums over its tokens.

Nothing here imports verl.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr.engines.verl.registered import nested
from rlvr.methods.rollout_batch import RowShare


@dataclass(frozen=True)
class AllRollouts:
    """Values of the rollouts of all data-parallel ranks, on the CPU, in the ranks' order."""

    parts: list[dict[str, Tensor]]
    rank: int

    def joined(self, name: str) -> Tensor:
        """[B] of the rollouts, or [N] of their tokens."""
        return torch.cat([part[name] for part in self.parts])

    def padded(self, name: str) -> Tensor:
        """[B, T] of the tokens."""
        return pad_sequence(list(self.joined(name).split(self.joined("lengths").tolist())), batch_first=True)

    @property
    def mask(self) -> Tensor:
        """[B, T] bool, true at the tokens of rollouts that are not left out."""
        return self.padded("mask")

    def own(self, values: Tensor) -> Tensor:
        """The rows of ``values`` [B, T] that are this rank's, without padding."""
        sizes, lengths = [len(part["lengths"]) for part in self.parts], self.parts[self.rank]["lengths"].tolist()
        rows = values.split(sizes)[self.rank]
        return nested([row[:length] for row, length in zip(rows, lengths, strict=True)])


@dataclass(frozen=True)
class Ranks:
    """The data-parallel ranks, as one of them sees them.

    Attributes:
        group: their process group.
        number: of this one.
        count: of all.
        device: the one whose tensors the group exchanges.
    """

    group: Any
    number: int
    count: int
    device: torch.device

    def gather(self, mask: Any, **values: Tensor) -> AllRollouts:
        """Join values of this rank's rollouts, or of their tokens, with those of the others; ``mask`` is ragged."""
        of_mask = {"lengths": mask.offsets().diff(), "mask": mask.values().bool()}
        here = {name: tensor.cpu() for name, tensor in {**of_mask, **values}.items()}
        parts: list[Any] = [here] * self.count
        if self.count > 1:
            distributed.all_gather_object(parts, here, group=self.group)
        return AllRollouts(parts, self.number)

    def share(self, tokens: list[int]) -> RowShare | None:
        """This rank's tokens among all, given every rank's number of them; None if it is the only rank."""
        if len(tokens) == 1:
            return None

        def total(values: Tensor) -> Tensor:
            summed = values.to(self.device)
            distributed.all_reduce(summed, group=self.group)
            return summed.to(values.device)

        def gather(values: Tensor) -> Tensor:
            counts = [0] * len(tokens)
            distributed.all_gather_object(counts, len(values), group=self.group)
            padded = values.new_zeros(max(counts), *values.shape[1:], device=self.device)
            padded[: len(values)] = values.to(padded.device)
            parts = [torch.empty_like(padded) for _ in counts]
            distributed.all_gather(parts, padded, group=self.group)
            return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]).to(values.device)

        start = sum(tokens[: self.number])
        return RowShare(start, start + tokens[self.number], total, gather)
