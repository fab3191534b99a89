"""The floating-point type in which sums and ratios are computed."""

from __future__ import annotations

import torch
from torch import Tensor


def computation_type(values: Tensor) -> torch.dtype:
    """float32, or the type of ``values`` if that has more bits."""
    return torch.promote_types(values.dtype, torch.float32)


def at_least_float32(values: Tensor) -> Tensor:
    """``values`` in float32 if they have fewer bits, as they are otherwise."""
    return values.to(computation_type(values))
