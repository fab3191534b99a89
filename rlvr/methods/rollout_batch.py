"""The rollout batch that token weights are computed from, and the floating type that methods compute in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlvr.methods.recomputed_rows import RecomputedRows


@dataclass(frozen=True)
class RowShare:
    """The part of the N tokens' rows that this process holds, if several hold a part each; all else they all have.

    Attributes:
        start: first token.
        stop: the token after the last.
        total: the sum over all processes of a tensor that each of them has.
        gather: the processes' tensors [n, ...] of their own tokens, in the tokens' order: [N, ...].
    """

    start: int
    stop: int
    total: Callable[[Tensor], Tensor]
    gather: Callable[[Tensor], Tensor]

    @property
    def own(self) -> slice:
        """This process's tokens."""
        return slice(self.start, self.stop)

    def select(self, tokens: Tensor) -> RowShare:
        """Restrict the share to the tokens at ``tokens`` [N] bool."""
        before, until = int(tokens[: self.start].sum()), int(tokens[: self.stop].sum())
        return RowShare(before, until, self.total, self.gather)


@dataclass(frozen=True)
class RolloutBatch:
    """A rollout batch of B responses padded to T tokens, N of them real, as the sampling policy sees it.

    Padded positions may hold anything. All tensors are detached and on one device.

    Attributes:
        advantages: [B], of whole groups, one per rollout.
        old_log_probs: [B, T], log-probability of each sampled token under the sampling policy, from the trainer's
            own forward pass.
        entropies: [B, T], entropy in nats of the sampling policy at each position.
        response_mask: [B, T] bool, true at response tokens.
        mini_batch_ids: [B] int64, the optimizer mini-batch of each rollout.
        group_ids: [B] int64, the prompt that each rollout answers.
        token_ids: [B, T] int64, the sampled tokens.
        temperature: of sampling and of the log-probabilities.
        generator: of random numbers on the CPU, this rollout batch's own.
        first_metrics: the metrics that the weighting gave on the run's first rollout batch; empty on that batch.
        head_weight: [V, D], weight of the language-model head. None unless the method asks for hidden states.
        hidden_states: [N, D], inputs of the language-model head; row n belongs to the n-th true entry of
            ``response_mask`` in row-major order. Where the engine has no room for them, rows that are computed anew at
            every reading. None unless the method asks for them.
        share: the tokens whose rows ``hidden_states`` has; None for all of them.
    """

    advantages: Tensor
    old_log_probs: Tensor
    entropies: Tensor
    response_mask: Tensor
    mini_batch_ids: Tensor
    group_ids: Tensor
    token_ids: Tensor
    temperature: float
    generator: torch.Generator
    first_metrics: Mapping[str, float] = field(default_factory=dict)
    head_weight: Tensor | None = None
    hidden_states: Tensor | RecomputedRows | None = None
    share: RowShare | None = None

    def __post_init__(self) -> None:
        """Check shapes once, here, so that no weighting has to.

        Raises:
            ValueError: a tensor does not have the shape or type above.
        """
        if self.response_mask.dtype != torch.bool or self.response_mask.dim() != 2:
            raise ValueError("response_mask has to be a bool tensor [B, T]")
        size = tuple(self.response_mask.shape)
        shapes = {
            "advantages": size[:1],
            "old_log_probs": size,
            "entropies": size,
            "mini_batch_ids": size[:1],
            "group_ids": size[:1],
            "token_ids": size,
        }
        for name, shape in shapes.items():
            found = tuple(getattr(self, name).shape)
            if found != shape:
                raise ValueError(f"{name} has shape {found}; response_mask asks for {shape}")
        if self.hidden_states is not None:
            tokens = int(self.response_mask.sum()) if self.share is None else self.share.stop - self.share.start
            if len(self.hidden_states.shape) != 2 or self.hidden_states.shape[0] != tokens:
                raise ValueError(f"hidden_states has shape {tuple(self.hidden_states.shape)}; expected [{tokens}, D]")

    @property
    def token_advantages(self) -> Tensor:
        """The advantages [N] of the real tokens, in the row order of ``hidden_states``."""
        return self.per_token(self.advantages)

    def per_token(self, values: Tensor) -> Tensor:
        """Repeat each rollout's value of [B] for its real tokens: [N], in the row order of ``hidden_states``."""
        return values.repeat_interleave(self.response_mask.sum(dim=1))


def computation_type(values: Tensor | RecomputedRows) -> torch.dtype:
    """Return float32, or the type of ``values`` if that has more bits."""
    return torch.promote_types(values.dtype, torch.float32)


def at_least_float32(values: Tensor) -> Tensor:
    """Convert ``values`` to float32 if they have fewer bits."""
    return values.to(computation_type(values))
