"""DFPO, Drift Fixing Policy Optimization (arXiv 2604.13088): weights under which shared tokens cancel in a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, aggregation_constant_field, aggregation_field, check_aggregation
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.losses.ratio import MAX_LOG_RATIO, approximate_kl, log_ratio, mean_log_ratio
from rlvr.methods.precision import at_least_float32
from rlvr.methods.seams import Coupling


@dataclass(frozen=True)
class DFPO:
    """-w~_i A_i pi_theta / sg[pi_theta], w~ a transform, within the group, of stop-gradient sequence weights w_i.

    "min_replace" gives every response its group's smallest weight, so that sum_i w~_i A_i = 0 whenever the advantages
    sum to 0: a token that all responses share gets no push. "advantage_orthogonal" takes from w its component along A,
    w~ = w - (A.w / |A|^2) A, so that the sum is 0 in any case; a weight can become negative. Nothing is clipped. At
    w = 1 and with whole groups both are the plain group-advantage policy gradient.

    The paper's weights and hyper-parameters were not to be had; w is GSPO's length-normalised ratio ("sequence_mean")
    or the product of token ratios, its log limited to +-20. Groups are those within the mini-batch: batching has to
    keep them whole for the cancellation to be the group's. seq-mean-token-mean divides by each response's own length
    and breaks the exact cancellation of shared tokens; token-mean keeps it.
    """

    coupling: ClassVar[Coupling] = "group"

    transform: Literal["min_replace", "advantage_orthogonal"] = hyper_parameter(
        "min_replace", "how the weights of a group are changed"
    )
    weight: Literal["sequence_mean", "product"] = hyper_parameter("sequence_mean", "the weight of a response")
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
        """Token loss [B, T] and metrics [B, T]; ``sequence_weight`` is w~. ``generator`` plays no part.

        With token weights, a response's advantage in the transform is the mean over its tokens.
        """
        log_ratios = log_ratio(log_probs, old_log_probs, response_mask)
        signal = at_least_float32(advantages).masked_fill(~response_mask, 0.0)
        weights = self._transformed(log_ratios.detach(), signal, response_mask, group_ids)
        slope_one = (log_ratios - log_ratios.detach()).exp()
        metrics = {"sequence_weight": weights * response_mask, "approximate_kl": approximate_kl(log_ratios)}
        return -weights * signal * slope_one, metrics

    def _transformed(self, log_ratios: Tensor, signal: Tensor, response_mask: Tensor, group_ids: Tensor) -> Tensor:
        """w~ [B, 1]; responses without tokens take no part."""
        logs = log_ratios.sum(dim=1, keepdim=True)
        if self.weight == "sequence_mean":
            logs = mean_log_ratio(log_ratios, response_mask)
        weights = logs[:, 0].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        present = response_mask.any(dim=1)
        _, members = torch.unique(group_ids, return_inverse=True)
        groups = int(members.max()) + 1
        if self.transform == "min_replace":
            smallest = torch.full_like(weights[:1], torch.inf).repeat(groups)
            smallest = smallest.scatter_reduce(0, members, weights.masked_fill(~present, torch.inf), "amin")
            return smallest[members].masked_fill(~present, 0.0)[:, None]
        advantages = signal.sum(dim=1) / response_mask.sum(dim=1).clamp(min=1)
        zeros = torch.zeros_like(weights[:1]).repeat(groups)
        products = zeros.index_add(0, members, advantages * weights)
        squares = zeros.index_add(0, members, advantages.square())
        along = torch.where(squares > 0, products / squares.clamp(min=torch.finfo(squares.dtype).tiny), 0.0)
        return (weights - along[members] * advantages).masked_fill(~present, 0.0)[:, None]
