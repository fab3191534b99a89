"""KL-Cov (arXiv 2505.22617): a penalty on moving the tokens whose covariance makes entropy fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, aggregation_constant_field, aggregation_field, check_aggregation
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.losses.covariance import token_covariances
from rlvr.methods.losses.ratio import MAX_LOG_RATIO, approximate_kl, log_ratio
from rlvr.methods.precision import at_least_float32
from rlvr.methods.seams import Coupling


@dataclass(frozen=True)
class KLCov:
    """-r A for all tokens, + kl_coefficient |log r| for the top_fraction of them with the largest covariance.

    At least one token is penalised. Covariances are over the mini-batch, where verl takes them over a micro-batch.
    Nothing is clipped; the log-ratio is limited to +-20 in r.
    """

    coupling: ClassVar[Coupling] = "mini_batch"  # covariances are ranked over all its tokens

    top_fraction: float = hyper_parameter(2e-4, "part of the tokens that is penalised", above=0.0, maximum=1.0)
    kl_coefficient: float = hyper_parameter(1.0, "factor of the penalty", minimum=0.0)
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
        """Token loss [B, T] and metrics [B, T]; ``penalised_fraction`` marks the tokens with the penalty."""
        log_ratios = log_ratio(log_probs, old_log_probs, response_mask)
        ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        signal = at_least_float32(advantages).masked_fill(~response_mask, 0.0)
        penalised = torch.zeros_like(response_mask)
        if bool(response_mask.any()):
            covariances = token_covariances(at_least_float32(log_probs), signal, response_mask)
            chosen = covariances.topk(max(1, int(covariances.numel() * self.top_fraction))).indices
            rows, columns = response_mask.nonzero(as_tuple=True)
            penalised[rows[chosen], columns[chosen]] = True
        penalty = self.kl_coefficient * log_ratios.abs() * penalised
        metrics = {"penalised_fraction": penalised.to(ratios.dtype), "approximate_kl": approximate_kl(log_ratios)}
        return -signal * ratios + penalty, metrics
