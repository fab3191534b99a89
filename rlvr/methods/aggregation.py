"""Aggregate token losses to a mini-batch's loss, exactly, for any split into micro-batches.

The normaliser is that of the whole mini-batch, so the micro-batches' values and gradients add up to the mini-batch's.
Averaging the means of micro-batches instead, as older trainers do, gives tokens of short micro-batches more weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from evals.core.record import Record
from rlvr.methods.parameters import hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor

Mode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@dataclass(frozen=True)
class Normaliser:
    """The counts that the loss of one optimizer mini-batch is divided by."""

    tokens: int  # response tokens in the mini-batch
    sequences: int  # responses in it with at least one token

    @classmethod
    def of(cls, response_mask: Tensor) -> Normaliser:
        """Count the whole mini-batch's ``response_mask`` [B, T]."""
        lengths = response_mask.sum(dim=1)
        return cls(int(lengths.sum()), int((lengths > 0).sum()))


@dataclass(frozen=True)
class Aggregation:
    """The way token losses become the loss of a mini-batch.

    With x the token loss, m the mask, N and S the mini-batch's tokens and sequences, L the constant:
    token-mean is sum(m x) / N; seq-mean-token-mean is (1/S) sum_i (1/|y_i|) sum_t m x; seq-mean-token-sum is
    (1/S) sum(m x); seq-mean-token-sum-norm is (1/(S L)) sum(m x). A response without tokens adds nothing, and a
    mini-batch without tokens has loss 0.

    ``aggregation`` and ``aggregation_constant`` are the spelling of mode and constant in a catalogue entry.
    """

    mode: Mode = hyper_parameter("token-mean", "how token losses become the loss of a mini-batch")
    constant: float | None = hyper_parameter(
        None, "tokens that seq-mean-token-sum-norm divides by; null: the longest response of the training", above=0.0
    )

    def __post_init__(self) -> None:
        """Raise ValueError for a constant that the mode does not use, or that it lacks."""
        if (self.mode == "seq-mean-token-sum-norm") != (self.constant is not None):
            raise ValueError(
                f"aggregation_constant is {self.constant!r} with {self.mode}; "
                "accepted: a number with seq-mean-token-sum-norm, null with every other aggregation"
            )

    def __call__(self, token_loss: Tensor, response_mask: Tensor, normaliser: Normaliser) -> Tensor:
        """Compute the contribution [] of a micro-batch to the loss of its mini-batch, whose normaliser is given.

        Padded positions of ``token_loss`` [B, T] are ignored, whatever they hold; ``response_mask`` [B, T] is bool.
        """
        masked = token_loss.masked_fill(~response_mask, 0.0)
        sequences = max(normaliser.sequences, 1)
        if self.mode == "token-mean":
            return masked.sum() / max(normaliser.tokens, 1)
        if self.mode == "seq-mean-token-mean":
            lengths = response_mask.sum(dim=1).clamp(min=1)
            return (masked.sum(dim=1) / lengths).sum() / sequences
        if self.constant is None:
            return masked.sum() / sequences
        return masked.sum() / (sequences * self.constant)

    def correction(self, response_mask: Tensor, kept: Tensor) -> float:
        """Compute the factor that turns the normaliser of all responses into that of the ``kept`` tokens [B, T]."""
        if self.mode == "token-mean":
            return int(response_mask.sum()) / max(1, int(kept.sum()))
        return int(response_mask.any(dim=1).sum()) / max(1, int(kept.any(dim=1).sum()))


class AggregationSettings(Record):
    """The aggregation of a method, which a catalogue entry spells within its loss."""

    aggregation: Mode
    aggregation_constant: float | None

    @model_validator(mode="after")
    def _constant_fits(self) -> Self:
        if self.aggregation_constant is not None:
            Aggregation(self.aggregation, self.aggregation_constant)  # raises ValueError
        return self
