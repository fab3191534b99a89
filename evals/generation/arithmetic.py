"""Arithmetic that gives the same bits on every x86-64 processor with AVX2, whoever made it.

torch's own kernels and oneDNN's are fixed by variables (:data:`evals.core.arithmetic.CODE_PATHS`). What torch leaves to
MKL is not: MKL asks who made the processor. Its one path for all of them, COMPATIBLE, does without AVX2, and its square
root begins with the processor's approximation, which is each maker's own. So here

- matrix products are OpenBLAS's, which numpy brings along: its kernels and its blocks are those of one named processor;
- square roots are numpy's, rounded correctly;
- exponentials and logarithms stay with MKL's compatible path.

The functions stand in for torch's own on a CPU, below automatic differentiation, so that no caller has to know.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from evals.core import arithmetic

if TYPE_CHECKING:
    from torch import Tensor

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt (malloc.h)


def set_up(threads: int, portable: bool = True) -> None:
    """Limit torch to ``threads``; take the ``portable`` code paths if neither torch nor numpy is imported yet."""
    # oneDNN computes bfloat16, and keeps kernels of 1,024 shapes, a megabyte each; nearly every pass has a new one.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    if portable:
        arithmetic.choose_code_paths()
    _import_torch()
    import torch

    if portable and arithmetic.in_use():
        _replace_functions()
    torch.set_num_threads(threads)
    # Let glibc give memory back beyond 256 MiB alone: a pass asks for as much as the one before; new pages are slow.
    for parameter, size in ((_TRIM_THRESHOLD, 1 << 28), (_MMAP_THRESHOLD, 1 << 25)):
        with suppress(OSError, AttributeError):  # another C library has no such function
            ctypes.CDLL(None).mallopt(parameter, size)


def _import_torch() -> None:
    """Import torch without looking for garbage among its objects, then or later: a tenth of a short job's time."""
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import torch  # noqa: F401

        gc.freeze()
    finally:
        gc.enable()


@cache
def _replace_functions() -> Any:
    """Put our functions in the place of torch's; they stay as long as the returned library is kept."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that kernels are replaced
        for name, function in _FUNCTIONS.items():
            library.impl(name, function, "CPU")
    # The fused attention calls MKL from inside; the plain one is made of the products above.
    torch.backends.cuda.enable_flash_sdp(False)
    return library


def _product(first: Tensor, second: Tensor) -> Tensor:
    """The product of [M, K] and [K, N], or of stacks of them, [B, M, K] and [B, K, N]."""
    import numpy as np
    import torch

    out = first.new_empty((*first.shape[:-1], second.shape[-1]))
    if not _is_numpys(first):
        multiply: Callable[..., Tensor] = torch.mm if first.ndim == 2 else torch.bmm
        return multiply(first, second, out=out)
    np.matmul(_as_array(first), _as_array(second), out=out.numpy())
    return out


def _as_array(matrices: Tensor) -> Any:
    """A view that OpenBLAS reads as it stands, or a copy: numpy multiplies any other layout number by number."""
    (rows, columns), (down, right) = matrices.shape[-2:], matrices.stride()[-2:]
    if not ((right == 1 and down >= columns) or (down == 1 and right >= rows)):
        matrices = matrices.contiguous()
    return matrices.detach().numpy()


def _add_product(added: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    out = _product(first, second)
    if alpha != 1:
        out.mul_(alpha)
    return out.add_(added, alpha=beta) if beta else out  # torch ignores what beta = 0 multiplies, NaN included


def _add_product_in_place(total: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta != 1:
        total = total.mul_(beta) if beta else total.zero_()
    return total.add_(_product(first, second), alpha=alpha)


def _root(values: Tensor) -> Tensor:
    return _root_in_place(values.clone()) if _is_numpys(values) else values.pow(0.5)


def _root_in_place(values: Tensor) -> Tensor:
    import numpy as np

    if not _is_numpys(values):
        return values.pow_(0.5)
    array = values.detach().numpy()
    with np.errstate(invalid="ignore"):  # of a negative number it is NaN, as torch has it
        np.sqrt(array, out=array)
    return values


def _is_numpys(values: Tensor) -> bool:
    """Return whether numpy computes with numbers of this type in the place of torch: float32 and float64."""
    import torch

    return values.dtype in (torch.float32, torch.float64)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "mm": _product,
    "bmm": _product,
    "addmm": _add_product,
    "baddbmm": _add_product,
    "addmm_": _add_product_in_place,
    "baddbmm_": _add_product_in_place,
    "mv": lambda matrix, vector: _product(matrix, vector[:, None])[:, 0],
    "dot": lambda first, second: _product(first[None], second[:, None])[0, 0],
    "sqrt": _root,
    "sqrt_": _root_in_place,
}
