"""The inputs of the language-model head at this rank's response tokens, kept while the old log-probs are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rlvr.engines.local.hidden_states import projection
from rlvr.engines.local.rollout import generator_for
from rlvr.engines.verl.this_run import ThisRun


class HeadInputs:
    """[n, D] of this rank's n response tokens, in the order of its rollouts, whatever order they are computed in.

    They stay in the model's precision and on its device up to the cluster's budget, beyond it in host memory.
    """

    def __init__(self, rows: Sequence[int], lengths: Sequence[int], ours: ThisRun) -> None:
        """Expect the rollouts at places ``rows`` of the batch, with responses of ``lengths`` tokens."""
        starts = list(accumulate(lengths, initial=0))
        self._span = {row: (start, stop) for row, start, stop in zip(rows, starts, starts[1:], strict=False)}
        self._tokens = starts[-1]
        self._ours = ours
        self._seen: Tensor | None = None
        self._kept: Tensor | None = None
        self._filled = 0

    @property
    def rows(self) -> Tensor:
        """All of them.

        Raises:
            RuntimeError: some rollouts were never computed.
        """
        if self._kept is None or self._filled != self._tokens:
            raise RuntimeError(f"{self._filled} of {self._tokens} hidden states were kept")
        return self._kept

    def see(self, _head: Any, inputs: tuple[Tensor, ...]) -> None:
        """The hook before the language-model head."""
        self._seen = inputs[0].detach()

    def packed(self, micro_batch: Any, output_args: Any, gather_and_unpad: Callable[..., Tensor]) -> Tensor:
        """What was seen as [tokens of the micro-batch's sequences, D], without padding."""
        seen, self._seen = self._seen, None
        if seen is None:
            raise RuntimeError("the language-model head was not called; fused kernels bypass it")
        if "pad_size" in output_args:
            return gather_and_unpad(seen.squeeze(0), output_args["pad_size"])
        lengths = micro_batch["input_ids"].offsets().diff().tolist()
        return torch.cat([sequence[:length] for sequence, length in zip(seen, lengths, strict=True)])

    def keep(self, rows: Sequence[int], responses: Sequence[Tensor]) -> None:
        """Keep the vectors [length, D] of the rollouts at ``rows``."""
        for row, vectors in zip(rows, responses, strict=True):
            vectors = self._sketched(vectors)
            if self._kept is None:
                self._kept = self._room(vectors)
            start, stop = self._span[row]
            self._kept[start:stop] = vectors
            self._filled += stop - start

    def _room(self, like: Tensor) -> Tensor:
        """An empty [n, D] on the device or, if that is over the budget, in host memory."""
        size = self._tokens * like.shape[1] * like.element_size()
        spilled = size > self._ours.cluster.hidden_state_budget << 20
        if spilled and like.device.type != "cpu":
            print(f"hidden states of {self._tokens} tokens, {size >> 20} MiB, are kept in host memory", flush=True)
        return like.new_empty(self._tokens, like.shape[1], device="cpu" if spilled else like.device)

    def _sketched(self, vectors: Tensor) -> Tensor:
        """The vectors, or their random projection, the same one throughout the run."""
        dimensions = self._ours.method.sketch_dimensions
        if dimensions is None:
            return vectors
        matrix = projection(vectors.shape[1], dimensions, generator_for("sketch", self._ours.run.seed))
        return vectors.float() @ matrix.to(vectors.device)


def response_rows(packed: Tensor, micro_batch: Any) -> list[Tensor]:
    """The rows of ``packed`` [tokens, D] that predict each response's tokens: those one place before them."""
    ends = micro_batch["input_ids"].offsets()[1:].tolist()
    lengths = micro_batch["responses"].offsets().diff().tolist()
    return [packed[end - length - 1 : end - 1] for end, length in zip(ends, lengths, strict=True)]
