"""Clip-Cov (arXiv 2505.22617): a few tokens of high covariance, drawn at random, lose their gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, aggregation_constant_field, aggregation_field, check_aggregation
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.losses.clipped import Clipped
from rlvr.methods.losses.covariance import token_covariances
from rlvr.methods.precision import at_least_float32
from rlvr.methods.seams import Coupling


@dataclass(frozen=True)
class ClipCov:
    """PPO's clipped loss, without dual clip, with the loss of a random clip_fraction of the tokens set to 0.

    They are drawn among the tokens, not clipped anyway, whose covariance lies between covariance_low and
    covariance_high; at least one if there is any. Covariances are over the mini-batch, where verl takes them over a
    micro-batch. The log-ratio is limited to +-20.
    """

    coupling: ClassVar[Coupling] = "mini_batch"  # covariances and the draw are over all its tokens

    clip_fraction: float = hyper_parameter(2e-4, "part of the tokens that loses its gradient", above=0.0, maximum=1.0)
    covariance_low: float = hyper_parameter(1.0, "only tokens of a larger covariance are drawn")
    covariance_high: float = hyper_parameter(5.0, "only tokens of a smaller covariance are drawn")
    epsilon_low: float = hyper_parameter(0.2, "the ratio is clipped below 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.2, "the ratio is clipped above 1 plus this", above=0.0)
    aggregation: Aggregation = aggregation_field("token-mean")  # noqa: RUF009 (a field)
    aggregation_constant: float | None = aggregation_constant_field()

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)
        check_aggregation(self)

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        group_ids: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Token loss [B, T] and metrics [B, T]; ``covariance_clipped_fraction`` marks the tokens that were drawn."""
        clipped = Clipped(self.epsilon_low, self.epsilon_high, None, self.aggregation, self.aggregation_constant)
        token_loss, metrics = clipped(log_probs, old_log_probs, advantages, response_mask, group_ids, generator)
        drawn = torch.zeros_like(response_mask)
        if bool(response_mask.any()):
            covariances = token_covariances(at_least_float32(log_probs), at_least_float32(advantages), response_mask)
            free = metrics["clip_fraction"][response_mask] == 0
            eligible = free & (covariances > self.covariance_low) & (covariances < self.covariance_high)
            candidates = eligible.nonzero()[:, 0]
            count = max(1, int(self.clip_fraction * covariances.numel()))
            order = torch.randperm(candidates.numel(), generator=generator).to(candidates.device)
            rows, columns = response_mask.nonzero(as_tuple=True)
            chosen = candidates[order[:count]]
            drawn[rows[chosen], columns[chosen]] = True
        metrics["covariance_clipped_fraction"] = drawn.to(token_loss.dtype)
        return token_loss.masked_fill(drawn, 0.0), metrics
