"""Hidden states for the token weights: how they are seen in a forward pass.

Those of a rollout batch stay in the memory of the device that computed them. A method that keeps sketches of them
(``sketched_delta``) takes the place of one whose hidden states do not fit.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rlvr.engines.verl.registered import CurrentRun, Field


class HeadInputs:
    """The inputs of the language-model head at response tokens, in the passes over one rank's rollouts."""

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
