"""Operations on packed tokens with gradients of their own, of fewer passes over memory than torch's."""

from __future__ import annotations

from collections.abc import Callable
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


def attend_causally(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """See :class:`_Attend`."""
    return cast("Tensor", _Attend.apply(query, keys, values))  # type: ignore[no-untyped-call]


def spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """See :class:`_Spread`."""
    return cast("Tensor", _Spread.apply(rows, places, count))  # type: ignore[no-untyped-call]


def pick(rows: Tensor, places: Tensor) -> Tensor:
    """See :class:`_Pick`."""
    return cast("Tensor", _Pick.apply(rows, places))  # type: ignore[no-untyped-call]


def computed_again(function: Callable[..., T], *inputs: Tensor) -> T:
    """``function`` of ``inputs``, of which nothing is kept for the gradient: it is computed again then.

    torch's checkpoint imports its compiler, which takes seconds; small models never call it.
    """
    from torch.utils.checkpoint import checkpoint

    return cast("T", checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False))
