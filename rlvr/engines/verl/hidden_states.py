"""Hidden states for the token weights: the memory that they take, and how they are seen in a forward pass.

Those of a rollout batch stay in the memory of the device that computed them. A method that keeps sketches of them
(``sketched_delta``) takes the place of one whose hidden states do not fit.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.registered import CurrentRun
from rlvr.methods.method import Method


def hidden_state_bytes(run: VerlRun, cluster: Cluster, method: Method, config: Mapping[str, Any]) -> int:
    """Count the bytes that a device keeps if every response has the longest length; 0 if the method needs none.

    ``config`` is the content of the model's config.json.
    """
    if not method.needs_hidden_states:
        return 0
    tokens = -(-run.training.rollouts_per_step // cluster.data_parallel) * run.training.max_new_tokens
    if method.sketch_dimensions is not None:
        return tokens * method.sketch_dimensions * torch.float32.itemsize
    return tokens * int(config["hidden_size"]) * int(getattr(torch, run.dtype).itemsize)


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

    def packed(self, micro_batch: Any, output_args: Any, gather_and_unpad: Callable[..., Tensor]) -> Tensor:
        """The recorded vectors [tokens of the micro-batch's sequences, D], without padding."""
        seen, self._seen = self._seen, None
        if seen is None:
            raise RuntimeError("the language-model head was not called; fused kernels bypass it")
        if "pad_size" in output_args:
            return gather_and_unpad(seen.squeeze(0), output_args["pad_size"])
        lengths = micro_batch["input_ids"].offsets().diff().tolist()
        return torch.cat([sequence[:length] for sequence, length in zip(seen, lengths, strict=True)])

    def keep(self, rows: Sequence[int], responses: Sequence[Tensor]) -> None:
        """Keep the vectors [length, D] of the rollouts at ``rows``, or the method's sketches of them."""
        for row, vectors in zip(rows, responses, strict=True):
            # verl is in the middle of its forward pass, whose autocast would round every product of theirs to bfloat16.
            with torch.autocast(vectors.device.type, enabled=False):
                vectors = self._current.method.sketched(vectors, self._current.run.seed)
            if self._kept is None:
                self._kept = vectors.new_empty(self._tokens, vectors.shape[1])
            self._kept[self._spans.pop(row)] = vectors

    def joined(self) -> Tensor:
        """All vectors [tokens of this rank's responses, D], in the order of the rank's rollouts."""
        if self._kept is None or self._spans:
            raise RuntimeError(f"hidden states of {len(self._spans)} rollouts were not seen")
        return self._kept


def response_rows(packed: Tensor, micro_batch: Any) -> list[Tensor]:
    """The rows of ``packed`` [tokens, D] that predict each response's tokens: those one place before them."""
    ends = micro_batch["input_ids"].offsets()[1:].tolist()
    lengths = micro_batch["responses"].offsets().diff().tolist()
    return [packed[end - length - 1 : end - 1] for end, length in zip(ends, lengths, strict=True)]
