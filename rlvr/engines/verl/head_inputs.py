"""The inputs of the language-model head at this rank's response tokens, seen while the model scores them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from evals.core.random import generator_for, random_projection
from rlvr.engines.verl.this_run import ThisRun
from rlvr.methods.recomputed_rows import Visit


class HeadInputs:
    """Gives the vectors of this rank's n response tokens to ``visit``, by their places in the order of its rollouts.

    A method's sketch is taken of them on the way.
    """

    def __init__(self, spans: Mapping[int, tuple[int, int]], ours: ThisRun, visit: Visit) -> None:
        """Expect the rollouts whose places in the batch are the keys of ``spans``."""
        self._spans = spans
        self._ours = ours
        self._visit = visit
        self._seen: Tensor | None = None

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

    def give(self, rows: Sequence[int], responses: Sequence[Tensor]) -> None:
        """Hand on the vectors [length, D] of the rollouts at ``rows``."""
        for row, vectors in zip(rows, responses, strict=True):
            # verl is in the middle of its forward pass, whose autocast would round every product of theirs to bfloat16.
            with torch.autocast(vectors.device.type, enabled=False):
                self._visit(torch.arange(*self._spans[row]), self._sketched(vectors))

    def _sketched(self, vectors: Tensor) -> Tensor:
        """The vectors, or their random projection, the same one throughout the run."""
        dimensions = self._ours.method.sketch_dimensions
        if dimensions is None:
            return vectors
        matrix = random_projection(vectors.shape[1], dimensions, generator_for("sketch", self._ours.run.seed))
        return vectors.float() @ matrix.to(vectors.device)


class KeptRows:
    """[n, D] in the model's precision, on its device or in host memory."""

    def __init__(self, tokens: int, in_host_memory: bool) -> None:
        """Make room for ``tokens`` rows once the first of them is there."""
        self._tokens = tokens
        self._in_host_memory = in_host_memory
        self._kept: Tensor | None = None
        self._filled = 0

    @property
    def rows(self) -> Tensor:
        """All of them.

        Raises:
            RuntimeError: some were never given.
        """
        if self._kept is None or self._filled != self._tokens:
            raise RuntimeError(f"{self._filled} of {self._tokens} hidden states were kept")
        return self._kept

    def put(self, at: Tensor, rows: Tensor) -> None:
        """Keep rows [k, D] at consecutive places [k]."""
        if self._kept is None:
            device = torch.device("cpu") if self._in_host_memory else rows.device
            self._kept = rows.new_empty(self._tokens, rows.shape[1], device=device)
        self._kept[int(at[0]) : int(at[-1]) + 1] = rows
        self._filled += len(rows)


def spans_of(rows: Sequence[int], lengths: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Where the tokens of the rollouts at places ``rows`` of the batch begin and end among this rank's tokens."""
    starts = list(accumulate(lengths, initial=0))
    return {row: (start, stop) for row, start, stop in zip(rows, starts, starts[1:], strict=False)}


def response_rows(packed: Tensor, micro_batch: Any) -> list[Tensor]:
    """The rows of ``packed`` [tokens, D] that predict each response's tokens: those one place before them."""
    ends = micro_batch["input_ids"].offsets()[1:].tolist()
    lengths = micro_batch["responses"].offsets().diff().tolist()
    return [packed[end - length - 1 : end - 1] for end, length in zip(ends, lengths, strict=True)]
