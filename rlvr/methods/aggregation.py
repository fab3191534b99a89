"""Aggregate token losses to a mini-batch's loss, exactly, for any split into micro-batches.

The normaliser is that of the whole mini-batch, so the micro-batches' values and gradients add up to the mini-batch's.
Averaging the means of micro-batches instead, as older trainers do, gives tokens of short micro-batches more weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import SerializeAsAny, WrapValidator, model_validator

from evals.core.lazy_torch import torch
from evals.core.record import Record
from rlvr.methods.components import AGGREGATION, checked_part
from rlvr.methods.parameters import Component, hyper_parameter

if TYPE_CHECKING:
    from torch import Tensor

Mode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"]


@dataclass(frozen=True)
class Normaliser:
    """The counts that the loss of one optimizer mini-batch is divided by."""

    lengths: tuple[int, ...]  # response tokens of each rollout of the mini-batch
    group_ids: tuple[int, ...] | None = None  # the prompt of each, where they were given

    @classmethod
    def of(cls, response_mask: Tensor, group_ids: Tensor | None = None) -> Normaliser:
        """Count the whole mini-batch's ``response_mask`` [B, T], of the prompts ``group_ids`` [B]."""
        groups = None if group_ids is None else tuple(group_ids.tolist())
        return cls(tuple(response_mask.sum(dim=1).tolist()), groups)

    @cached_property
    def tokens(self) -> int:
        """Response tokens in the mini-batch."""
        return sum(self.lengths)

    @cached_property
    def sequences(self) -> int:
        """Responses in it with at least one token."""
        return sum(length > 0 for length in self.lengths)

    @cached_property
    def prompt_tokens(self) -> Mapping[int, int]:
        """Response tokens of each prompt by its group id."""
        assert self.group_ids is not None, "prompts were not given"
        of_prompts: dict[int, int] = {}
        for group, length in zip(self.group_ids, self.lengths, strict=True):
            of_prompts[group] = of_prompts.get(group, 0) + length
        return of_prompts

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


@dataclass(frozen=True)
class TokenShares(Component, ABC):
    """The base of aggregations in files of the user's: the share of each token's loss in the mini-batch's."""

    kind: ClassVar[str] = AGGREGATION

    @abstractmethod
    def shares(self, response_mask: Tensor, normaliser: Normaliser, group_ids: Tensor) -> Tensor:
        """Compute the factors [b, T] or [b, 1] of the token losses of a micro-batch, which are added up.

        ``response_mask`` [b, T] and ``group_ids`` [b] are the micro-batch's, ``normaliser`` the whole mini-batch's.
        What stands at padding does not matter.
        """

    def _masked_shares(self, response_mask: Tensor, normaliser: Normaliser, group_ids: Tensor) -> Tensor:
        shares, shape = self.shares(response_mask, normaliser, group_ids), response_mask.shape
        if shares.shape not in (shape, (shape[0], 1)):
            raise ValueError(
                f"{self.name}: shares have shape {list(shares.shape)}, not {list(shape)} or [{shape[0]}, 1]"
            )
        return torch.where(response_mask, shares, torch.zeros_like(shares))

    def __call__(
        self, token_loss: Tensor, response_mask: Tensor, normaliser: Normaliser, group_ids: Tensor | None = None
    ) -> Tensor:
        """Compute what :meth:`Aggregation.__call__` does."""
        assert group_ids is not None
        masked = token_loss.masked_fill(~response_mask, 0.0)
        return (masked * self._masked_shares(response_mask, normaliser, group_ids).to(masked)).sum()

    def correction(self, response_mask: Tensor, kept: Tensor, group_ids: Tensor) -> Tensor:
        """Compute what :meth:`Aggregation.correction` does: [B, T]."""
        of_all, of_kept = (
            self._masked_shares(mask, Normaliser.of(mask, group_ids), group_ids) for mask in (response_mask, kept)
        )
        return torch.where(of_all != 0, of_kept / of_all, torch.zeros_like(of_all))


AnyAggregation = Aggregation | TokenShares
ModeOrFile: Any = Annotated[Mode, SerializeAsAny(), WrapValidator(partial(checked_part, AGGREGATION))]  # type: ignore[type-arg]
"""What a catalogue entry's loss may say of the aggregation: a mode, or what names a component in a file."""


class AggregationSettings(Record):
    """The aggregation of a method, which a catalogue entry spells within its loss: a mode, or one of a file."""

    aggregation: ModeOrFile
    aggregation_constant: float | None

    @model_validator(mode="after")
    def _constant_fits(self) -> Self:
        if self.aggregation_constant is not None:
            mode: Any = getattr(self.aggregation, "name", self.aggregation)
            Aggregation(mode, self.aggregation_constant)  # raises ValueError
        return self
