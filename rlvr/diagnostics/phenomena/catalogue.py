"""Which claims there are: name -> module. The order is that of the table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rlvr.diagnostics.phenomena.sources import Phenomenon

CLAIMS = (
    "token_flipping",
    "coupling_kernel",
    "masking_effect",
    "output_layer_proxy",
    "cancellation_filter",
    "token_value",
    "delta_coefficients",
    "update_direction",
    "learning_tax",
)


def phenomenon(name: str) -> Phenomenon:
    """The module that looks at the claim ``name``."""
    return cast("Phenomenon", import_module(f"rlvr.diagnostics.phenomena.{name}"))
