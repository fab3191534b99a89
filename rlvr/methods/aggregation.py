"""From token losses to the loss of an optimizer mini-batch, exactly, however it is cut into micro-batches.

The normaliser is that of the whole mini-batch, so the micro-batches' values (and gradients) add up to the
mini-batch's. Averaging per-micro-batch means instead, as older trainers do, gives tokens of short micro-batches more
weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from rlvr.methods.hyper_parameter import hyper_parameter

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@dataclass(frozen=True)
class Normaliser:
    """What one optimizer mini-batch is divided by.

    Attributes:
        tokens: response tokens in the mini-batch.
        sequences: responses in it with at least one token.
        constant: the length that seq-mean-token-sum-norm divides by; None in the other modes.
    """

    tokens: int
    sequences: int
    constant: float | None = None

    @classmethod
    def of(cls, response_mask: Tensor, constant: float | None = None) -> Normaliser:
        """Count the whole mini-batch's ``response_mask`` [B, T]."""
        lengths = response_mask.sum(dim=1)
        return cls(int(lengths.sum()), int((lengths > 0).sum()), constant)


def aggregation_field(default: Aggregation) -> Any:
    """The field ``aggregation`` of a loss."""
    return hyper_parameter(default, "how token losses become the loss of a mini-batch")


def aggregation_constant_field() -> Any:
    """The field ``aggregation_constant`` of a loss."""
    return hyper_parameter(
        None,
        "length in tokens that seq-mean-token-sum-norm divides by, such as the longest response allowed",
        above=0.0,
    )


def check_aggregation(loss: Any) -> None:
    """Check that ``loss`` has a constant exactly if its aggregation divides by one.

    Raises:
        ValueError: it has one too many or lacks it.
    """
    if (loss.aggregation == "seq-mean-token-sum-norm") != (loss.aggregation_constant is not None):
        raise ValueError(
            f"{type(loss).__name__}.aggregation_constant is {loss.aggregation_constant!r} with {loss.aggregation}; "
            "accepted: a number with seq-mean-token-sum-norm, null with every other aggregation"
        )


def aggregate(token_loss: Tensor, response_mask: Tensor, mode: Aggregation, normaliser: Normaliser) -> Tensor:
    """Contribution [] of a micro-batch to the loss of its mini-batch.

    With x the token loss, m the mask, N and S the mini-batch's tokens and sequences, L the constant:
    token-mean is sum(m x) / N; seq-mean-token-mean is (1/S) sum_i (1/|y_i|) sum_t m x; seq-mean-token-sum is
    (1/S) sum(m x); seq-mean-token-sum-norm is (1/(S L)) sum(m x). A response without tokens adds nothing, and a
    mini-batch without tokens has loss 0.

    Args:
        token_loss: [B, T]; padded positions are ignored, whatever they hold.
        response_mask: [B, T] bool.
        mode: one of the four.
        normaliser: of the whole mini-batch, see :meth:`Normaliser.of`.

    Raises:
        ValueError: seq-mean-token-sum-norm without a constant in the normaliser.
    """
    masked = token_loss.masked_fill(~response_mask, 0.0)
    sequences = max(normaliser.sequences, 1)
    if mode == "token-mean":
        return masked.sum() / max(normaliser.tokens, 1)
    if mode == "seq-mean-token-mean":
        lengths = response_mask.sum(dim=1).clamp(min=1)
        return (masked.sum(dim=1) / lengths).sum() / sequences
    if mode == "seq-mean-token-sum":
        return masked.sum() / sequences
    if normaliser.constant is None:
        raise ValueError("seq-mean-token-sum-norm needs the constant length in its normaliser")
    return masked.sum() / (sequences * normaliser.constant)
