"""The loss of a data-parallel rank: its part of a batch, what its own passes see, what it exchanges with the others.

The method's loss of one optimizer step is what verl's engine has in place of verl's own. A worker is handed one
micro-batch at a time. The normaliser is that of the mini-batch over all ranks, so that parts add up to the mini-batch's
loss. Nothing here imports verl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr.engines.verl.registered import CurrentRun, Field, nested
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.assignments import balanced_shares
from rlvr.methods.loss_terms import LossTerm
from rlvr.methods.losses.base import Tokens
from rlvr.methods.method import Method
from rlvr.methods.rollout_batch import RowShare


def rank_layout(mini_batches: Sequence[Tensor], lengths: Tensor, ranks: int) -> Tensor:
    """The order [B] of rollouts by rank, then by mini-batch; the ranks' tokens are balanced within each of these.

    verl gives every rank a contiguous share of the batch, which the rank slices into mini-batches of one size.
    """
    sizes = sorted({part.numel() for part in mini_batches})
    if len(sizes) != 1 or sizes[0] % ranks:
        raise ValueError(f"mini-batches have {sizes} rollouts; accepted: one size that {ranks} ranks divide")
    shares = [[part[shard] for shard in balanced_shares(lengths[part], ranks)] for part in mini_batches]
    return torch.cat([of_rank[rank] for rank in range(ranks) for of_rank in shares])


def whole_groups_fraction(ids: Tensor, groups: Tensor) -> float:
    """Part of the prompts whose rollouts all share a mini-batch."""
    whole: list[bool] = [ids[groups == group].unique().numel() == 1 for group in groups.unique()]
    return sum(whole) / len(whole)


class HeadInputs:
    """The inputs of the language-model head at response tokens, in the passes over one rank's rollouts.

    They stay in the memory of the device that computed them. A method that keeps sketches of them (``sketched_delta``)
    takes the place of one whose hidden states do not fit.
    """

    def __init__(self, rows: Sequence[int], lengths: Sequence[int], current: CurrentRun) -> None:
        """Expect the rollouts at ``rows``, places in the batch, with so many response tokens each."""
        ends = list(accumulate(lengths))
        self._spans = {row: slice(end - length, end) for row, length, end in zip(rows, lengths, ends, strict=True)}
        self._tokens, self._current = ends[-1], current
        self._seen: Tensor | None = None
        self._kept: Tensor | None = None

    def see(self, _head: Any, inputs: tuple[Tensor, ...]) -> None:
        """The hook before the language-model head."""
        self._seen = inputs[0].detach()

    def keep(self, micro_batch: Any, output_args: Any, gather_and_unpad: Callable[..., Tensor]) -> None:
        """Keep the vectors that predict the micro-batch's responses, or the method's sketches of them."""
        seen, self._seen = self._seen, None
        if seen is None:
            raise RuntimeError("the language-model head was not called; fused kernels bypass it")
        bounds, lengths = micro_batch["input_ids"].offsets(), micro_batch["responses"].offsets().diff().tolist()
        if "pad_size" in output_args:
            packed = gather_and_unpad(seen.squeeze(0), output_args["pad_size"])
        else:
            packed = torch.cat([row[:length] for row, length in zip(seen, bounds.diff().tolist(), strict=True)])
        for row, end, length in zip(micro_batch[Field.ROW].tolist(), bounds[1:].tolist(), lengths, strict=True):
            # verl is in the middle of its forward pass, whose autocast would round every product of theirs to bfloat16.
            with torch.autocast(packed.device.type, enabled=False):
                before = packed[end - length - 1 : end - 1]  # one place before the tokens that they predict
                vectors = self._current.method.sketched(before, self._current.run.seed)
            if self._kept is None:
                self._kept = vectors.new_empty(self._tokens, vectors.shape[1])
            self._kept[self._spans.pop(row)] = vectors

    def joined(self) -> Tensor:
        """All vectors [tokens of this rank's responses, D], in the order of the rank's rollouts."""
        if self._kept is None or self._spans:
            raise RuntimeError(f"hidden states of {len(self._spans)} rollouts were not seen")
        return self._kept


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
    """The data-parallel ranks, as one of them sees them."""

    group: Any  # their process group
    number: int  # of this one
    count: int  # of all
    device: torch.device  # the one whose tensors the group exchanges

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


def fields_of_tokens(method: Method) -> list[str]:
    """Verl's names of what the method's loss needs of each token beside the current policy's numbers."""
    sampler = ["rollout_log_probs"] if method.correction is not None else []
    reference = ["ref_log_prob"] if isinstance(method.kl, LossTerm) else []
    return ["old_log_probs", "advantages", *sampler, *reference]


@dataclass(frozen=True)
class MiniBatchLoss:
    """The loss of one mini-batch."""

    method: Method
    normaliser: Normaliser  # of the mini-batch, over all ranks
    generator: torch.Generator  # the optimizer step's own
    entropy_coefficient: float  # of the method's entropy bonus

    def __call__(
        self, current: Mapping[str, Tensor], given: Mapping[str, Tensor], mask: Tensor, groups: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Compute the part [] of some rollouts in the loss, and in the means of metrics over the mini-batch's tokens.

        Args:
            current: ``log_probs`` and, with an entropy bonus, ``entropy`` of the current policy; [B, T] each.
            given: the :func:`fields_of_tokens`, [B, T] each; advantages with their token weights.
            mask: [B, T] bool.
            groups: [B], the prompt of each rollout.
        """
        tokens = Tokens(
            current["log_probs"],
            given["old_log_probs"],
            given["advantages"],
            mask,
            groups,
            self.generator,
            given_sampler_log_probs=given.get("rollout_log_probs"),
            given_reference_log_probs=given.get("ref_log_prob"),
            given_entropies=current.get("entropy"),
            entropy_coefficient=self.entropy_coefficient,
        )
        values, metrics = self.method.token_loss(tokens)
        count = max(1, self.normaliser.tokens)
        means = {name: float(tensor.detach().masked_fill(~mask, 0.0).sum()) / count for name, tensor in metrics.items()}
        return self.method.aggregation(values, mask, self.normaliser, groups), means
