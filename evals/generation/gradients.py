"""Sequences laid end to end without padding, and operations on them with gradients of their own.

The operations take fewer passes over memory than torch's. Shapes: B sequences, T the longest, N tokens that are
computed, K of them whose outputs are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")


def _normalised(values: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Values over their root mean square in the last dimension, and its reciprocal."""
    scale = values.square().mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()
    return values * scale, scale


class _Normalise(torch.autograd.Function):
    """:func:`_normalised` with a gradient of few passes over memory."""

    @staticmethod
    def forward(context: Any, values: Tensor, epsilon: float) -> Tensor:
        result, scale = _normalised(values, epsilon)
        context.save_for_backward(result, scale)
        return result

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        result, scale = context.saved_tensors
        along = (gradient * result).mean(dim=-1, keepdim=True)
        return torch.addcmul(gradient, result, along, value=-1).mul_(scale), None


class _Attend(torch.autograd.Function):
    """Causal attention of [B, R * T, E] over keys and values [B, T, E]: R query heads share them.

    Faster than ``scaled_dot_product_attention`` on short sequences, for which that is not made.
    """

    @staticmethod
    def forward(context: Any, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        length = keys.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=keys.device).triu(1)
        bias = keys.new_zeros(length, length).masked_fill_(future, float("-inf"))
        scores = query @ keys.transpose(1, 2)
        scores.view(-1, length, length).add_(bias)
        shares = torch.softmax(scores, dim=-1, out=scores)
        context.save_for_backward(query, keys, values, shares)
        return shares @ values

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, keys, values, shares = context.saved_tensors
        slope = torch._softmax_backward_data(gradient @ values.transpose(1, 2), shares, -1, shares.dtype)
        return slope @ keys, slope.transpose(1, 2) @ query, shares.transpose(1, 2) @ gradient


class _Spread(torch.autograd.Function):
    """Rows [N, ...] put at different places [N] among so many rows, the others zero."""

    @staticmethod
    def forward(context: Any, rows: Tensor, places: Tensor, count: int) -> Tensor:
        context.save_for_backward(places)
        return rows.new_zeros(count, *rows.shape[1:]).index_copy_(0, places, rows)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = context.saved_tensors
        return gradient.index_select(0, places), None, None


class _Pick(torch.autograd.Function):
    """The rows at different places [N]; a plain index has to add up gradients, as its places may repeat."""

    @staticmethod
    def forward(context: Any, rows: Tensor, places: Tensor) -> Tensor:
        context.save_for_backward(places)
        context.count = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = context.saved_tensors
        return gradient.new_zeros(context.count, *gradient.shape[1:]).index_copy_(0, places, gradient), None


def normalise(values: Tensor, epsilon: float) -> Tensor:
    """Values over their root mean square in the last dimension."""
    if not torch.is_grad_enabled():
        return _normalised(values, epsilon)[0]
    return cast("Tensor", _Normalise.apply(values, epsilon))  # type: ignore[no-untyped-call]


attend_causally: Callable[[Tensor, Tensor, Tensor], Tensor] = _Attend.apply
spread: Callable[[Tensor, Tensor, int], Tensor] = _Spread.apply
pick: Callable[[Tensor, Tensor], Tensor] = _Pick.apply


def computed_again(function: Callable[..., T], *inputs: Tensor) -> T:
    """``function`` of ``inputs``, of which nothing is kept for the gradient: it is computed again then.

    torch's checkpoint imports its compiler, which takes seconds; small models never call it.
    """
    from torch.utils.checkpoint import checkpoint

    return cast("T", checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False))


class Packing:
    """The places of the tokens: end to end for products and norms, [B, T] for attention.

    With ``share_prompts``, what several sequences begin with before their outputs are read is computed once, for in a
    causal model it is the same for all of them. Gradients of the copies add up, in another order than without it.
    """

    def __init__(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], device: torch.device, share_prompts: bool
    ) -> None:
        """Lay out ``sequences``; outputs are read from each one's start on."""
        self._shape = _, width = len(sequences), max(map(len, sequences))
        begun: dict[object, int] = {}  # a beginning -> the place of its first token
        tokens: list[int] = []
        positions: list[int] = []
        places: list[int] = []  # of a token's only or first copy in the grid
        sources: list[int] = []  # of each place in the grid; of padding, whose outputs nobody reads, any token
        read: list[int] = []
        for row, (sequence, start) in enumerate(zip(sequences, starts, strict=True)):
            key = tuple(sequence[: start + 1]) if share_prompts else row
            if key not in begun:
                begun[key] = len(tokens)
                tokens += sequence[: start + 1]
                positions += range(start + 1)
                places += range(row * width, row * width + start + 1)
            rest = len(tokens)
            tokens += sequence[start + 1 :]
            positions += range(start + 1, len(sequence))
            places += range(row * width + start + 1, row * width + len(sequence))
            sources += range(begun[key], begun[key] + start + 1)
            sources += [*range(rest, len(tokens)), *[0] * (width - len(sequence))]
            read += [begun[key] + start, *range(rest, len(tokens))]
        self.tokens, self.positions, self._places = (
            torch.tensor(values, device=device) for values in (tokens, positions, places)
        )
        kept, outputs = torch.unique(torch.tensor(read), return_inverse=True)
        self.kept = kept.to(device)  # places of the tokens whose outputs are read, [K]
        is_shared = len(begun) < len(sequences)
        self._sources = torch.tensor(sources, device=device) if is_shared else None
        self._outputs = outputs.to(device) if is_shared else None

    def padded(self, rows: Tensor) -> Tensor:
        """Values [N, ...] as [B, T, ...]."""
        if self._sources is None:
            copies = spread(rows, self._places, self._shape[0] * self._shape[1])
        else:
            copies = rows.index_select(0, self._sources)
        return copies.view(*self._shape, *rows.shape[1:])

    def packed(self, rows: Tensor) -> Tensor:
        """Values [B, T, ...] as [N, ...]."""
        return pick(rows.flatten(0, 1), self._places)

    def outputs(self, rows: Tensor) -> Tensor:
        """Values of the kept tokens [K, ...] for each sequence's positions from its start on, in order."""
        return rows if self._outputs is None else rows.index_select(0, self._outputs)
