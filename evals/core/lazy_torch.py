"""The module torch, loaded at its first use.

A module that takes ``torch`` from here can be imported without it, as planning does to see which components exist.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:  # no importlib.util.LazyLoader: others take torch in sys.modules for loaded
        def __getattr__(self, name):
            import torch

            return getattr(torch, name)

    torch = _Torch()
