"""Aggregate token losses to a mini-batch's loss, exactly, for any split into micro-batches.

The normaliser is that of the whole mini-batch, so the micro-batches' values and gradients add up to the mini-batch's.
Averaging the means of micro-batches instead, as older trainers do, gives tokens of short micro-batches more weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from evals.core.lazy_torch import torch
from evals.core.record import Record
from rlvr.methods.parameters import hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor

Mode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"]


@dataclass(frozen=True)
class Normaliser:
    """The counts that the loss of one optimizer mini-batch is divided by."""

    tokens: int  # response tokens in the mini-batch
    sequences: int  # responses in it with at least one token
    prompt_tokens: Mapping[int, int] = field(default_factory=dict)
    """Response tokens of each prompt by its group id; empty where none was given."""

    @classmethod
    def of(cls, response_mask: Tensor, group_ids: Tensor | None = None) -> Normaliser:
        """Count the whole mini-batch's ``response_mask`` [B, T], of the prompts ``group_ids`` [B]."""
        lengths = response_mask.sum(dim=1)
        of_prompts: dict[int, int] = {}
        if group_ids is not None:
            for group, length in zip(group_ids.tolist(), lengths.tolist(), strict=True):
                of_prompts[group] = of_prompts.get(group, 0) + length
        return cls(int(lengths.sum()), int((lengths > 0).sum()), of_prompts)

    def prompt_shares(self, group_ids: Tensor, like: Tensor) -> Tensor:
        """Compute for each rollout of ``group_ids`` [b] the share of a token in the mean over prompts: [b]."""
        prompts = max(1, sum(tokens > 0 for tokens in self.prompt_tokens.values()))
        shares = [1.0 / (prompts * max(1, self.prompt_tokens[group])) for group in group_ids.tolist()]
        return torch.tensor(shares, dtype=torch.float64).to(like)


@dataclass(frozen=True)
class Aggregation:
    """The way token losses become the loss of a mini-batch.

    With x the token loss, m the mask, N and S the mini-batch's tokens and sequences, L the constant:
    token-mean is sum(m x) / N; seq-mean-token-mean is (1/S) sum_i (1/|y_i|) sum_t m x; seq-mean-token-sum is
    (1/S) sum(m x); seq-mean-token-sum-norm is (1/(S L)) sum(m x); prompt-mean is the mean over the mini-batch's prompts
    of the token mean over each one's responses in it. A response without tokens adds nothing, and a mini-batch without
    tokens has loss 0.

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

    def __call__(
        self, token_loss: Tensor, response_mask: Tensor, normaliser: Normaliser, group_ids: Tensor | None = None
    ) -> Tensor:
        """Compute the contribution [] of a micro-batch to the loss of its mini-batch, whose normaliser is given.

        Padded positions of ``token_loss`` [B, T] are ignored, whatever they hold; ``response_mask`` [B, T] is bool.
        ``group_ids`` [B] are needed for prompt-mean alone.
        """
        masked = token_loss.masked_fill(~response_mask, 0.0)
        sequences = max(normaliser.sequences, 1)
        if self.mode == "token-mean":
            return masked.sum() / max(normaliser.tokens, 1)
        if self.mode == "seq-mean-token-mean":
            lengths = response_mask.sum(dim=1).clamp(min=1)
            return (masked.sum(dim=1) / lengths).sum() / sequences
        if self.mode == "prompt-mean":
            assert group_ids is not None, "prompt-mean needs the prompts of the rollouts"
            return (masked.sum(dim=1) * normaliser.prompt_shares(group_ids, masked)).sum()
        if self.constant is None:
            return masked.sum() / sequences
        return masked.sum() / (sequences * self.constant)

    def correction(self, response_mask: Tensor, kept: Tensor, group_ids: Tensor) -> float | Tensor:
        """Compute the factor that turns the normaliser of all responses into that of the ``kept`` tokens [B, T]."""
        if self.mode == "prompt-mean":
            of_all, of_kept = (Normaliser.of(mask, group_ids) for mask in (response_mask, kept))
            like = torch.empty(0, dtype=torch.float64, device=response_mask.device)
            return (of_kept.prompt_shares(group_ids, like) / of_all.prompt_shares(group_ids, like))[:, None]
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
