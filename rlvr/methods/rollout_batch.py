"""The rollout batch that token weights are computed from, its metrics, and the type that methods compute in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evals.core.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RowShare:
    """The part of the N tokens' rows that this process holds, if several hold a part each; all else they all have."""

    start: int  # first token
    stop: int  # the token after the last
    total: Callable[[Tensor], Tensor]  # the sum over all processes of a tensor that each of them has
    gather: Callable[[Tensor], Tensor]  # [N, ...] of the processes' [n, ...] of their own tokens, in the tokens' order

    @property
    def own(self) -> slice:
        return slice(self.start, self.stop)

    def select(self, tokens: Tensor) -> RowShare:
        """Restrict the share to the tokens at ``tokens`` [N] bool."""
        before, until = int(tokens[: self.start].sum()), int(tokens[: self.stop].sum())
        return RowShare(before, until, self.total, self.gather)


@dataclass(frozen=True)
class RolloutBatch:
    """A rollout batch of B responses padded to T tokens, N of them real, as the sampling policy sees it.

    Padded positions may hold anything. All tensors are detached and on one device.
    """

    advantages: Tensor  # [B], of whole groups
    old_log_probs: Tensor  # [B, T] of the sampled tokens under the sampling policy, in the trainer's own precision
    entropies: Tensor  # [B, T], in nats, of the sampling policy at each position
    response_mask: Tensor  # [B, T] bool, true at response tokens
    mini_batch_ids: Tensor  # [B] int64, the optimizer mini-batch of each rollout
    group_ids: Tensor  # [B] int64, the prompt that each rollout answers
    token_ids: Tensor  # [B, T] int64, the sampled tokens
    temperature: float  # of sampling and of the log-probabilities
    generator: torch.Generator  # of random numbers on the CPU, this rollout batch's own
    first_metrics: Mapping[str, float] = field(default_factory=dict)
    """The metrics that the weighting gave on the run's first rollout batch; empty on that batch."""
    head_weight: Tensor | None = None
    """[V, D], weight of the language-model head. None unless the method asks for hidden states."""
    hidden_states: Tensor | None = None
    """[N, D], inputs of the language-model head; row n belongs to the n-th true entry of ``response_mask`` in row-major
    order. None unless the method asks for them."""
    share: RowShare | None = None
    """The tokens whose rows ``hidden_states`` has; None for all of them."""

    def __post_init__(self) -> None:
        """Check shapes once, here, so that no weighting has to."""
        if self.response_mask.dtype != torch.bool or self.response_mask.dim() != 2:
            raise ValueError("response_mask has to be a bool tensor [B, T]")
        size = tuple(self.response_mask.shape)
        of_rollouts = dict.fromkeys(("advantages", "mini_batch_ids", "group_ids"), size[:1])
        of_tokens = dict.fromkeys(("old_log_probs", "entropies", "token_ids"), size)
        for name, shape in {**of_rollouts, **of_tokens}.items():
            if (given := tuple(getattr(self, name).shape)) != shape:
                raise ValueError(f"{name} has shape {given}; response_mask asks for {shape}")
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


def rollout_kl(log_probs: Tensor, rollout_log_probs: Tensor) -> float:
    """Estimate KL(engine that samples || trainer) in nats a token, from both's log-probs [N] of the sampled tokens.

    It is the mean of r - 1 - log r, r the ratio of the trainer's probability to the engine's (Schulman's k3, which is
    never negative).
    """
    difference = (log_probs - rollout_log_probs).double()
    return float((difference.exp() - 1.0 - difference).mean())


CLIP_RANGE = (0.8, 1.28)
"""DAPO's, outside of which a ratio counts as noticeable, whatever range a method has itself."""


def sampler_metrics(scored: Tensor, drawn: Tensor, lengths: Tensor, weights: Tensor) -> dict[str, float]:
    """Compare the trainer's log-probs [N] of the sampled tokens, before any update, with the sampler's.

    Responses have lengths [B]. Where the tokens' weights [N] differ, the same numbers follow for the tokens of more
    than the mean weight: those are what a method is about.
    """
    difference = (scored - drawn).double()
    response = torch.arange(len(lengths), device=difference.device).repeat_interleave(lengths.to(difference.device))
    metrics = {"rollout_kl": rollout_kl(scored, drawn), **_sizes(difference, response)}
    heavy = weights > weights.double().mean()
    if bool(heavy.any()):
        metrics |= {f"{name}_weighted": size for name, size in _sizes(difference[heavy], response[heavy]).items()}
    return metrics


def _sizes(difference: Tensor, response: Tensor) -> dict[str, float]:
    """The sizes of differences of log-probs [N]; ``response`` [N] is the one that a token is of."""
    size, ratio = difference.abs(), difference.exp()
    sums = difference.new_zeros(int(response.max()) + 1).index_add(0, response, difference)
    return {
        "sampler_difference_mean": float(size.mean()),
        "sampler_difference_p999": float(size.sort().values[math.ceil(0.999 * len(size)) - 1]),
        "sampler_difference_max": float(size.max()),
        "sampler_outside_clip": float(((ratio < CLIP_RANGE[0]) | (ratio > CLIP_RANGE[1])).double().mean()),
        "sampler_response_difference_mean": float(sums[response.unique()].abs().mean()),
    }


def rollout_metrics(
    rewards: Tensor, groups: Tensor, lengths: Tensor, truncated: Tensor, counted: Tensor, kept: Tensor | None
) -> dict[str, float]:
    """Compute metrics of all rollouts that were sampled, [B] each: means over those that are ``counted``, and counts.

    ``kept`` are the indices of those that a selection chose, and what is counted of them is trained on: with one,
    ``_trained`` ends the names of the same means over these.
    """
    numbers = groups[counted].unique(return_inverse=True)[1]
    lowest, highest = (
        torch.zeros(int(numbers.max()) + 1).scatter_reduce_(0, numbers, rewards[counted], kind, include_self=False)
        for kind in ("amin", "amax")
    )

    def means(rows: Tensor, ending: str = "") -> dict[str, float]:
        return {
            f"reward_mean{ending}": float(rewards[rows].mean()),
            f"response_length_mean{ending}": float(lengths[rows].float().mean()),
            f"truncation_rate{ending}": float(truncated[rows].double().mean()),
        }

    return {
        **means(counted),
        "groups_mixed_fraction": float((lowest < highest).float().mean()),
        "tokens_generated": int(lengths.sum()),
        "prompts_sampled": len(groups.unique()),
        "rollouts_discarded_fraction": 0.0 if kept is None else 1.0 - len(kept) / len(rewards),
        **({} if kept is None else means(kept[counted[kept]], "_trained")),
    }


def computation_type(values: Tensor) -> torch.dtype:
    """Return float32, or the type of ``values`` if that has more bits."""
    return torch.promote_types(values.dtype, torch.float32)


def at_least_float32(values: Tensor) -> Tensor:
    """Convert ``values`` to float32 if they have fewer bits."""
    return values.to(computation_type(values))
