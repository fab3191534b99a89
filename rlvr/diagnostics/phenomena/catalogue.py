"""Which claims there are: name -> module. The order is that of the table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from evals.core.errors import UserError

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


OF_CHECKPOINTS = {"token_flipping": "checkpoint_flipping", "update_direction": "checkpoint_direction"}
"""Claim that two checkpoints and responses are enough for -> module."""


def phenomenon(name: str) -> Phenomenon:
    """The module that looks at the claim ``name`` in replayed runs."""
    return cast("Phenomenon", import_module(f"rlvr.diagnostics.phenomena.{name}"))


def phenomenon_of_checkpoints(name: str) -> Phenomenon:
    """The module that looks at the claim ``name`` in a comparison of two checkpoints.

    Raises:
        UserError: it needs more than that.
    """
    if name not in OF_CHECKPOINTS:
        raise UserError(
            f"--comparison: {name} cannot be measured on it; accepted: {' and '.join(OF_CHECKPOINTS)}. The others need "
            "a run's own steps (--tables): gradients, optimizer updates, new samples, or metrics over training"
        )
    return cast("Phenomenon", import_module(f"rlvr.diagnostics.phenomena.{OF_CHECKPOINTS[name]}"))
